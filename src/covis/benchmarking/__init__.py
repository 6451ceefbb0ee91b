"""A model on benchmarks: embed, whiten, rank, score, and keep what came of it."""

from covis.benchmarking.runs import Variants, evaluate_model, evaluate_source, evaluate_to, submit
from covis.benchmarking.sources import FileSource, ModelSource, Source, StoreSource, open_source

__all__ = [
    "FileSource",
    "ModelSource",
    "Source",
    "StoreSource",
    "Variants",
    "evaluate_model",
    "evaluate_source",
    "evaluate_to",
    "open_source",
    "submit",
]
