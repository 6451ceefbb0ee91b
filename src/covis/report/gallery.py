"""The map of right and wrong queries and the worst-first gallery: what the page's script draws."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from covis.decoding import Reject, decode
from covis.evaluation import Benchmark, Evaluation
from covis.images import ImageSet

QUERIES = 1000
"""So many queries are drawn at most, wrong ones first."""
ENTRIES = 60
PLACES = 4000
_THUMB = 150


def map_data(evaluations: Mapping[str, Evaluation], benchmark: Benchmark) -> dict[str, Any]:
    """Queries with the best match of each model, and thumbnails of all images that can be looked at."""
    shown = _shown(list(evaluations.values()))
    xy = benchmark.queries.poses.xy
    places = benchmark.database.poses.xy[:: max(1, len(benchmark.database) // PLACES)]
    models: list[dict[str, Any]] = [
        {"name": name, "answers": [_answer(e, benchmark, int(i)) for i in shown]} for name, e in evaluations.items()
    ]
    matches = {a[key] for m in models for a in m["answers"] for key in ("id", "truth") if a[key] is not None}
    thumbs = {f"q{i}": thumbnail(benchmark.queries, int(i)) for i in shown}
    thumbs |= {f"m{i}": thumbnail(benchmark.database, int(i)) for i in sorted(matches)}
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
        "thumbs": {k: v for k, v in thumbs.items() if v},
        "gallery": ENTRIES,
    }


def _shown(evaluations: Sequence[Evaluation]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Answerable queries with a place, those that most models get wrong first."""
    wrong = np.sum([~e.hits(1) for e in evaluations], axis=0)
    usable = evaluations[0].counted & ~np.isnan(np.asarray(evaluations[0].arrays["query_xy"])[:, 0])
    order = np.argsort(-wrong, kind="stable")
    return np.sort(order[usable[order]][:QUERIES])


def _answer(evaluation: Evaluation, benchmark: Benchmark, i: int) -> dict[str, Any]:
    arrays = evaluation.arrays
    best = int(arrays["ids"][i, 0])
    metres, distance = float(arrays["error_m"][i]), float(arrays["distances"][i, 0])
    truth, psi = benchmark.positives.row(i)
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
        "truth": int(truth[int(np.argmax(psi))]) if len(truth) else None,
        # The surer a wrong answer, the worse: small descriptor distance first, far places before near ones.
        "worst": round(
            (0.0 if np.isnan(distance) else 2.0 - distance) + min(metres, 1000.0) / 1e4 if metres == metres else 0.0, 4
        ),
    }


def thumbnail(images: ImageSet, i: int) -> str:
    """A small JPEG as a data address; empty where the file cannot be read."""
    from PIL import Image

    try:
        picture = Image.fromarray(decode(images.path(i)))
    except Reject:
        return ""
    picture.thumbnail((_THUMB, _THUMB))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=72)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
