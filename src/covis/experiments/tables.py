"""Tables: rows of recipes, each over several seeds, and their outcomes summed up with intervals.

    FOLDER/TABLE.json, TABLE.md    the outcome
    FOLDER/scores.csv              what the servers answered: to be filled in

What a table holds is known without torch; `covis.experiments.running` runs it.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from covis.core import artifacts
from covis.core.errors import InputError
from covis.core.files import write_text
from covis.core.registry import Registry
from covis.core.tables import markdown_lines
from covis.datasets import is_given
from covis.evaluation import BENCHMARKS, Evaluation
from covis.evaluation.differences import paired_differences
from covis.evaluation.published import Published, other_counts
from covis.evaluation.render import mean_interval, name_of, over_seeds
from covis.evaluation.run import Fit
from covis.evaluation.submissions import Scores
from covis.training.recipe import Recipe, describe_recipe
from covis.whitening import PCA, WhiteningRule

if TYPE_CHECKING:
    from covis.training.run import Resources

TABLE_KS = (1, 5, 10)
MEAN = "mean over scenes"
"""Stands for a benchmark in the rows that are means."""


@dataclass(frozen=True)
class Row:
    """One line of a table: a recipe, what it is scored on, and what was published for it."""

    label: str
    recipe: Recipe | None
    """How its model is trained; None for a model that is given (`model`)."""
    benchmarks: tuple[str, ...]
    whiten: int | None = None
    """Dimensions after whitening; rows that differ only in this share their run."""
    fit: Fit = "map"
    """What a whitening is fitted on: the map, as the published figures were, or the training images."""
    fit_images: int | None = 10_000
    """Images drawn to fit on, at most; None = all, as the method's authors did."""
    whitening: WhiteningRule = PCA
    """How it is fitted: by PCA, or learned from labels."""
    sweep: bool = False
    """Score all sizes of descriptors, for a curve."""
    rerank: str = ""
    """How results are re-ranked (`describing.rerankers`), if at all; such rows share their run too."""
    parts: bool = False
    """Whether figures by condition or surroundings belong to it too."""
    graded: bool = False
    """Whether figures over grades, metres and stricter radii belong to it too."""
    published: tuple[Published, ...] = ()
    model: str = ""
    """The name under which an off-the-shelf model is given, where nothing is trained."""

    @property
    def name(self) -> str:
        """The label, with what is done to descriptors and results."""
        labels = "" if self.whitening.labels == "none" else f" by {_LABELS[self.whitening.labels]} labels"
        whitened = "" if self.whiten is None else f", whitened {self.whiten} on the {self.fit}{labels}"
        return f"{self.label}{whitened}{f', by {self.rerank}' if self.rerank else ''}"

    def shares_descriptors(self, other: Row) -> bool:
        """Whether the other row is of the same run and differs at most in its size."""
        return replace(self, whiten=other.whiten, published=other.published) == other

    @property
    def slug(self) -> str:
        """The label as part of a folder's name."""
        return re.sub(r"[^a-z0-9]+", "-", self.label.lower()).strip("-")

    @property
    def key(self) -> str:
        """What identifies the run: the recipe, whatever the row is called."""
        return artifacts.fingerprint(self.model if self.recipe is None else describe_recipe(self.recipe))[:8]


_LABELS = {"graded": "graded", "binary": "yes/no", "nearest": "no"}


@dataclass(frozen=True)
class Table:
    """A named experiment."""

    title: str
    rows: tuple[Row, ...]
    seeds: int = 1
    notes: tuple[str, ...] = ()
    figure: str = ""
    """The picture that is drawn from its rows (a name of `covis report --figure`); empty for a table of figures."""
    cost: bool = False
    """Whether rows are measured for time and memory instead of being trained and scored."""
    against: tuple[str, ...] = ()
    """Rows that every other row is compared with, query by query (`evaluation.differences.paired_differences`)."""
    mean_over: tuple[str, ...] = ()
    """Scenes that labels begin with: rows that differ only in the scene get a mean."""
    published_means: tuple[Published, ...] = ()
    """What was published for those means; `method` is the label without its scene."""


