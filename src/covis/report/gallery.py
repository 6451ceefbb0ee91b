"""The map of right and wrong queries and the worst-first gallery: what the page's script draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.evaluation import Benchmark, Evaluation
from covis.images import ImageSet
from covis.reading.decoding import Reject
from covis.report.page import thumbnail

Ints = NDArray[np.int64]
QUERIES = 4000
"""So many queries are drawn at most, evenly chosen."""
PICTURED = 360
"""So many wrong queries have their photos in the page, the worst of each model, and a third as many right ones."""
ENTRIES = 12
"""Gallery entries shown at first, and more at each click."""
PLACES = 4000
_THUMB = 180


def map_data(evaluations: Mapping[str, Evaluation], benchmark: Benchmark) -> dict[str, Any]:
    """Queries with the best match of each model, and thumbnails of the images that can be looked at."""
    shown = _shown(next(iter(evaluations.values())))
    xy = benchmark.queries.poses.xy
    places = benchmark.database.poses.xy[:: max(1, len(benchmark.database) // PLACES)]
    truth = [_truth(benchmark, int(i)) for i in shown]
    models: list[dict[str, Any]] = [
        {
            "name": name,
            "answers": [_answer(e, benchmark, int(i)) | {"truth": t} for i, t in zip(shown, truth, strict=True)],
        }
        for name, e in evaluations.items()
    ]
    return {
        "queries": [
            {
                "id": int(i),
                "name": benchmark.queries.name(int(i)),
                "x": round(float(xy[i, 0]), 1),
                "y": round(float(xy[i, 1]), 1),
            }
            for i in shown
        ],
        "places": np.round(places[~np.isnan(places[:, 0])], 1).tolist(),
        "models": models,
        "thumbs": _thumbs(models, shown, benchmark),
        "gallery": ENTRIES,
    }


def _shown(evaluation: Evaluation) -> Ints:
    """Answerable queries with a place."""
    usable = evaluation.counted & ~np.isnan(np.asarray(evaluation.arrays["query_xy"])[:, 0])
    found = np.flatnonzero(usable)
    some = np.unique(np.linspace(0, len(found) - 1, min(QUERIES, len(found))).astype(int))
    return np.asarray(found[some])


def _thumbs(models: Sequence[dict[str, Any]], shown: Ints, benchmark: Benchmark) -> dict[str, str]:
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
    found = {key: shot(sides[key[0]], int(key[1:])) for key in sorted(wanted)}
    return {key: photo for key, photo in found.items() if photo}


def _truth(benchmark: Benchmark, i: int) -> int | None:
    """The relevant image that shares most with query `i`, as far as that is graded."""
    relevant, _ = benchmark.positives.row(i)
    if not len(relevant):
        return None
    return int(relevant[int(np.argmax(benchmark.graded.lookup(np.full(len(relevant), i), relevant)))])


def _answer(evaluation: Evaluation, benchmark: Benchmark, i: int) -> dict[str, Any]:
    arrays = evaluation.arrays
    best = int(arrays["ids"][i, 0])
    metres, distance = float(arrays["error_m"][i]), float(arrays["distances"][i, 0])
    first = int(arrays["first_hit"][i])
    known = best >= 0 and bool(benchmark.database.poses.known[best])
    place = benchmark.database.poses.xy[best] if known else (None, None)
    return {
        "id": best if best >= 0 else None,
        "name": benchmark.database.name(best) if best >= 0 else "nothing",
        "x": None if place[0] is None else round(float(place[0]), 1),
        "y": None if place[1] is None else round(float(place[1]), 1),
        "right": first == 1,
        "rank": first,
        "metres": None if np.isnan(metres) else round(metres, 1),
        "distance": None if np.isnan(distance) else round(distance, 3),
        # The surer a wrong answer, the worse: small descriptor distance first, far places before near ones.
        "worst": round(
            (0.0 if np.isnan(distance) else 2.0 - distance) + min(metres, 1000.0) / 1e4 if metres == metres else 0.0, 4
        ),
    }


def shot(images: ImageSet, i: int) -> str:
    """The i-th photo as a small data address; empty where the file cannot be read."""
    try:
        return thumbnail(images.path(i), _THUMB)
    except Reject:
        return ""
