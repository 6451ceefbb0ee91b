"""Experiments: rows of recipes, each over several seeds, trained, scored and summed up with intervals.

    FOLDER/ROW/seed-N/             a training run
    FOLDER/ROW/seed-N/evals/NAME   its evaluations
    FOLDER/NAME.json, NAME.md      the outcome; tables that share rows may share a folder

Everything resumes: a finished run or evaluation is opened, not made again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import t as student

from covis import artifacts
from covis.datasets import is_given
from covis.describing.describers import ModelDescriber
from covis.describing.features import Cached, open_features
from covis.describing.rerankers import open_reranker
from covis.evaluation import BENCHMARKS, Evaluation, load_benchmark
from covis.evaluation.published import Published
from covis.evaluation.run import Fit, Variants, evaluate_to
from covis.files import write_text
from covis.images import ImageSet
from covis.machine import cache_folder
from covis.models import PlaceModel
from covis.progress import say
from covis.registry import Registry
from covis.training.recipe import Recipe
from covis.training.run import Resources, train
from covis.training.validation import describe_all

LEVEL = 0.95
KS = (1, 5, 10)


@dataclass(frozen=True)
class Row:
    """One line of a table: a recipe, what it is scored on, and what was published for it."""

    label: str
    recipe: Recipe
    benchmarks: tuple[str, ...]
    whiten: int | None = None
    """Whiten the descriptors to so many dims; rows that differ only in this share their run."""
    fit: Fit = "map"
    """What a whitening is fitted on: the map, as the published figures were, or the training images."""
    rerank: str = ""
    """How results are re-ranked (`describing.rerankers`), if at all; such rows share their run too."""
    published: tuple[Published, ...] = ()

    @property
    def name(self) -> str:
        """The label, with what is done to descriptors and results."""
        whitened = "" if self.whiten is None else f", whitened {self.whiten} on the {self.fit}"
        return f"{self.label}{whitened}{f', by {self.rerank}' if self.rerank else ''}"

    def shares_descriptors(self, other: Row) -> bool:
        """Whether the other row is of the same run and differs at most in its size."""
        return replace(self, whiten=other.whiten, published=other.published) == other

    @property
    def slug(self) -> str:
        """The label as the name of the run's folder."""
        return re.sub(r"[^a-z0-9]+", "-", self.label.lower()).strip("-")


@dataclass(frozen=True)
class Table:
    """A named experiment."""

    title: str
    rows: tuple[Row, ...]
    seeds: int = 1
    notes: tuple[str, ...] = ()


TABLES: Registry[Callable[[], Table]] = Registry("table")
"""Name → function that returns the table."""


@dataclass
class Outcome:
    """What became of a row: figures of each seed, costs, or why it was not run."""

    row: Row
    figures: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """Benchmark → figure → one value a seed."""
    costs: dict[str, list[float]] = field(default_factory=dict)
    missing: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Means and intervals as JSON."""
        summed = {b: {k: summary(v) for k, v in found.items()} for b, found in self.figures.items()}
        published = [
            {"benchmark": p.benchmark, "figure": p.figure, "value": p.value, "caveats": list(p.caveats)}
            for p in self.row.published
        ]
        costs = {k: summary(v) for k, v in self.costs.items()}
        told = {"row": self.row.name, "figures": summed, "costs": costs, "published": published}
        return told | ({"missing": self.missing} if self.missing else {})


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Mean and 95 % interval of the mean over seeds (Student's t; none for a single seed)."""
    mean, n = float(np.mean(values)), len(values)
    half = math.nan
    if n > 1:
        half = float(student.ppf((1 + LEVEL) / 2, n - 1) * np.std(values, ddof=1) / math.sqrt(n))
    return {"mean": mean, "half": None if math.isnan(half) else half, "values": [float(v) for v in values]}


def run_rows(
    rows: Sequence[Row],
    output: Path | str,
    *,
    data: Mapping[str, Path],
    seeds: Iterable[int],
    resources: Resources | None = None,
) -> list[Outcome]:
    """Runs what the data allows, row by row; a row whose data is not given is told, not run."""
    output, seeds = Path(output), list(seeds)
    outcomes = []
    for row in rows:
        sizes = tuple(dict.fromkeys(other.whiten for other in rows if other.shares_descriptors(row)))
        outcome = Outcome(row, missing=lacking(row, data))
        if outcome.missing:
            say(f"{row.name}: not run, {outcome.missing}")
        else:
            for seed in seeds:
                say(f"{row.name}, seed {seed}")
                _run(row, sizes, output / row.slug / f"seed-{seed}", data, seed, resources, outcome)
        outcomes.append(outcome)
    return outcomes