TABLES: Registry[Callable[[], Table]] = Registry("table")
"""Name → function that returns the table."""


@dataclass(frozen=True)
class Inputs:
    """What an experiment is run on."""

    output: Path
    data: Mapping[str, Path]
    models: Mapping[str, Path] = field(default_factory=dict)
    """Off-the-shelf models by the names that rows give them."""
    scores: Scores = field(default_factory=Scores)
    resources: Resources | None = None


@dataclass
class Outcome:
    """The outcome of a row: figures of each seed, costs, what was left out, or why it was not run."""

    row: Row
    figures: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """Benchmark → figure → one value per seed."""
    counts: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Benchmark → queries and map images that were counted."""
    costs: dict[str, list[float]] = field(default_factory=dict)
    submissions: dict[str, list[str]] = field(default_factory=dict)
    """Benchmark → files for its server, one per seed."""
    remarks: list[str] = field(default_factory=list)
    """What was left out, and why."""
    missing: str = ""
    differs: str = ""
    """How its training set, or the scenes of a mean, differ from the published ones; empty if they do not."""
    runs: list[Path] = field(default_factory=list)
    evaluations: dict[str, list[Path]] = field(default_factory=dict)

    def add(self, benchmark: str, figures: Mapping[str, float]) -> None:
        """Figures of one more seed."""
        for key, value in figures.items():
            self.figures.setdefault(benchmark, {}).setdefault(key, []).append(value)

    def published(self, benchmark: str) -> tuple[dict[str, Published], str]:
        """Published figures that are counted as ours are, by figure; or none, and how the protocol differs."""
        printed = {p.key: p for p in self.row.published if p.benchmark == benchmark and not p.doubtful}
        if not printed:
            return {}, ""
        counted = "" if benchmark == MEAN else other_counts(benchmark, *self.counts.get(benchmark, (0, 0)))
        reason = counted or self.differs
        return ({}, reason) if reason else (printed, "")

    def to_dict(self) -> dict[str, Any]:
        """Means and intervals as JSON."""
        columns = {}
        for name, figures in self.figures.items():
            printed, reason = self.published(name)
            columns[name] = {
                "queries": self.counts.get(name, (0, 0))[0],
                "database": self.counts.get(name, (0, 0))[1],
                "figures": {k: summary(v) for k, v in figures.items()},
                "published": {k: p.value for k, p in printed.items() if k in figures},
                "other_protocol": reason,
            }
        record = {
            "row": self.row.name,
            "figures": {name: column["figures"] for name, column in columns.items()},
            "benchmarks": columns,
            "costs": {k: summary(v) for k, v in self.costs.items()},
            "submissions": self.submissions,
            "remarks": self.remarks,
            "runs": [str(run) for run in self.runs],
        }
        return record | ({"missing": self.missing} if self.missing else {})


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Mean and 95 % interval of the mean over seeds (Student's t; none for a single seed)."""
    mean, half = mean_interval(values)
    return {"mean": mean, "half": half, "values": [float(v) for v in values]}


def choose_rows(rows: Sequence[Row], patterns: Sequence[str]) -> list[Row]:
    """The rows whose name contains a pattern or matches it with * and ?; all without patterns."""
    if not patterns:
        return list(rows)
    wanted = [p.lower() if set("*?[") & set(p) else f"*{p.lower()}*" for p in patterns]
    chosen = [row for row in rows if any(fnmatch.fnmatchcase(row.name.lower(), pattern) for pattern in wanted)]
    if not chosen:
        raise InputError(f"no row is called {', '.join(patterns)}; rows: {'; '.join(row.name for row in rows)}")
    return chosen


def compare_rows(outcomes: Sequence[Outcome], against: Sequence[str]) -> list[dict[str, Any]]:
    """Differences of every row to each row of `against`, on each benchmark that both were scored on."""
    by_name = {o.row.name: o for o in outcomes}
    differences = []
    for first in (by_name[name] for name in against if name in by_name):
        for second in outcomes:
            for benchmark in (b for b in first.evaluations if second is not first and b in second.evaluations):
                sides = [[Evaluation.open(p) for p in o.evaluations[benchmark]] for o in (first, second)]
                differences.append(
                    {"row": second.row.name, "against": first.row.name, "benchmark": benchmark,
                     "figures": paired_differences(*sides)}
                )  # fmt: skip
    return differences


