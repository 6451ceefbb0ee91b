"""Evaluations side by side: what differs between them, and whether the difference could be chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.core import artifacts
from covis.core.errors import InputError
from covis.evaluation.configurations import unique_names
from covis.evaluation.render import COMPARED_KS
from covis.evaluation.result import Evaluation
from covis.evaluation.statistics import LEVEL, holm, paired_test

_PLACES = ("path", "folder")
"""Facts that say where something lies, not what it is."""


def compare(evaluations: Sequence[Evaluation]) -> dict[str, Any]:
    """Ranks evaluations of one protocol, each against the first; several protocols are compared one by one.

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
    return {"comparisons": [_compared(g) for g in protocols.values() if len(g) > 1], "alone": alone}


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


def _compared(group: Sequence[Evaluation]) -> dict[str, Any]:
    first = group[0]
    return {
        "benchmark": first.benchmark,
        "fingerprint": first.fingerprint,
        "queries": first.figures.queries,
        "database": first.figures.database,
        "level": LEVEL,
        "rows": _rows(group),
        "best": max(group, key=lambda e: e.recall[min(e.recall)]).label,
        "differences": subject_differences([dict(e.subject) for e in group]),
    }


def _rows(group: Sequence[Evaluation]) -> list[dict[str, Any]]:
    """One row per evaluation: its figures, and the test of each k against the first, corrected for several models."""
    first = group[0]
    ks = [k for k in COMPARED_KS if all(k in e.recall for e in group)]
    rows: list[dict[str, Any]] = [
        {
            "label": name,
            "recall": {str(k): e.recall[k] for k in ks},
            "interval": {str(k): list(e.figures.recall_interval[k]) for k in ks},
            "against_first": {},
        }
        for e, name in zip(group, unique_names(group), strict=True)
    ]
    for k in ks:
        tests = [paired_test(*_outcomes(first, e, k)) for e in group[1:]]
        for row, test, p in zip(rows[1:], tests, holm([t.p_value for t in tests]), strict=True):
            percent = {
                key: 100.0 * value for key, value in asdict(test).items() if key in ("difference", "low", "high")
            }
            entry = {**asdict(test), **percent, "p_value": float(p), "significant": bool(p < 1.0 - LEVEL)}
            row["against_first"][str(k)] = entry
    return rows


def _outcomes(
    first: Evaluation, second: Evaluation, k: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[Any] | None]:
    counted = first.counted
    walks = first.protocol.get("groups") == "other"
    clusters = np.asarray(first.arrays["query_group"])[counted] if walks else None
    if clusters is not None and len(np.unique(clusters)) < 2:
        clusters = None
    return first.hits(k)[counted], second.hits(k)[counted], clusters


def subject_differences(facts: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Values that differ between the `facts`, by dotted name: one for each of the `facts`, None where absent."""
    return {name: values for name, values in artifacts.differences(facts).items() if name not in _PLACES}