def _run(
    row: Row,
    sizes: tuple[int | None, ...],
    folder: Path,
    data: Mapping[str, Path],
    seed: int,
    resources: Resources | None,
    outcome: Outcome,
) -> None:
    """Trains, or opens what was trained; scores all `sizes` that rows of this run whiten to at once."""
    result = train(row.recipe, folder, data=data.get(row.recipe.dataset), seed=seed, resources=resources)
    for key in ("seconds", "mining_seconds", "images", "pairs", "memory_gib"):
        outcome.costs.setdefault(key, []).append(float(result[key]))
    for name in row.benchmarks:
        if not is_given(BENCHMARKS[name].dataset, data):
            continue
        plan = Variants(sizes, fit=row.fit, rerank=open_reranker(row.rerank) if row.rerank else None)
        source = FrozenOnce(PlaceModel.load(folder / "model"), folder.name, folder=(folder / "model").resolve())
        evaluate_to(source, load_benchmark(name, data), folder / "evals", plan, alone=False)
        evaluation = Evaluation.open(folder / "evals" / plan.folder(name, row.whiten))
        for key, value in headline(evaluation).items():
            outcome.figures.setdefault(name, {}).setdefault(key, []).append(value)


@dataclass(frozen=True, eq=False)
class FrozenOnce(ModelDescriber):
    """A model whose frozen part is computed once for all runs that share it, where the cache holds its output."""

    model: PlaceModel

    def describe(self, images: ImageSet) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Through cached features if every image can be read and has its place there, else as any model does."""
        cache = cache_folder() / "features"
        bound = int(Recipe.cache_gb * 1e9)
        common: dict[str, Any] = {"seed": 0, "workers": self.workers or 1, "device": torch.device("cpu")}
        source = open_features(self.model, (images,), cache=cache, cache_bytes=bound, **common)
        if not isinstance(source, Cached) or not np.array_equal(source.replaced[0], np.arange(len(images))):
            return super().describe(images)
        return describe_all(self.model, source, 0, len(images)), np.zeros(len(images), bool)


def headline(evaluation: Evaluation) -> dict[str, float]:
    """The figures that a table shows."""
    found = {f"recall@{k}": v for k, v in evaluation.recall.items() if k in KS}
    found |= {f"localised@{k}": v for k, v in evaluation.figures.get("localised", {}).items()}
    if evaluation.figures.get("average_precision") is not None:
        found["average_precision"] = evaluation.figures["average_precision"]
    return found


def needs(row: Row) -> dict[str, str]:
    """Dataset → what a row needs it for."""
    found = {row.recipe.dataset: "training"}
    for name in row.benchmarks:
        found.setdefault(BENCHMARKS[name].dataset, f"benchmark {name}")
    return found


def lacking(row: Row, data: Mapping[str, Path]) -> str:
    """Why a row cannot be run with this data; empty if it can."""
    if not is_given(row.recipe.dataset, data):
        return f"it trains on {row.recipe.dataset}: give --data {row.recipe.dataset}=PATH"
    if not any(is_given(BENCHMARKS[name].dataset, data) for name in row.benchmarks):
        return f"none of its benchmarks has data: {', '.join(row.benchmarks)}"
    return ""


def write_outcomes(
    output: Path, title: str, outcomes: Sequence[Outcome], seeds: Sequence[int], name: str = "table"
) -> dict[str, Any]:
    """Writes NAME.json and NAME.md; returns what NAME.json holds."""
    told = {
        "title": title,
        "seeds": list(seeds),
        "command": artifacts.command(),
        "versions": artifacts.versions(),
        "rows": [outcome.to_dict() for outcome in outcomes],
    }
    output.mkdir(parents=True, exist_ok=True)
    artifacts.write_json(output / f"{name}.json", told)
    text = f"# {title}\n\n{markdown(outcomes)}\n\n`{told['command']}`, seeds {', '.join(map(str, seeds))}\n"
    write_text(output / f"{name}.md", text)
    return told


def markdown(outcomes: Sequence[Outcome]) -> str:
    """The outcomes as a Markdown table: mean ± half interval, published figures in brackets."""
    columns = list(dict.fromkeys((b, k) for o in outcomes for b, found in o.figures.items() for k in found))
    head = ["row", *(f"{b} {k}" for b, k in columns), "images", "training s", "mining s", "step GiB"]
    lines = [head, ["---", *("---:" for _ in head[1:])]]
    for o in outcomes:
        if o.missing:
            lines.append([o.row.name, f"not run: {o.missing}", *("" for _ in head[2:])])
            continue
        cells = [_cell(o, b, k) for b, k in columns]
        costs = [_number(o.costs[k], digits) for k, digits in _COSTS]
        lines.append([o.row.name, *cells, *costs])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


_COSTS = (("images", 0), ("seconds", 0), ("mining_seconds", 0), ("memory_gib", 2))


def _number(values: Sequence[float], digits: int) -> str:
    return f"{np.mean(values):.{digits}f}" if values else ""


def _cell(outcome: Outcome, benchmark: str, key: str) -> str:
    values = outcome.figures.get(benchmark, {}).get(key)
    if not values:
        return ""
    found = summary(values)
    text = f"{found['mean']:.1f}" + ("" if found["half"] is None else f" ± {found['half']:.1f}")
    published = [p.value for p in outcome.row.published if p.benchmark == benchmark and p.figure == key]
    return f"{text} ({published[0]:.1f})" if published else text
