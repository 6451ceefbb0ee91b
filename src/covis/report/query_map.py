"""The map of correct and wrong queries, and the gallery of the worst ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from covis.core.arrays import Ids
from covis.evaluation import Benchmark, Evaluation
from covis.images import ImageSet
from covis.report.study import Study
from covis.web.page import Section, rendered
from covis.web.thumbnails import data_url

_QUERIES = 4000
"""Most queries on the map, evenly chosen."""
PICTURED = 360
"""How many wrong queries are shown with photos, the worst of each model, and a third as many right ones."""
ENTRIES = 12
"""Gallery entries shown at first, and added at each click."""
_PLACES = 4000
_THUMBNAIL_PIXELS = 180


def map_and_gallery(study: Study) -> Section:
    """Where queries were right and wrong, and the worst of the wrong ones."""
    return Section("Correct and wrong queries", rendered("queries.html"), "map", _data(study))


def _data(study: Study) -> dict[str, Any]:
    """Queries with the best match of each model, and thumbnails of the images that can be looked at."""
    benchmark = study.benchmark
    shown = _shown(study.first)
    queries, places = benchmark.queries, benchmark.database.poses.xy[:: max(1, len(benchmark.database) // _PLACES)]
    truth = [_truth(benchmark, int(i)) for i in shown]
    models: list[dict[str, Any]] = [
        {
            "name": name,
            "answers": [_answer(group[0], benchmark, int(i)) | {"truth": t} for i, t in zip(shown, truth, strict=True)],
        }
        for name, group in study.evaluations.items()
    ]
    return {
        "queries": [
            {"id": int(i), "name": queries.name(int(i)), **dict(zip("xy", _place(queries, int(i)), strict=True))}
            for i in shown
        ],
        "places": np.round(places[~np.isnan(places[:, 0])], 1).tolist(),
        "models": models,
        "thumbs": _thumbs(models, shown, benchmark),
        "gallery": ENTRIES,
    }


def _place(images: ImageSet, i: int) -> list[float | None]:
    """East and north of an image in metres, if they are known."""
    return np.round(images.poses.xy[i], 1).tolist() if images.poses.known[i] else [None, None]


def _shown(evaluation: Evaluation) -> Ids:
    """Counted queries with a known position, at most `_QUERIES` of them."""
    usable = evaluation.counted & ~np.isnan(np.asarray(evaluation.arrays["query_xy"])[:, 0])
    candidates = np.flatnonzero(usable)
    some = np.unique(np.linspace(0, len(candidates) - 1, min(_QUERIES, len(candidates))).astype(int))
    return np.asarray(candidates[some])


def _thumbs(models: Sequence[dict[str, Any]], shown: Ids, benchmark: Benchmark) -> dict[str, str]:
    """Photos of the worst queries of each model and of some right ones, of their matches and of a right answer."""
    wanted: set[str] = set()
    for model in models:
        answers = model["answers"]
        order = sorted(range(len(answers)), key=lambda i: (answers[i]["right"], -answers[i]["worst"]))
        wrong = [i for i in order if not answers[i]["right"]][: PICTURED // len(models)]
        right = [i for i in order if answers[i]["right"]]
        some = right[:: max(1, 3 * len(models) * len(right) // PICTURED)]
        for i in (*wrong, *some):
            wanted |= {f"q{shown[i]}"} | {f"m{answers[i][k]}" for k in ("id", "truth") if answers[i][k] is not None}
    sides = {"q": benchmark.queries, "m": benchmark.database}
    shots = {key: data_url(sides[key[0]].path(int(key[1:])), _THUMBNAIL_PIXELS) for key in sorted(wanted)}
    return {key: photo for key, photo in shots.items() if photo}


def _truth(benchmark: Benchmark, i: int) -> int | None:
    """The relevant image that shares most with query `i`, as far as that is graded."""
    relevant, _ = benchmark.positives.row(i)
    if not len(relevant):
        return None
    return int(relevant[int(np.argmax(benchmark.graded.lookup(np.full(len(relevant), i), relevant)))])


def _answer(evaluation: Evaluation, benchmark: Benchmark, i: int) -> dict[str, Any]:
    arrays = evaluation.arrays
    best, first = int(arrays["ids"][i, 0]), int(arrays["first_hit"][i])
    metres, distance = float(arrays["error_m"][i]), float(arrays["distances"][i, 0])
    x, y = _place(benchmark.database, best) if best >= 0 else (None, None)
    return {
        "id": best if best >= 0 else None,
        "name": benchmark.database.name(best) if best >= 0 else "nothing",
        "x": x,
        "y": y,
        "right": first == 1,
        "rank": first,
        "metres": None if np.isnan(metres) else round(metres, 1),
        "distance": None if np.isnan(distance) else round(distance, 3),
        "worst": severity(distance, metres),
    }


def severity(distance: float, metres: float) -> float:
    """How bad a wrong answer is: the smaller its descriptor distance the worse, and at equal ones the farther its place.

    Either may be NaN: no answer, or one whose place is unknown.
    """
    confidence = 0.0 if np.isnan(distance) else 2.0 - distance
    return round(confidence + (0.0 if np.isnan(metres) else min(metres, 1000.0) / 1e4), 4)
