"""Figures that can be trusted: metrics, named protocols as values, intervals and paired tests; no torch anywhere."""

from covis.evaluation import protocols
from covis.evaluation.benchmark import BENCHMARKS, Benchmark, load_benchmark
from covis.evaluation.metrics import recall_at_k
from covis.evaluation.result import Evaluation
from covis.evaluation.scoring import evaluate

__all__ = ["BENCHMARKS", "Benchmark", "Evaluation", "evaluate", "load_benchmark", "protocols", "recall_at_k"]
