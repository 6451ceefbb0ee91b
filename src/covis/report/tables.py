"""The tables of a report: recalls with intervals and tests, every other figure, parts, published ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from covis.evaluation import Evaluation
from covis.evaluation.compare import compare, seeds
from covis.evaluation.published import SOURCE, beside
from covis.evaluation.render import COMPARED_KS as KS
from covis.evaluation.render import NAMES, PLUS_MINUS, name_of, over_seeds
from covis.report.page import Section, figures_row, table, text
from covis.report.views import Groups
from covis.tables import aligned


def recalls(evaluations: Groups, drawings: list[str]) -> Section:
    """Recall@k with its interval or spread over runs, tested against the first name; curves below."""
    tests = _tests(evaluations)
    rows = []
    for name, found in evaluations.items():
        row: dict[str, Any] = {"model": name, "seeds": seeds(found), "dims": found[0].figures.dim or ""}
        for k in KS:
            value = over_seeds([e.recall[k] for e in found])
            row[name_of(f"recall@{k}").heading] = value + _interval(found[0], k, len(found))
        rows.append(row | tests.get(name, {}))
    notes = [f"{PLUS_MINUS}; bands are the range over seeds"] if _repeated(evaluations) else []
    notes += [f"in brackets: {found[0].figures['interval']}" for found in list(evaluations.values())[:1]]
    notes += ["* significant at 5 % (paired test, Holm over the models)"] if tests else []
    told = f'<p class="note">{text("; ".join(notes))}</p>'
    return Section(
        "Recall",
        table(rows, "recall", best={name_of(f"recall@{k}").heading: False for k in KS}) + told + figures_row(drawings),
        "recall",
    )


def _interval(evaluation: Evaluation, k: int, runs: int) -> str:
    return "" if runs > 1 else " [{:.1f}, {:.1f}]".format(*evaluation.figures.recall_interval[k])


def _repeated(evaluations: Groups) -> bool:
    return any(len(found) > 1 for found in evaluations.values())


def _tests(evaluations: Groups) -> dict[str, dict[str, str]]:
    """For each name but the first: how far it is from the first, where each name has one evaluation."""
    if len(evaluations) < 2 or _repeated(evaluations):
        return {}
    names = list(evaluations)
    [compared] = compare([found[0] for found in evaluations.values()])["comparisons"]
    column = f"Δ Recall@{KS[0]} against {names[0]}"
    told = {names[0]: {column: ""}}
    for name, row in zip(names[1:], compared["rows"][1:], strict=True):
        test = row["against_first"][str(KS[0])]
        mark = "*" if test["significant"] else ""
        told[name] = {column: f"{test['difference']:+.1f} (p = {test['p_value']:.2g}){mark}"}
    return told


def further(evaluations: Groups) -> Section:
    """Every other figure: of rankings, of poses, of accepted matches, of graded similarity."""
    rows: list[dict[str, Any]] = []
    for name, found in evaluations.items():
        columns: dict[str, Callable[[Evaluation], Any]] = {f"map@{k}": _map(k) for k in KS}
        columns |= {key: _plain(key) for key in NAMES}
        columns |= {f"localised@{limit}": _within(limit) for limit in found[0].figures.localised}
        values = {key: [read(e) for e in found] for key, read in columns.items()}
        cells = {name_of(key).heading: over_seeds(v, name_of(key).digits) for key, v in values.items() if None not in v}
        rows.append({"model": name, **cells})
    best = {name.heading: name.lower_is_better for name in NAMES.values()}
    return Section("Other metrics", table(aligned(rows), "figures", best=best), "figures")


def _map(k: int) -> Callable[[Evaluation], Any]:
    return lambda e: e.figures.mean_average_precision.get(k)


def _plain(key: str) -> Callable[[Evaluation], Any]:
    return lambda e: e.figures.single(key)


def _within(limit: str) -> Callable[[Evaluation], Any]:
    return lambda e: e.figures.localised.get(limit)


def parts(evaluations: Groups) -> Section | None:
    """Figures by condition, city or surroundings, a table each label."""
    first = next(iter(evaluations.values()))[0].figures.breakdown
    if not first:
        return None
    body = "".join(table(_part_rows(evaluations, label), f"parts-{label}") for label in first)
    return Section(f"By {' and '.join(first)}", body, "parts")


def _part_rows(evaluations: Groups, label: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for part in next(iter(evaluations.values()))[0].figures.breakdown[label]:
        for name, found in evaluations.items():
            entries = [e.figures.breakdown[label][part] for e in found]
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


def published(evaluations: Groups) -> Section | None:
    """The method's published figures beside ours, where the protocol is the same: a row each published method."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    caveats: list[str] = []
    for name, found in evaluations.items():
        for entry in beside(found[0]):
            facts = {"ours": name, "published": entry["method"], "of": entry["part"] or "all", **_made(entry)}
            row = rows.setdefault(tuple(facts.values()), facts)
            cell = f"{entry['published']:g} → {entry['ours']:.1f} ({entry['difference']:+.1f})"
            row[_FIGURE.get(entry["figure"].partition("@")[0], "") + entry["figure"].partition("@")[2]] = cell
            caveats += [c for c in entry["caveats"] if c not in caveats]
    if not rows:
        return None
    body = table(aligned(list(rows.values())), "published")
    notes = "".join(f"<li>{text(c)}</li>" for c in caveats)
    lead = f'<p class="note">published → ours (difference), percent; {text(SOURCE)}</p>'
    return Section("Published, ours, difference", f'{lead}{body}<ul class="note">{notes}</ul>', "published")


_FIGURE = {"recall": "Recall@", "localised": "within ", "average_precision": "average precision"}


def _made(entry: Mapping[str, Any]) -> dict[str, Any]:
    whitened = {None: "", True: "whitened", False: "plain"}[entry["whitened"]]
    return {"dims": entry["dim"] or "", "made": whitened, "source": entry["source"]}
