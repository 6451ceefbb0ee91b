"""Methods side by side: what differs between them, and whether the difference could be chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.core import artifacts
from covis.core.errors import InputError
from covis.evaluation.configurations import grouped
from covis.evaluation.differences import place_codes
from covis.evaluation.render import COMPARED_KS
from covis.evaluation.result import Evaluation
from covis.evaluation.statistics import LEVEL, holm, method_difference

_INCIDENTAL = ("path", "folder", "seed")
"""Facts that say where something lies or which network of a method it is, not what it is."""


def compare(evaluations: Sequence[Evaluation]) -> dict[str, Any]:
    """Ranks the methods of one protocol, each against the first; several protocols are compared one by one.

    Evaluations that differ only in the seed (or where and by what versions they were made) are networks of one method.

    Refuses evaluations whose benchmarks share a name but not a protocol, and sets in which no two can be compared.
    """
    if len(evaluations) < 2:
        raise InputError("only one evaluation was given; give two or more")
    protocols: dict[str, list[Evaluation]] = {}
    for evaluation in evaluations:
        protocols.setdefault(evaluation.fingerprint, []).append(evaluation)
    _refuse_namesakes(protocols)
    if all(len(group) < 2 for group in protocols.values()):
        raise InputError(
            f"these figures are of different protocols ({', '.join(sorted(e.benchmark for e in evaluations))}) and "
            "cannot be ranked; evaluate the models on the same benchmark"
        )
    alone = [f"{g[0].label} on {g[0].benchmark}" for g in protocols.values() if len(g) == 1]
    return {"comparisons": [compare_methods(grouped(g)) for g in protocols.values() if len(g) > 1], "alone": alone}


def _refuse_namesakes(protocols: Mapping[str, Sequence[Evaluation]]) -> None:
    seen: dict[str, Evaluation] = {}
    for group in protocols.values():
        first = group[0]
        if first.benchmark in seen:
            other = seen[first.benchmark]
            what = subject_differences([_protocol(other), _protocol(first)])
            differences = "; ".join(f"{key}: {a} against {b}" for key, (a, b) in list(what.items())[:3])
            raise InputError(
                f"{other.label} and {first.label} were both scored on {first.benchmark!r}, but not on the same protocol "
                f"({differences or 'different relevant pairs'}); evaluate both on the same data with the same covis"
            )
        seen[first.benchmark] = first


def _protocol(evaluation: Evaluation) -> dict[str, Any]:
    counts = {k: evaluation.figures[k] for k in ("queries", "database", "relevant_pairs") if k in evaluation.figures}
    return {**counts, **evaluation.protocol}


def compare_methods(methods: Mapping[str, Sequence[Evaluation]]) -> dict[str, Any]:
    """The methods of one protocol, each against the first: names → evaluations of their networks."""
    rows = _method_rows(methods)
    groups = list(methods.values())
    first, k = groups[0][0], min(groups[0][0].recall)
    detectable = [t["detectable"] for row in rows for t in list(row["against_first"].values())[:1] if t["of_methods"]]
    return {
        "benchmark": first.benchmark,
        "fingerprint": first.fingerprint,
        "queries": first.figures["queries"],
        "database": first.figures["database"],
        "level": LEVEL,
        "rows": rows,
        "best": max(rows, key=lambda row: row["recall"].get(str(k), 0.0))["label"],
        "detectable": max(detectable, default=None),
        "differences": subject_differences([dict(group[0].subject) for group in groups]),
    }


def _method_rows(methods: Mapping[str, Sequence[Evaluation]]) -> list[dict[str, Any]]:
    """One row per method: its figures, and the test of each k against the first, corrected for several methods."""
    groups = list(methods.values())
    ks = [k for k in COMPARED_KS if all(k in e.recall for group in groups for e in group)]
    rows: list[dict[str, Any]] = [
        {
            "label": name,
            "seeds": [e.subject.get("seed") for e in group],
            "recall": {str(k): float(np.mean([e.recall[k] for e in group])) for k in ks},
            "recalls": {str(k): [e.recall[k] for e in group] for k in ks},
            "against_first": {},
        }
        for name, group in methods.items()
    ]
    first = groups[0]
    counted, clusters = first[0].counted, _clusters(first[0])
    for k in ks:
        outcomes = [100.0 * np.stack([e.hits(k)[counted] for e in group]) for group in groups]
        tests = [method_difference(outcomes[0], other, clusters) for other in outcomes[1:]]
        for row, test, p in zip(rows[1:], tests, holm([t.p_value for t in tests]), strict=True):
            chance = bool(p >= 1.0 - LEVEL)
            row["against_first"][str(k)] = asdict(test) | {
                "p_value": float(p),
                "of_methods": test.of_methods,
                "significant": test.of_methods and not chance,
                "networks_differ": not test.of_methods and not chance,
            }
    return rows


def _clusters(evaluation: Evaluation) -> NDArray[Any]:
    """(Q,) what varies together among the counted queries: a walk where a walk's queries are matched with others'
    photos, else a place."""
    walks = np.asarray(evaluation.arrays["query_group"])
    if evaluation.protocol.get("groups") == "other" and len(np.unique(walks[evaluation.counted])) > 1:
        return np.asarray(walks[evaluation.counted])
    return np.asarray(place_codes(evaluation)[evaluation.counted])


def subject_differences(facts: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Values that differ between the `facts`, by dotted name: one for each of the `facts`, None where absent."""
    return {name: values for name, values in artifacts.differences(facts).items() if name not in _INCIDENTAL}
