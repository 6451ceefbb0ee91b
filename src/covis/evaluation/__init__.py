"""Figures that can be trusted: metrics, named protocols as values, intervals and paired tests; no torch anywhere."""

from covis.evaluation.metrics import recall_at_k

__all__ = ["recall_at_k"]
