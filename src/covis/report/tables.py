"""Tables of a report: recall with intervals and tests, other metrics and parts of the queries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from covis.core.tables import aligned
from covis.evaluation import Evaluation
from covis.evaluation.compare import compare_methods
from covis.evaluation.render import BEST_RECALL, NAMES, PLUS_MINUS, comparison_notes, name_of, over_seeds, seeds
from covis.evaluation.render import COMPARED_KS as KS
from covis.report.inputs import EvaluationGroups
from covis.web.page import NOTE, Section, figures_row, html_table


def recall_table(evaluations: EvaluationGroups, drawings: list[str]) -> Section:
    """Recall@k with its interval or spread over runs, tested against the first name; curves below."""
    tests, test_notes = _tests(evaluations)
    rows = []
    for name, group in evaluations.items():
        row: dict[str, Any] = {"model": name, "seeds": seeds(group), "dims": group[0].figures.dim or ""}
        for k in KS:
            value = over_seeds([e.recall[k] for e in group])
            row[name_of(f"recall@{k}").heading] = value + _interval(group[0], k, len(group))
        rows.append(row | tests.get(name, {}))
    notes = [f"{PLUS_MINUS}; bands are the range over seeds"] if _repeated(evaluations) else []
    notes += [f"in brackets: {group[0].figures['interval']}" for group in list(evaluations.values())[:1]]
    notes += test_notes
    note = NOTE.format("; ".join(notes))
    return Section(
        "Recall",
        html_table(rows, "recall", best=BEST_RECALL) + note + figures_row(drawings),
        "recall",
    )


def _interval(evaluation: Evaluation, k: int, runs: int) -> str:
    return "" if runs > 1 else " [{:.1f}, {:.1f}]".format(*evaluation.figures.recall_interval[k])


def _repeated(evaluations: EvaluationGroups) -> bool:
    return any(len(group) > 1 for group in evaluations.values())


def _tests(evaluations: EvaluationGroups) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Cells with the difference of each name to the first, and what they mean; empty for one name."""
    if len(evaluations) < 2:
        return {}, []
    compared = compare_methods(evaluations)
    first, *others = compared["rows"]
    column = f"Δ Recall@{KS[0]} against {first['label']}"
    cells = {first["label"]: {column: ""}}
    for row in others:
        test = row["against_first"][str(KS[0])]
        mark = "*" if test["significant"] else ""
        cells[row["label"]] = {column: f"{test['difference']:+.1f} (p = {test['p_value']:.2g}){mark}"}
    return cells, comparison_notes(compared)


def further(evaluations: EvaluationGroups) -> Section:
    """Every other figure: of rankings, of poses, of accepted matches, of graded similarity."""
    rows: list[dict[str, Any]] = []
    for name, group in evaluations.items():
        columns: dict[str, Callable[[Evaluation], Any]] = {f"map@{k}": _average_precision(k) for k in KS}
        columns |= {key: _single(key) for key in NAMES}
        columns |= {f"localised@{limit}": _within(limit) for limit in group[0].figures.localised}
        values = {key: [read(e) for e in group] for key, read in columns.items()}
        cells = {name_of(key).heading: over_seeds(v, name_of(key).digits) for key, v in values.items() if None not in v}
        rows.append({"model": name, **cells})
    best = {name.heading: name.lower_is_better for name in NAMES.values()}
    return Section("Other metrics", html_table(aligned(rows), "figures", best=best), "figures")


def _average_precision(k: int) -> Callable[[Evaluation], Any]:
    return lambda e: e.figures.mean_average_precision.get(k)


def _single(key: str) -> Callable[[Evaluation], Any]:
    return lambda e: e.figures.single(key)


def _within(limit: str) -> Callable[[Evaluation], Any]:
    return lambda e: e.figures.localised.get(limit)


def parts(evaluations: EvaluationGroups) -> Section | None:
    """Figures by condition, city or surroundings, one table per label."""
    first = next(iter(evaluations.values()))[0].figures.breakdown
    if not first:
        return None
    body = "".join(html_table(_part_rows(evaluations, label), f"parts-{label}") for label in first)
    return Section(f"By {' and '.join(first)}", body, "parts")


def _part_rows(evaluations: EvaluationGroups, label: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for part in next(iter(evaluations.values()))[0].figures.breakdown[label]:
        for name, group in evaluations.items():
            entries = [e.figures.breakdown[label][part] for e in group]
            row: dict[str, Any] = {label: part or "(unknown)", "queries": entries[0].queries, "model": name}
            row |= {
                name_of(f"recall@{k}").heading: over_seeds([entry.recall[k] for entry in entries])
                for k in entries[0].recall
                if k in KS
            }
            row |= {
                name_of(f"localised@{limit}").heading: over_seeds([entry.localised[limit] for entry in entries])
                for limit in entries[0].localised
            }
            rows.append(row)
    return aligned(rows)