def needs(row: Row) -> dict[str, str]:
    """Dataset → what a row needs it for."""
    purposes = {} if row.recipe is None else {row.recipe.dataset: "training"}
    for name in row.benchmarks:
        purposes.setdefault(BENCHMARKS[name].dataset, f"benchmark {name}")
    return purposes


def lacking(row: Row, inputs: Inputs) -> str:
    """Why a row cannot be run with this data; empty if it can."""
    if row.recipe is None and row.model not in inputs.models:
        return (
            f"it scores an off-the-shelf model: import it (`covis model import`), then give --model {row.model}=FOLDER"
        )
    if row.recipe is not None and not is_given(row.recipe.dataset, inputs.data):
        return f"it trains on {row.recipe.dataset}: give --data {row.recipe.dataset}=PATH"
    if row.benchmarks and not any(is_given(BENCHMARKS[name].dataset, inputs.data) for name in row.benchmarks):
        return f"none of its benchmarks has data: {', '.join(row.benchmarks)}"
    return ""


def with_means(outcomes: Sequence[Outcome], table: Table) -> list[Outcome]:
    """The outcomes, and one row for each method with the mean of its figures over `mean_over` (scenes)."""
    if not table.mean_over:
        return list(outcomes)
    methods: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        scene, _, method = outcome.row.label.partition(" ")
        if scene in table.mean_over:
            methods.setdefault(method, []).append(outcome)
    means = []
    for method, group in methods.items():
        scored = [o for o in group if o.figures]
        printed = tuple(p for p in table.published_means if p.method == method)
        mean = Outcome(replace(group[0].row, label=f"mean {method}", published=printed))
        mean.remarks.append(f"mean over {len(scored)} of {len(table.mean_over)} scenes")
        mean.differs = _differing(scored, len(table.mean_over))
        mean.missing = "" if scored else "none of its scenes was scored"
        keys = {key for o in scored for figures in o.figures.values() for key in figures}
        for key in sorted(keys):
            values = [np.mean(f[key]) for o in scored for f in o.figures.values() if key in f]
            mean.add(MEAN, {key: float(np.mean(values))})
        means.append(mean)
    return [*outcomes, *means]


def _differing(scored: Sequence[Outcome], scenes: int) -> str:
    """Why a published mean cannot be compared with the mean of these outcomes; empty where it can."""
    reasons = [o.published(benchmark)[1] for o in scored for benchmark in o.figures]
    part = "" if len(scored) == scenes else f"other protocol: the published mean is over {scenes} scenes"
    return next(filter(None, [part, *reasons]), "")


