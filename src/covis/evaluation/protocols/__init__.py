"""Every named protocol, one file per family; importing this fills `BENCHMARKS`."""

from covis.evaluation.protocols import msls, public, simulated

__all__ = ["msls", "public", "simulated"]
