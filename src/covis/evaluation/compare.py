"""Evaluations side by side: what differs between them, and whether the difference could be chance."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.core import artifacts
from covis.core.arrays import Floats
from covis.core.artifacts import flat
from covis.core.errors import InputError
from covis.evaluation.metrics import LEVEL, holm, paired_test
from covis.evaluation.render import COMPARED_KS
from covis.evaluation.result import Evaluation

_OF_A_RUN = ("label", "fingerprint", "seed", "path", "folder", "versions", "code", "store", "data")
"""What differs between the seeds of one configuration, or says where something lies."""
_FITTED = ("rank", "samples", "shrinkage")
"""Values that a fit determines."""
_SEED = re.compile(r"(?:(?P<row>.*?)[-_/ ])?seed[-_ ]?\d+")


def configuration(evaluation: Evaluation) -> dict[str, Any]:
    """Everything that decides what was evaluated except the seed; a model without a recipe is its own configuration."""
    subject = dict(evaluation.subject)
    kept = {key: value for key, value in subject.items() if key not in _OF_A_RUN}
    for key in ("whitening", "model_whitening"):
        if isinstance(kept.get(key), Mapping):
            kept[key] = {k: v for k, v in kept[key].items() if k not in _FITTED}
    kept["protocol"] = evaluation.fingerprint
    if not kept.get("recipe") or subject.get("seed") is None:
        kept["model"] = subject.get("fingerprint") or subject.get("label")
    return kept


def base_name(evaluation: Evaluation) -> str:
    """What the configuration is called: the run's row or folder without its seed, and the variant."""
    label, comma, variant = evaluation.label.partition(", ")
    match = _SEED.fullmatch(label)
    if match:
        label = match["row"] or _row(Path(str(evaluation.subject.get("folder", "")))) or label
    return f"{label}{comma}{variant}"


def _row(folder: Path) -> str:
    """The folder above `seed-N/model`."""
    run = folder.parent if folder.name == "model" else folder
    return run.parent.name


def grouped(evaluations: Sequence[Evaluation]) -> dict[str, list[Evaluation]]:
    """Evaluations by the name of their configuration; those under one name are its seeds."""
    groups: list[list[Evaluation]] = []
    settings: list[dict[str, Any]] = []
    for evaluation in evaluations:
        own = configuration(evaluation)
        at = next((i for i, other in enumerate(settings) if other == own), -1)
        if at < 0:
            settings.append(own)
            groups.append([evaluation])
        elif all(_model(evaluation) != _model(e) for e in groups[at]):
            groups[at].append(evaluation)
    return dict(zip(_names(groups, settings), groups, strict=True))


def _model(evaluation: Evaluation) -> object:
    return evaluation.subject.get("fingerprint"), evaluation.subject.get("seed")


def unique_names(evaluations: Sequence[Evaluation]) -> list[str]:
    """A unique name for each evaluation: that of its configuration, with the seed where there are several."""
    names_by_id: dict[int, str] = {}
    for name, group in grouped(evaluations).items():
        for evaluation in group:
            seed = evaluation.subject.get("seed")
            names_by_id[id(evaluation)] = f"{name}, seed {seed}" if len(group) > 1 and seed is not None else name
    named = [names_by_id.get(id(evaluation), evaluation.label) for evaluation in evaluations]
    return [f"{name} ({named[:i].count(name) + 1})" if named.count(name) > 1 else name for i, name in enumerate(named)]


