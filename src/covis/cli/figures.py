"""Evaluations and comparisons as text for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from covis.evaluation.render import COMPARED_KS, NAMES, SEARCHED
from covis.tables import aligned, text_table

if TYPE_CHECKING:
    from covis.evaluation import Evaluation

SHOWN_PUBLISHED = 24
"""Rows of published figures that the terminal shows; `--json` has all."""


def describe(evaluation: Evaluation, published: bool = False) -> str:
    """One evaluation: what was scored on what, the recalls with intervals, and whatever else the protocol has."""
    f = evaluation.figures
    lines = [
        f"{evaluation.label} on {f['benchmark']} (protocol {f['fingerprint']})",
        f"  {f['queries']} queries, {f['database']} map images; relevant: {f['rule']}; map searched: {SEARCHED[f['groups']]}",
    ]
    if f["queries_without_positive"]:
        lines.append(_denominators(f))
    lines += [*_recalls(f), *_others(f), *_breakdown(f), *(f"  note: {note}" for note in f["notes"])]
    return "\n".join([*lines, *(_published(evaluation) if published else [])])


def _denominators(f: Mapping[str, Any]) -> str:
    over = {"all": ("all", "recall_over_answerable"), "answerable": ("with a positive", "recall_over_all")}
    _, other = over[f["denominator"]]
    first = next(iter(f[other]))
    count = (
        f["queries_total"] if f["denominator"] == "answerable" else f["queries_total"] - f["queries_without_positive"]
    )
    return (
        f"  {f['queries_without_positive']} of {f['queries_total']} queries have no positive and are "
        f"{'left out' if f['denominator'] == 'answerable' else 'counted as misses'}; "
        f"over the other denominator ({count}) R@{first} is {f[other][first]:.1f} %"
    )


def _recalls(f: Mapping[str, Any]) -> list[str]:
    rows = [
        {
            "k": k,
            "recall %": f"{value:.1f}",
            "95 % interval": "{:.1f} – {:.1f}".format(*f["recall_interval"][k]),
            "mAP %": f"{f['map'][k]:.1f}",
        }
        for k, value in f["recall"].items()
    ]
    return [f"  {line}" for line in text_table(rows).splitlines()]


def _others(f: Mapping[str, Any]) -> list[str]:
    lines = [
        f"  {name.text}{f', {name.unit}' if name.unit else ''}: {f[key]:.2f}"
        for key, name in NAMES.items()
        if f.get(key) is not None
    ]
    limits = "".join(f"  {name} {value:.1f}" for name, value in f.get("localised", {}).items())
    return [*lines, f"  localised, %:{limits}"] if limits else lines


def _breakdown(f: Mapping[str, Any]) -> list[str]:
    lines = []
    for label, parts in f.get("breakdown", {}).items():
        rows = []
        for part, entry in parts.items():
            row = {label: part or "(unknown)", "queries": entry["queries"]}
            row |= {f"R@{k}": f"{v:.1f}" for k, v in entry.get("recall", {}).items() if int(k) in COMPARED_KS}
            rows.append(row | {name: f"{v:.1f}" for name, v in entry.get("localised", {}).items()})
        lines += [f"  {line}" for line in text_table(sorted(rows, key=len, reverse=True)).splitlines()]
    return lines


def _published(evaluation: Evaluation) -> list[str]:
    from covis.evaluation.published import SOURCE, beside

    rows = beside(evaluation)
    if not rows:
        return ["  no published figures of this protocol and these counts"]
    keys = ("method", "whitened", "dim", "figure", "published", "ours", "difference", "source")
    shown = [{key: row[key] for key in keys} for row in rows[:SHOWN_PUBLISHED]]
    more = [f"  … and {len(rows) - SHOWN_PUBLISHED} more (--json)"] if len(rows) > SHOWN_PUBLISHED else []
    caveats = sorted({c for row in rows for c in row["caveats"]})
    return [
        f"  published: {SOURCE}",
        *(f"  {line}" for line in text_table(shown).splitlines()),
        *more,
        *(f"  caveat: {caveat}" for caveat in caveats),
    ]


def describe_comparison(result: Mapping[str, Any]) -> str:
    """A comparison: one table a protocol, then what differs between the subjects."""
    blocks = ["\n".join(_comparison(entry)) for entry in result["comparisons"]]
    alone = [f"alone, with nothing to compare: {name}" for name in result["alone"]]
    return "\n\n".join([*blocks, *alone])


def _comparison(entry: Mapping[str, Any]) -> list[str]:
    rows = []
    for row in entry["rows"]:
        line: dict[str, Any] = {"": row["label"]}
        for k, value in row["recall"].items():
            line[f"R@{k} %"] = f"{value:.1f}"
        for k, test in row["against_first"].items():
            mark = "*" if test["significant"] else " "
            line[f"Δ@{k}"] = (
                f"{test['difference']:+.1f} [{test['low']:+.1f}, {test['high']:+.1f}] p={test['p_value']:.3g}{mark}"
            )
        rows.append(line)
    lines = [
        f"{entry['benchmark']} (protocol {entry['fingerprint']}): {entry['queries']} queries, {entry['database']} map images",
        text_table(aligned(rows, "")),
        f"Δ against the first, {entry['level']:.0%} interval, * significant (paired test, Holm over the models)",
    ]
    differing = [
        {"what differs": name, **{row["label"]: _short(v) for row, v in zip(entry["rows"], values, strict=True)}}
        for name, values in entry["differences"].items()
        if name != "label"
    ]
    return [*lines, text_table(differing)] if differing else lines


def _short(value: Any) -> str:
    text = "–" if value is None else str(value)
    return text if len(text) <= 40 else text[:39] + "…"
