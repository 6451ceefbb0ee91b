"""Visual place recognition learned from how much two views share."""

__version__ = "0.1.0"
