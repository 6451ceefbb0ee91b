"""Figures for people: their names and the one meaning of ±; `covis.core.tables` writes text, Markdown and LaTeX.

± is always the half-width of the 95 % interval of the mean over seeds (Student's t), for three seeds or more; for two
seeds both values are shown. Intervals in square brackets are over the queries of one evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from covis.core.tables import TableRow, aligned, csv_table, latex_table, markdown_table, text_table
from covis.evaluation.statistics import FEWEST_SEEDS, LEVEL

if TYPE_CHECKING:
    from covis.evaluation import Evaluation
    from covis.evaluation.result import Figures


COMPARED_KS = (1, 5, 10)
"""Recall@k that tables show."""
PLUS_MINUS = "± is half of the 95 % interval of the mean over seeds (Student's t); two seeds show both values"


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
    "average_precision": Name("average precision over pairs"),
    "spearman_psi_distance": Name("Spearman ρ of ψ and distance", "", 2, lower_is_better=True),
}
"""Single figures of an evaluation, by key, in the order in which they are shown."""
_AMONG_SIMILAR = {"spearman_psi_distance_similar": Name("Spearman ρ where ψ > 0", "", 3, lower_is_better=True)}
"""Shown in tables only: how distances follow grades among pairs that share something."""
SEARCHED = {"any": "whole", "same": "the query's own group", "other": "other groups"}
"""Which part of the map a query is matched with, in words."""


def name_of(key: str) -> Name:
    """What any figure is called: `recall@5`, `map@5`, `localised@5 m, 10°`, or one of `NAMES`."""
    kind, _, at = key.partition("@")
    made = {"recall": f"Recall@{at.replace('_', ', ')}", "map": f"mAP@{at}", "localised": f"within {at}"}
    return NAMES.get(key) or _AMONG_SIMILAR.get(key) or Name(made.get(kind, key))


def mean_interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean, and the half-width of its interval over seeds by Student's t; None for a single seed."""
    from scipy.stats import t as student

    mean, n = float(np.mean(values)), len(values)
    if n < 2:
        return mean, None
    return mean, float(student.ppf((1 + LEVEL) / 2, n - 1) * np.std(values, ddof=1) / math.sqrt(n))


def over_seeds(values: Sequence[float], digits: int = 1) -> str:
    """`57.1 ± 1.3` over three seeds or more, `57.1 (56.0, 58.2)` over two, `57.1` for one."""
    mean, half = mean_interval(values)
    if half is None:
        return f"{mean:.{digits}f}"
    if len(values) < FEWEST_SEEDS:
        return f"{mean:.{digits}f} ({', '.join(f'{v:.{digits}f}' for v in values)})"
    return f"{mean:.{digits}f} ± {half:.{digits}f}"


def seeds(group: Sequence[Evaluation]) -> str:
    """The seeds of a group, or how many evaluations it has."""
    known = [str(e.subject["seed"]) for e in group if e.subject.get("seed") is not None]
    return ", ".join(known) if len(known) == len(group) else str(len(group))


def evaluation_text(evaluation: Evaluation) -> str:
    """One evaluation: what was scored on what, the recalls with intervals, and whatever else the protocol has."""
    f = evaluation.figures
    lines = [
        f"{evaluation.label} on {evaluation.benchmark} (protocol {evaluation.fingerprint})",
        f"  {f['queries']} queries, {f['database']} map images; relevant: {f['rule']}; map searched: {SEARCHED[f['groups']]}",
    ]
    if f["queries_without_positive"]:
        lines.append(_denominators(f))
    lines += [*_recalls(f), *_others(f), *_breakdown(f), *(f"  note: {note}" for note in f["notes"])]
    return "\n".join(lines)


def _denominators(f: Figures) -> str:
    left_out = f["denominator"] == "answerable"
    other = f.recall_over("all" if left_out else "answerable")
    first = min(other)
    count = f["queries_total"] if left_out else f["queries_total"] - f["queries_without_positive"]
    return (
        f"  {f['queries_without_positive']} of {f['queries_total']} queries have no positive and are "
        f"{'left out' if left_out else 'counted as misses'}; "
        f"over the other denominator ({count}) Recall@{first} is {other[first]:.1f} %"
    )


def _recalls(f: Figures) -> list[str]:
    intervals, precision = f.recall_interval, f.mean_average_precision
    rows = [
        {
            "k": k,
            "recall %": f"{value:.1f}",
            "95 % interval": "{:.1f} – {:.1f}".format(*intervals[k]),
            "mAP %": f"{precision[k]:.1f}",
        }
        for k, value in f.recall.items()
    ]
    stricter = [
        f"  recall within {name.replace('_', ', ')} ({part.queries} queries), %:"
        + "".join(f"  @{k} {value:.1f}" for k, value in part.recall.items() if k in COMPARED_KS)
        for name, part in f.stricter.items()
    ]
    return [*(f"  {line}" for line in text_table(rows).splitlines()), *stricter]


