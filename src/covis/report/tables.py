"""Tables of a report: recall with intervals and tests, other metrics and parts of the queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from covis.core.tables import aligned
from covis.evaluation import Evaluation
from covis.evaluation.compare import compare_methods
from covis.evaluation.render import BEST_RECALL, NAMES, PLUS_MINUS, comparison_notes, name_of, over_seeds, seeds
from covis.evaluation.render import COMPARED_KS as KS
from covis.report.study import Study
from covis.web.page import NOTE, Section, figures_row, html_table


def recall(study: Study, drawings: list[str]) -> Section:
    """Recall@k with its interval or spread over runs, tested against the first name; curves below."""
    tests, notes = _tests(study)
    rows = []
    for name, group in study.evaluations.items():
        row: dict[str, Any] = {"model": name, "seeds": seeds(group), "dims": group[0].figures.get("dim") or ""}
        for k in KS:
            low, high = group[0].figures.recall_interval[k]
            interval = "" if len(group) > 1 else f" [{low:.1f}, {high:.1f}]"
            row[name_of(f"recall@{k}").heading] = over_seeds([e.recall[k] for e in group]) + interval
        rows.append(row | tests.get(name, {}))
    repeated = any(len(group) > 1 for group in study.evaluations.values())
    spread = [f"{PLUS_MINUS}; bands are the range over seeds"] if repeated else []
    note = NOTE.format("; ".join([*spread, f"in brackets: {study.first.figures['interval']}", *notes]))
    return Section("Recall", html_table(rows, "recall", best=BEST_RECALL) + note + figures_row(drawings), "recall")


def _tests(study: Study) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Cells with the difference of each name to the first, and what they mean; empty for one name."""
    if len(study.evaluations) < 2:
        return {}, []
    compared = compare_methods(study.evaluations)
    first, *others = compared["rows"]
    column = f"Δ Recall@{KS[0]} against {first['label']}"
    cells = {first["label"]: {column: ""}}
    for row in others:
        test = row["against_first"][str(KS[0])]
        mark = "*" if test["significant"] else ""
        cells[row["label"]] = {column: f"{test['difference']:+.1f} (p = {test['p_value']:.2g}){mark}"}
    return cells, comparison_notes(compared)


def further(study: Study) -> Section:
    """Every other figure: of rankings, of poses, of accepted matches, of graded similarity."""
    rows: list[dict[str, Any]] = []
    for name, group in study.evaluations.items():
        figures = [_others(e) for e in group]
        shared = [key for key in figures[0] if all(key in values for values in figures)]
        cells = {key: over_seeds([values[key] for values in figures], name_of(key).digits) for key in shared}
        rows.append({"model": name} | {name_of(key).heading: cell for key, cell in cells.items()})
    best = {name.heading: name.lower_is_better for name in NAMES.values()}
    return Section("Other metrics", html_table(aligned(rows), "figures", best=best), "figures")


def _others(evaluation: Evaluation) -> dict[str, float]:
    f = evaluation.figures
    return {
        **{f"map@{k}": f.mean_average_precision[k] for k in KS if k in f.mean_average_precision},
        **{key: value for key in NAMES if (value := f.single(key)) is not None},
        **_named("localised", f.localised),
    }


def _named(kind: str, values: Mapping[Any, float]) -> dict[str, float]:
    return {f"{kind}@{at}": value for at, value in values.items()}


def parts(study: Study) -> Section | None:
    """Figures by condition, city or surroundings, one table per label."""
    first = study.first.figures.breakdown
    if not first:
        return None
    body = "".join(html_table(_part_rows(study.evaluations, label), f"parts-{label}") for label in first)
    return Section(f"By {' and '.join(first)}", body, "parts")


def _part_rows(evaluations: Mapping[str, Sequence[Evaluation]], label: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for part in next(iter(evaluations.values()))[0].figures.breakdown[label]:
        for name, group in evaluations.items():
            entries = [e.figures.breakdown[label][part] for e in group]
            recalls = [{k: entry.recall[k] for k in entry.recall if k in KS} for entry in entries]
            figures = [
                _named("recall", values) | _named("localised", entry.localised)
                for values, entry in zip(recalls, entries, strict=True)
            ]
            row: dict[str, Any] = {label: part or "(unknown)", "queries": entries[0].queries, "model": name}
            rows.append(row | {name_of(key).heading: over_seeds([v[key] for v in figures]) for key in figures[0]})
    return aligned(rows)
