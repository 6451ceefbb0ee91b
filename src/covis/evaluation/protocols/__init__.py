"""Every named protocol, one file per family; importing this fills `BENCHMARKS`."""

from covis.evaluation.protocols import indoor, msls, simulated, streets

__all__ = ["indoor", "msls", "seasons", "simulated", "streets"]
