"""Every named protocol, one file a family; importing this fills `BENCHMARKS`."""

from covis.evaluation.protocols import own

__all__ = ["own"]
