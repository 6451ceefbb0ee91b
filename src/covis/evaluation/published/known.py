"""Recalls that authors print for models that can be downloaded: whoever has the files can check covis against them."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources

from covis.evaluation.published import COUNTS, DENOMINATORS, other_counts, published
from covis.evaluation.result import Evaluation

TOLERANCE = 0.3
"""Points by which a right model may differ: resizing and rounding are not the same in all libraries."""
_PAPER = "Tables 3 and 9 of the method's paper"
_NETWORKS = {"vgg": "vgg16", "resnet50": "resnet50", "resnet152": "resnet152", "resnext": "resnext101"}
"""Names in the paper's tables → names in those of its checkpoints here."""


@dataclass(frozen=True, eq=False)
class KnownNumber:
    """What the authors of a model print for it on a benchmark."""

    model: str
    """A name of `covis list models`."""
    benchmark: str
    recall: dict[int, float]
    """Recall@k in percent."""
    source: str
    """Where it is printed."""
    whiten: int | None = None
    """The size that descriptors are whitened to, on all map images."""
    over: str = "all"
    """The queries that the authors divide by: `all`, or the `answerable` ones."""

    def verdict(self, evaluation: Evaluation, tolerance: float = TOLERANCE) -> str:
        """`within`, `outside by` how many points, or how the benchmark differs from the printed one."""
        figures = evaluation.figures
        counted = (self.benchmark, figures["queries_total"], figures["database"])
        if self.benchmark in COUNTS and (difference := other_counts(*counted)):
            return difference
        found = figures.recall_over(self.over)
        most = max(abs(found[k] - printed) for k, printed in self.recall.items())
        return "within" if most <= tolerance + 0.05 else f"outside by {most:.1f}"  # 0.05: printed with one digit


@cache
def known_numbers() -> tuple[KnownNumber, ...]:
    """Those that other authors print in their READMEs, then the method's own."""
    text = resources.files(__package__).joinpath("known_models.csv").read_text(encoding="utf-8")
    others = [
        KnownNumber(
            row["model"],
            row["benchmark"],
            {k: float(row[f"r{k}"]) for k in (1, 5, 10) if row[f"r{k}"]},
            row["source"],
        )
        for row in csv.DictReader(text.splitlines())
    ]
    return (*others, *_of_the_method())


def _of_the_method() -> list[KnownNumber]:
    """The method's checkpoints with global poolings, on the benchmarks whose truth is public."""
    recalls: dict[tuple[str, str, int | None], dict[int, float]] = {}
    for p in published():
        network, _, rest = f"{p.method}-{p.loss}".casefold().strip("-").partition("-")
        measured = p.figure.startswith("recall@") and p.benchmark in ("msls_val", *DENOMINATORS)
        if p.table in ("table3_ablation_gem", "table9_ablation_avg") and network in _NETWORKS and measured:
            pool, _, loss = rest.partition("-")
            key = f"{loss}_{_NETWORKS[network]}_{pool}", p.benchmark, p.dim if p.whitened else None
            recalls.setdefault(key, {})[int(p.figure.removeprefix("recall@"))] = p.value
    return [
        KnownNumber(model, benchmark, recall, _PAPER, whiten, DENOMINATORS.get(benchmark, "all"))
        for (model, benchmark, whiten), recall in recalls.items()
    ]