def write_outcomes(
    output: Path, title: str, outcomes: Sequence[Outcome], seeds: Sequence[int], name: str = "table",
    notes: Sequence[str] = (), against: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """Writes NAME.json and NAME.md; returns what NAME.json holds."""
    compared = compare_rows(outcomes, against)
    record = {
        "title": title,
        "seeds": list(seeds),
        "command": artifacts.command(),
        "versions": artifacts.versions(),
        "notes": list(notes),
        "rows": [outcome.to_dict() for outcome in outcomes],
        **({"differences": compared} if compared else {}),
    }
    output.mkdir(parents=True, exist_ok=True)
    artifacts.write_json(output / f"{name}.json", record)
    body = "\n\n".join([markdown(outcomes, notes), *([compared_markdown(compared)] if compared else [])])
    text = f"# {title}\n\n{body}\n\n`{record['command']}`, seeds {', '.join(map(str, seeds))}\n"
    write_text(output / f"{name}.md", text)
    return record


def markdown(outcomes: Sequence[Outcome], notes: Sequence[str] = ()) -> str:
    """The outcomes as a Markdown table: mean ± half interval, published figures in brackets; omissions below."""
    columns = list(dict.fromkeys((b, k) for o in outcomes for b, figures in o.figures.items() for k in figures))
    costs = [(key, name, digits) for key, name, digits in _COSTS if any(key in o.costs for o in outcomes)]
    head = ["row", *(f"{b}: {name_of(k).heading}" for b, k in columns), *(name for _, name, _ in costs)]
    lines = [head]
    for o in outcomes:
        cells = [_cell(o, b, k) for b, k in columns]
        cost_cells = [_number(o.costs.get(key, ()), digits) for key, _, digits in costs]
        if o.missing and not any(cells):
            cells = [f"not run: {o.missing}", *cells[1:]]
        lines.append([o.row.name, *cells, *cost_cells][: len(head)] if len(head) > 1 else [o.row.name])
    table = markdown_lines(lines)
    below = [*notes, *_remarks(outcomes)]
    return table + ("\n\n" + "\n".join(f"- {text}" for text in below) if below else "")


def compared_markdown(compared: Sequence[Mapping[str, Any]]) -> str:
    """Differences as Markdown, one table per row that others are compared with; bold where the interval excludes 0."""
    blocks = []
    for against, benchmark in dict.fromkeys((c["against"], c["benchmark"]) for c in compared):
        mine = [c for c in compared if (c["against"], c["benchmark"]) == (against, benchmark)]
        keys = list(mine[0]["figures"])
        lines = [[f"less {against}", *(name_of(key).heading for key in keys)]]
        lines += [[c["row"], *(_difference(c["figures"].get(key), key) for key in keys)] for c in mine]
        blocks.append(f"{benchmark}\n\n{markdown_lines(lines)}")
    return "\n\n".join(blocks)


def _difference(entry: Mapping[str, float] | None, key: str) -> str:
    if entry is None:
        return ""
    digits = 3 if key.startswith("spearman") else 1
    text = f"{entry['difference']:+.{digits}f} [{entry['low']:+.{digits}f}, {entry['high']:+.{digits}f}]"
    return text if entry["low"] <= 0 <= entry["high"] else f"**{text}**"


_COSTS = (
    ("images", "images", 0), ("seconds", "training s", 0), ("mining_seconds", "mining s", 0),
    ("memory_gib", "peak GiB", 2),
)  # fmt: skip


def _remarks(outcomes: Sequence[Outcome]) -> list[str]:
    """What was left out and which published figures are of another protocol, each once, with the rows concerned."""
    rows_by_text: dict[str, list[str]] = {}
    for o in outcomes:
        reasons = [o.published(b)[1] for b in o.figures]
        lines = [text.splitlines()[-1] for text in o.remarks]
        files = [f"{b}: {path}" for b, paths in o.submissions.items() for path in paths if b not in o.figures]
        waiting = [f"to upload, then fill in scores.csv — {file}" for file in files]
        for text in dict.fromkeys([*filter(None, reasons), *lines, *waiting, *_doubts(o)]):
            rows_by_text.setdefault(text, []).append(o.row.name)
        if o.missing:
            rows_by_text.setdefault(f"not run: {o.missing}", []).append(o.row.name)
    return [
        f"{', '.join(rows) if len(rows) < 4 else f'{len(rows)} rows'}: {text}" for text, rows in rows_by_text.items()
    ]


def _doubts(outcome: Outcome) -> list[str]:
    """Published figures that are likely misprints, so that nobody looks for them."""
    misprints = [p for p in outcome.row.published if p.doubtful and p.benchmark in outcome.figures]
    return [f"published {p.benchmark} {p.key} {p.value:g} is likely a misprint and left out" for p in misprints]


def _number(values: Sequence[float], digits: int) -> str:
    return f"{np.mean(values):.{digits}f}" if len(values) else ""


def _cell(outcome: Outcome, benchmark: str, key: str) -> str:
    values = outcome.figures.get(benchmark, {}).get(key)
    if not values:
        return ""
    text = over_seeds(values, name_of(key).digits)
    printed = outcome.published(benchmark)[0].get(key)
    return f"{text} ({printed.value:.1f})" if printed else text
