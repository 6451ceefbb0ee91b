"""Every named protocol, one file a family; importing this fills `BENCHMARKS`."""

from covis.evaluation.protocols import msls, own, seasons, sequences, small, streets

__all__ = ["msls", "own", "seasons", "sequences", "small", "streets"]