def _others(f: Figures) -> list[str]:
    lines = [
        f"  {name.text}{f', {name.unit}' if name.unit else ''}: {value:.2f}"
        for key, name in NAMES.items()
        if (value := f.single(key)) is not None
    ]
    limits = "".join(f"  {name} {value:.1f}" for name, value in f.localised.items())
    return [*lines, f"  localised, %:{limits}"] if limits else lines


def _breakdown(f: Figures) -> list[str]:
    lines = []
    for label, parts in f.breakdown.items():
        rows = []
        for value, part in parts.items():
            row: dict[str, Any] = {label: value or "(unknown)", "queries": part.queries}
            row |= {name_of(f"recall@{k}").heading: f"{v:.1f}" for k, v in part.recall.items() if k in COMPARED_KS}
            rows.append(row | {name: f"{v:.1f}" for name, v in part.localised.items()})
        lines += [f"  {line}" for line in text_table(sorted(rows, key=len, reverse=True)).splitlines()]
    return lines


Writer = Callable[[Sequence[TableRow], Mapping[str, bool]], str]
TABLE_FORMATS: dict[str, Writer] = {
    "text": lambda rows, _: text_table(rows),
    "markdown": markdown_table,
    "latex": latex_table,
    "csv": lambda rows, _: csv_table(rows),
}
"""How `covis compare` can write its tables: rows, and columns whose best is bold → whether lower is better."""
BEST_RECALL = {name_of(f"recall@{k}").heading: False for k in COMPARED_KS}
"""Columns whose best is bold."""


def beside_table(line: str, dress: str) -> str:
    """A line above or below a table; in LaTeX it is a comment, so that the whole output can be pasted."""
    return f"% {line}" if dress == "latex" else line


def comparison_text(result: Mapping[str, Any], dress: str = "text") -> str:
    """A comparison: one table per protocol, then what differs between the subjects."""
    blocks = ["\n".join(_comparison(entry, dress)) for entry in result["comparisons"]]
    alone = [beside_table(f"alone, with nothing to compare: {name}", dress) for name in result["alone"]]
    return "\n\n".join([*blocks, *alone])


def _comparison(entry: Mapping[str, Any], dress: str) -> list[str]:
    rows = []
    for row in entry["rows"]:
        line: dict[str, Any] = {"": row["label"], "seeds": len(row["seeds"])}
        line |= {name_of(f"recall@{k}").heading: over_seeds(values) for k, values in row["recalls"].items()}
        for k, test in row["against_first"].items():
            mark = "*" if test["significant"] else " "
            line[f"Δ@{k}"] = (
                f"{test['difference']:+.1f} [{test['low']:+.1f}, {test['high']:+.1f}] p={test['p_value']:.3g}{mark}"
            )
        rows.append(line)
    counts = f"{entry['queries']} queries, {entry['database']} map images"
    lines = [
        beside_table(f"{entry['benchmark']} (protocol {entry['fingerprint']}): {counts}", dress),
        TABLE_FORMATS[dress](aligned(rows, ""), BEST_RECALL),
        *(beside_table(note, dress) for note in comparison_notes(entry)),
    ]
    differing = [
        {"what differs": name, **{row["label"]: _short(v) for row, v in zip(entry["rows"], values, strict=True)}}
        for name, values in entry["differences"].items()
        if name != "label"
    ]
    return [*lines, TABLE_FORMATS[dress](differing, {})] if differing else lines


def comparison_notes(entry: Mapping[str, Any]) -> list[str]:
    """What the differences of a comparison mean, and which would have been seen."""
    tests = [(row["label"], k, t) for row in entry["rows"] for k, t in row["against_first"].items()]
    if not tests:
        return ["all are networks of one method (only seed or machine differ); there is nothing to compare it with"]
    level = f"{100 * entry['level']:.0f} % interval"
    notes = []
    if any(t["of_methods"] for _, _, t in tests):
        notes.append(
            f"Δ against the first, {level} over seeds and queries, * significant (Student's t, Holm over the methods)"
        )
        notes.append(
            f"power: with these seeds and queries, differences in Recall@1 below {entry['detectable']:.1f} points "
            "would often be missed"
        )
    few = [t for _, _, t in tests if not t["of_methods"]]
    if few:
        notes.append(
            f"fewer than {FEWEST_SEEDS} seeds: Δ is of these networks ({level} over queries), not of their methods; "
            "no star"
        )
    differing: dict[str, list[str]] = {}
    for label, k, test in tests:
        if test["networks_differ"]:
            differing.setdefault(label, []).append(k)
    first = entry["rows"][0]["label"]
    return notes + [
        f"{first} and {label}: these two networks differ on these queries (Recall@{', @'.join(ks)})"
        for label, ks in differing.items()
    ]


def _short(value: Any) -> str:
    text = "–" if value is None else str(value)
    return text if len(text) <= 40 else text[:39] + "…"
