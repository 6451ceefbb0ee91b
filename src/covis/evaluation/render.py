"""Figures as people read them: one table of names and one ±; `covis.tables` sets them as text, Markdown and LaTeX.

± is always the half-width of the 95 % interval of the mean over seeds (Student's t), from three seeds on; two seeds show
their values. Intervals in square brackets are over the queries of one evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from covis.evaluation.statistics import LEVEL

COMPARED_KS = (1, 5, 10)
"""Recall@k that tables show."""
PLUS_MINUS = "± is half of the 95 % interval of the mean over seeds (Student's t); two seeds show both values"
_FEW = 3


@dataclass(frozen=True)
class Name:
    """What a figure is called, and how it is written."""

    text: str
    unit: str = "%"
    digits: int = 1
    lower_is_better: bool = False

    @property
    def heading(self) -> str:
        """With its unit, for a column."""
        return f"{self.text} {self.unit}".rstrip()


NAMES: Mapping[str, Name] = {
    "ndcg@10": Name("nDCG@10 over ψ"),
    "median_error_m": Name("median distance of the best match", "m", 2, lower_is_better=True),
    "median_error_deg": Name("median turn of the best match", "°", 2, lower_is_better=True),
    "match_auc": Name("area under precision–recall of best matches"),
    "recall_at_100_precision": Name("recall at 100 % precision"),
    "average_precision": Name("average precision over pairs"),
    "spearman_psi_distance": Name("Spearman ρ of ψ and distance", "", 2, lower_is_better=True),
}
"""Single figures of an evaluation, by key, in the order in which they are shown."""
_AMONG_SIMILAR = {"spearman_psi_distance_similar": Name("Spearman ρ where ψ > 0", "", 3, lower_is_better=True)}
"""Said in tables alone: how distances follow grades among pairs that share something."""
SEARCHED = {"any": "whole", "same": "the query's own group", "other": "other groups"}
"""Which part of the map a query is matched with, in words."""


def name_of(key: str) -> Name:
    """What any figure is called: `recall@5`, `map@5`, `localised@5 m, 10°`, or one of `NAMES`."""
    kind, _, at = key.partition("@")
    made = {"recall": f"Recall@{at.replace('_', ', ')}", "map": f"mAP@{at}", "localised": f"within {at}"}
    return NAMES.get(key) or _AMONG_SIMILAR.get(key) or Name(made.get(kind, key))


def mean_interval(values: Sequence[float], level: float = LEVEL) -> tuple[float, float | None]:
    """Mean, and the half-width of its interval over seeds by Student's t; None for a single seed."""
    from scipy.stats import t as student

    mean, n = float(np.mean(values)), len(values)
    if n < 2:
        return mean, None
    return mean, float(student.ppf((1 + level) / 2, n - 1) * np.std(values, ddof=1) / math.sqrt(n))


def over_seeds(values: Sequence[float], digits: int = 1) -> str:
    """`57.1 ± 1.3` over three seeds or more, `57.1 (56.0, 58.2)` over two, `57.1` for one."""
    mean, half = mean_interval(values)
    if half is None:
        return f"{mean:.{digits}f}"
    if len(values) < _FEW:
        return f"{mean:.{digits}f} ({', '.join(f'{v:.{digits}f}' for v in values)})"
    return f"{mean:.{digits}f} ± {half:.{digits}f}"