def _names(groups: Sequence[Sequence[Evaluation]], settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Base names, followed by what differs where two configurations share one."""
    plain = [base_name(group[0]) for group in groups]
    out = []
    for i, name in enumerate(plain):
        alike = [j for j, other in enumerate(plain) if other == name]
        if len(alike) == 1:
            out.append(name)
            continue
        difference = _difference(settings[i], [settings[j] for j in alike if j != i])
        out.append(f"{name} ({difference})" if difference else f"{name} ({alike.index(i) + 1})")
    return [n if out.count(n) == 1 else f"{n} #{out[:i].count(n) + 1}" for i, n in enumerate(out)]


def _difference(own: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> str:
    """The setting that best distinguishes a configuration from its namesakes, such as `loss GeneralizedContrastive`."""
    mine, theirs = flat(own), [flat(other) for other in others]
    differing = [key for key, value in mine.items() if any(other.get(key) != value for other in theirs)]
    differing.sort(key=lambda key: (not key.startswith("recipe.loss"), not key.startswith("recipe."), len(key)))
    short = [key for key in differing if len(str(mine[key])) <= 40 and key not in ("model", "protocol")]
    if not short:
        return ""
    return f"{short[0].removeprefix('recipe.').removesuffix('.name').removesuffix('.type')} {mine[short[0]]}"


# Evaluations side by side: what differs between them, and whether the difference could be chance.


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


# Over queries and seeds

ORDER_FIGURES = ("ndcg@10", "median_error_m", "spearman_psi_distance_similar")
"""Figures of how well results are ordered by overlap; larger is better for the first, smaller for the others."""
SQUARE_M = 25.0
"""Side of the squares by which queries are drawn: all queries in one square are drawn together."""
_DRAWS = 1000


def paired_differences(
    first: Sequence[Evaluation], second: Sequence[Evaluation], *, draws: int = _DRAWS, seed: int = 0
) -> dict[str, dict[str, float]]:
    """second − first of every figure over grades, with its 95 % interval, for seeds of two models on the same queries.

    Queries are drawn by place (squares of `SQUARE_M`), seeds independently of them. Both sides get the same draws, so
    queries that are hard for both cancel out. A side of one seed (nothing was trained) stands for all seeds.
    """
    if len({e.fingerprint for e in (*first, *second)}) != 1:
        raise InputError("evaluations of different protocols cannot be compared query by query")
    places = place_codes(first[0])
    count, seeds = int(places.max()) + 1, max(len(first), len(second))
    rng = np.random.default_rng(seed)
    weight = np.vstack([np.ones(count), rng.multinomial(count, np.full(count, 1 / count), draws)])
    drawn = np.vstack([np.ones(seeds), rng.multinomial(seeds, np.full(seeds, 1 / seeds), draws)]) / seeds
    sides = [_drawn_figures(side, places, weight, drawn) for side in (first, second)]
    out = {}
    for key in sides[0].keys() & sides[1].keys():
        gap = sides[1][key] - sides[0][key]
        low, high = np.percentile(gap[1:], [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
        out[key] = {"difference": float(gap[0]), "low": float(low), "high": float(high)}
    return {key: out[key] for key in sides[0] if key in out}


def place_codes(evaluation: Evaluation) -> NDArray[np.int64]:
    """(Q,) the square of `SQUARE_M` that each query stands in; a query without a position gets one of its own."""
    xy = np.asarray(evaluation.arrays["query_xy"], np.float64)
    known = np.asarray(np.isfinite(xy).all(axis=1))
    cells = np.column_stack(
        [np.floor(np.where(known[:, None], xy, 0) / SQUARE_M), np.where(known, -1, np.arange(len(xy)))]
    )
    return np.asarray(np.unique(cells, axis=0, return_inverse=True)[1]).ravel()


def _drawn_figures(
    evaluations: Sequence[Evaluation], places: NDArray[np.int64], weight: Floats, drawn: Floats
) -> dict[str, Floats]:
    """Figure → (draws,) its mean over drawn seeds, each over drawn places; weights (draws, places), (draws, seeds)."""
    each = [_weighted_figures(e, places, weight) for e in evaluations]
    if len(each) == 1:
        return each[0]
    return {key: np.einsum("ds,sd->d", drawn, np.stack([figures[key] for figures in each])) for key in each[0]}


def _weighted_figures(evaluation: Evaluation, places: NDArray[np.int64], weight: Floats) -> dict[str, Floats]:
    """Figure → (draws,) its value where each place counts as often as `weight` says."""
    a = evaluation.arrays
    truths = {"": "", **{f" {name}": f"_{name}" for name in evaluation.figures.stricter}}
    out = {
        f"recall@1{name}": 100 * _mean(a[f"first_hit{suffix}"] == 1, a[f"relevant{suffix}"] > 0, places, weight)
        for name, suffix in truths.items()
    }
    out["recall@5"] = 100 * _mean(evaluation.hits(5), evaluation.counted, places, weight)
    graded = np.isfinite(np.asarray(a["ndcg"]))
    out["ndcg@10"] = 100 * _mean(np.where(graded, a["ndcg"], 0), graded, places, weight)
    out["median_error_m"] = _median(np.asarray(a["error_m"], np.float64), places, weight)
    if "pair_psi" in a:
        similar = np.asarray(a["pair_psi"]) > 0
        psi, distance = (np.asarray(a[name])[similar] for name in ("pair_psi", "pair_distance"))
        at = places[np.asarray(a["pair_query"])[similar]]
        out["spearman_psi_distance_similar"] = _rank_correlation(psi, distance, at, weight)
    return out


def _mean(values: NDArray[Any], counted: NDArray[np.bool_], places: NDArray[np.int64], weight: Floats) -> Floats:
    size = weight.shape[1]
    total = np.bincount(places[counted], np.asarray(values, np.float64)[counted], size)
    number = np.bincount(places[counted], minlength=size)
    return np.asarray((weight @ total) / np.maximum(weight @ number, 1))


def _median(values: Floats, places: NDArray[np.int64], weight: Floats) -> Floats:
    """(draws,) the weighted median."""
    order = np.argsort(values)[: int(np.isfinite(values).sum())]
    total = np.cumsum(weight[:, places[order]], axis=1)
    return np.asarray(values[order][(total >= total[:, -1:] / 2).argmax(axis=1)])


def _rank_correlation(a: NDArray[Any], b: NDArray[Any], places: NDArray[np.int64], weight: Floats) -> Floats:
    """(draws,) Spearman's ρ with the ranks of the whole sample."""
    from scipy.stats import rankdata

    size = weight.shape[1]
    x, y = (rankdata(v) / len(v) - 0.5 for v in (a, b))
    n, sx, sy, xx, yy, xy = (
        weight @ np.bincount(places, v, size) for v in (np.ones(len(x)), x, y, x * x, y * y, x * y)
    )
    return np.asarray((xy - sx * sy / n) / np.sqrt((xx - sx * sx / n) * (yy - sy * sy / n)))
