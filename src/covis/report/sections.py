"""A report and its drawn parts, made from evaluations or runs; each figure can also be drawn by itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from numpy.typing import NDArray

from covis.core import artifacts
from covis.core.arrays import Ids
from covis.core.errors import InputError
from covis.evaluation import Benchmark, Evaluation, load_benchmark
from covis.evaluation.compare import paired_differences
from covis.evaluation.render import mean_interval
from covis.evaluation.scoring import precision_recall
from covis.graph import POSITIVE, SimilarityGraph
from covis.images import ImageSet, Split
from covis.reading.decoding import Reject
from covis.report import drawings, page, plots
from covis.report.drawings import Labelled, colours, graded_samples, models, needed_sample, run_recipe
from covis.report.page import EvaluationGroups, Runs, Section, data_thumbnail, figure, rendered, write_page
from covis.training.record import has_metrics, read_metrics
from covis.training.run import open_sampler

_QUERIES = 4000
"""Most queries on the map, evenly chosen."""
PICTURED = 360
"""How many wrong queries are shown with photos, the worst of each model, and a third as many right ones."""
ENTRIES = 12
"""Gallery entries shown at first, and added at each click."""
_PLACES = 4000
_THUMB = 180


def map_data(evaluations: Mapping[str, Evaluation], benchmark: Benchmark) -> dict[str, Any]:
    """Queries with the best match of each model, and thumbnails of the images that can be looked at."""
    shown = _shown(next(iter(evaluations.values())))
    xy = benchmark.queries.poses.xy
    places = benchmark.database.poses.xy[:: max(1, len(benchmark.database) // _PLACES)]
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
    shots = {key: shot(sides[key[0]], int(key[1:])) for key in sorted(wanted)}
    return {key: photo for key, photo in shots.items() if photo}


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
        "worst": severity(distance, metres),
    }


def severity(distance: float, metres: float) -> float:
    """How bad a wrong answer is: the smaller its descriptor distance the worse, and at equal ones the farther its place.

    Either may be NaN: no answer, or one whose place is unknown.
    """
    confidence = 0.0 if np.isnan(distance) else 2.0 - distance
    return round(confidence + (0.0 if np.isnan(metres) else min(metres, 1000.0) / 1e4), 4)


def shot(images: ImageSet, i: int) -> str:
    """The i-th photo as a small data URL; empty where the file cannot be read."""
    try:
        return data_thumbnail(images.path(i), _THUMB)
    except Reject:
        return ""


# The drawn parts of a report, made from evaluations or runs; each figure can also be drawn by itself.


_BATCHES = 200
SIZE_K = 5
"""Recall@k that is drawn against descriptor size."""
EXAMPLES = (0.9, 0.7, POSITIVE, 0.3, 0.1, 0.0)
"""ψ of the example pairs that are shown."""


def lead(evaluations: EvaluationGroups) -> str:
    """What was scored on what, by which command and which versions."""
    f = next(iter(evaluations.values()))[0].figures
    keys = ("benchmark", "fingerprint", "queries", "database", "rule", "notes")
    versions = ", ".join(f"{k} {v}" for k, v in artifacts.versions().items())
    return rendered("lead.html", **{key: f[key] for key in keys}, command=artifacts.command(), versions=versions)


def map_and_gallery(evaluations: EvaluationGroups, benchmark: Benchmark) -> Section:
    """Where queries were right and wrong, and the worst of the wrong ones."""
    data = map_data({name: group[0] for name, group in evaluations.items()}, benchmark)
    return Section("Correct and wrong queries", rendered("map.html"), "map", data)


def distances(evaluations: EvaluationGroups, runs: Runs) -> Section | None:
    """Descriptor distance against ψ."""
    if not graded_samples(evaluations):
        return None
    drawn = plots.svg(distance_figure(evaluations, runs))
    caption = "pairs of the benchmark, half of them similar; ρ stands among the other metrics"
    return Section("Distance against similarity", figure(drawn, caption), "distance")


def examples(labelled: Labelled) -> Section | None:
    """Pairs of images with their ψ and fields of view."""
    graph, queries, database = labelled
    if not graph.has_grades:
        return None
    cells = [_example(Split(queries, database), graph, i, j) for i, j in _pairs(graph)]
    return Section("How much two views share", rendered("pairs.html", pairs=cells), "examples")


def _pairs(graph: SimilarityGraph) -> list[tuple[int, int]]:
    """For each ψ of `EXAMPLES` the stored pair closest to it, and one that shares nothing."""
    psi, rows = graph.psi, graph.rows
    pairs = []
    for wanted in EXAMPLES:
        if wanted > 0:
            k = int(np.argmin(np.abs(psi - wanted)))
            pairs.append((int(rows[k]), int(graph.indices[k])))
        else:
            row = graph.shape[0] // 2
            free = np.setdiff1d(np.arange(graph.shape[1]), graph.row(row)[0])
            pairs.append((row, int(free[len(free) // 2])))
    return pairs


def _example(split: Split, graph: SimilarityGraph, i: int, j: int) -> dict[str, Any]:
    sides = ((split.queries, i), (split.database, j))
    poses = [(float(s.poses.xy[k, 0]), float(s.poses.xy[k, 1]), float(s.poses.heading[k])) for s, k in sides]
    psi = float(graph.lookup([i], [j])[0])
    # Labels from surfaces have no sectors on the ground to draw.
    sector = [float(np.max(graph.facts[key])) for key in ("radius_m", "fov_deg") if key in graph.facts]
    title = f"Fields of view of two cameras from above that share {psi:.0%}"
    drawn = plots.svg(drawings.fields_of_view(poses, *sector), title) if len(sector) == 2 else ""
    shots = [
        {"alt": f"{what} {s.name(k)}", "source": shot(s, k)}
        for what, (s, k) in zip(("photo", "the other photo"), sides, strict=True)
    ]
    return {"shots": shots, "drawing": Markup(figure(drawn, f"ψ = {psi:.2f}"))}


def batch_compositions(evaluations: EvaluationGroups, runs: Runs, data: Path | None) -> Section | None:
    """How ψ is distributed in the batches that each loss saw."""
    if not runs:
        return None
    caption = f"the first {_BATCHES} batches of each run"
    drawn = plots.svg(batch_figure(evaluations, runs, data))
    return Section("Similarity in the batches", figure(drawn, caption), "batches")


def _batch_psi(run: Path, data: Path | None) -> NDArray[np.float32]:
    sampler = open_sampler(run, data)
    psi = [sampler.batch(*divmod(n, len(sampler))).psi.ravel() for n in range(_BATCHES)]
    return np.concatenate(psi)


def size_curve(evaluations: EvaluationGroups) -> Section | None:
    """Recall against descriptor size, where evaluations differ in it."""
    if len({e.figures.dim for e in _all(evaluations)} - {None}) < 2:
        return None
    caption = "whitening is fitted on images of the map or of training, as the legend says"
    return Section("Descriptor size", figure(plots.svg(size_figure(evaluations)), caption), "sizes")


# Each figure by itself, for the page and for files


def recall_figure(evaluations: EvaluationGroups) -> Figure:
    """Recall@k against k, with the interval over seeds, or over queries where there is one evaluation."""
    first = next(iter(evaluations.values()))[0]
    return plots.recall_curves(
        {name: [e.figures.recall_curve for e in group] for name, group in evaluations.items()},
        {name: _band(group) for name, group in evaluations.items()},
        sorted(first.recall),
        colours(evaluations),
    )


def _band(group: Sequence[Evaluation]) -> list[tuple[float, float]]:
    """(low, high) at each k: the 95 % interval over three seeds or more, the range of two, else that over queries."""
    band = []
    for k in sorted(group[0].recall):
        values = [e.recall[k] for e in group]
        mean, half = mean_interval(values)
        if half is None:
            low, high = group[0].figures.recall_interval[k]
        elif len(values) < 3:
            low, high = min(values), max(values)
        else:
            low, high = max(0.0, mean - half), min(100.0, mean + half)
        band.append((low, high))
    return band


def training(evaluations: EvaluationGroups, runs: Runs) -> Section | None:
    """Loss and validation recall during training."""
    if not any(has_metrics(run) for paths in runs.values() for run in paths):
        return None
    drawn = plots.svg(training_figure(evaluations, runs))
    return Section("Training", figure(drawn, "the first run of each model"), "training")


def training_figure(evaluations: EvaluationGroups, runs: Runs) -> Figure:
    """Loss and validation recall of each name's first run."""
    logs = {name: read_metrics(paths[0]) for name, paths in runs.items() if has_metrics(paths[0])}
    if not logs:
        raise InputError("training curves come from runs; give run folders, not evaluations")
    column = f"recall@{SIZE_K}"
    losses = {name: _series(log, "loss") for name, log in logs.items()}
    recalls = {name: _series(log, column) for name, log in logs.items() if _series(log, column)[0]}
    return plots.training_curves(losses, recalls, SIZE_K, colours(evaluations, runs))


def _series(log: Sequence[Mapping[str, str]], column: str) -> tuple[list[float], list[float]]:
    """Steps and values where a column is filled."""
    filled = [(float(row["step"]), float(row[column])) for row in log if row.get(column)]
    return [step for step, _ in filled], [value for _, value in filled]


def precision_figure(evaluations: EvaluationGroups) -> Figure:
    """Precision against recall of each query's best match, accepted up to a distance."""
    curves = {name: [c for e in group for c in _accepted(e)] for name, group in evaluations.items()}
    if not any(curves.values()):
        raise InputError("these evaluations hold no distances, so matches cannot be accepted by distance")
    return plots.precision_curves({name: lines for name, lines in curves.items() if lines}, colours(evaluations))


def _accepted(evaluation: Evaluation) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    distance = np.asarray(evaluation.arrays["distances"])[:, 0]
    given = np.isfinite(distance)
    if not given.any():
        return []
    right = np.asarray(evaluation.arrays["first_hit"]) == 1
    curve = precision_recall(distance[given], right[given], int((evaluation.arrays["relevant"] > 0).sum()))
    return [(curve.recall, curve.precision)]


def radius_figure(evaluations: EvaluationGroups) -> Figure:
    """Recall@1 against the radius that counts as right."""
    curves = {
        name: [curve for e in group if (curve := e.figures.by_radius) is not None]
        for name, group in evaluations.items()
    }
    known = [c for group in curves.values() for c in group]
    if not known:
        raise InputError("these evaluations have images without positions, so there is no radius to plot")
    recall = {name: [c.recall for c in group] for name, group in curves.items() if group}
    return plots.radius_curves(recall, known[0].radius_m, known[0].possible, colours(evaluations))


def distance_figure(evaluations: EvaluationGroups, runs: Runs) -> Figure:
    """Distance against ψ, with the line of the first run's margin."""
    pairs = {
        name: (np.asarray(arrays["pair_psi"]), np.asarray(arrays["pair_distance"]))
        for name, arrays in needed_sample(evaluations).items()
    }
    margins = [run_recipe(run)["loss"].get("margin") for paths in runs.values() for run in paths]
    return plots.distance_against_similarity(pairs, margins[0] if margins else None, colours(evaluations))


def batch_figure(evaluations: EvaluationGroups, runs: Runs, data: Path | None) -> Figure:
    """Histograms of ψ in the batches of each run."""
    if not runs:
        raise InputError("batches come from runs; give run folders, not evaluations")
    similarities = {name: _batch_psi(paths[0], data) for name, paths in runs.items()}
    return plots.batch_histograms(similarities, colours(evaluations, runs))


def size_figure(evaluations: EvaluationGroups) -> Figure:
    """Recall against descriptor size, one line for each model and each set that its whitening was fitted on."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for e in _all(evaluations):
        if e.figures.dim is not None:
            curves.setdefault(_family(e), []).append((e.figures.dim, e.recall[SIZE_K]))
    return plots.size_curves(curves, SIZE_K, plots.palette(curves))


def gain_figure(evaluations: EvaluationGroups) -> Figure:
    """What each model gains over the first, figure by figure, with intervals over places and seeds."""
    names = list(evaluations)
    if len(names) < 2:
        raise InputError("gains compare with another model; give evaluations of two or more models")
    gains = {name: paired_differences(evaluations[names[0]], evaluations[name]) for name in names[1:]}
    return plots.gain_intervals(gains, names[0])


def _family(evaluation: Evaluation) -> str:
    """What evaluations of several sizes have in common."""
    whitening = evaluation.subject.get("whitening")
    name = evaluation.label.split(", whitened")[0]
    return name if whitening is None else f"{name}, whitened ({whitening['fit']})"


def _all(evaluations: EvaluationGroups) -> list[Evaluation]:
    return [e for group in evaluations.values() for e in group]


FIGURES: dict[str, Callable[[EvaluationGroups, Runs, Path | None], Figure]] = {
    "recall": lambda evaluations, runs, data: recall_figure(evaluations),
    "precision": lambda evaluations, runs, data: precision_figure(evaluations),
    "radius": lambda evaluations, runs, data: radius_figure(evaluations),
    "distance": lambda evaluations, runs, data: distance_figure(evaluations, runs),
    "sizes": lambda evaluations, runs, data: size_figure(evaluations),
    "differences": lambda evaluations, runs, data: drawings.difference_figure(
        evaluations, drawings.models(evaluations, runs), _benchmark(evaluations, data)
    ),
    "gains": lambda evaluations, runs, data: gain_figure(evaluations),
    "activations": lambda evaluations, runs, data: drawings.activation_figure(
        evaluations, drawings.models(evaluations, runs), _benchmark(evaluations, data)
    ),
    "overlap": lambda evaluations, runs, data: drawings.overlap_figure(runs, _benchmark(evaluations, data), data),
    "batches": lambda evaluations, runs, data: batch_figure(evaluations, runs, data),
    "training": lambda evaluations, runs, data: training_figure(evaluations, runs),
}
"""Figure name → function of evaluations by name, runs by name and the path of the data."""


def _benchmark(evaluations: EvaluationGroups, data: Path | None) -> Benchmark:
    first = next(iter(evaluations.values()))[0]
    return load_benchmark(first.benchmark, data, frame=first.protocol.get("frame", ""))


# The whole report


def write_report(
    path: Path | str,
    evaluations: Mapping[str, Sequence[Evaluation]],
    benchmark: Benchmark,
    *,
    runs: Mapping[str, Sequence[Path]] | None = None,
    data: Path | None = None,
    title: str = "Evaluation",
) -> None:
    """Writes a report on evaluations of one protocol, grouped by name (those under one name are seeds).

    Models that are still where they were evaluated add differences of descriptors and activation maps; `runs` add what
    training saw: example pairs with their ψ, and the composition of batches. `data` is where the runs' dataset lies.
    """
    scored = [e for group in evaluations.values() for e in group]
    if not scored:
        raise InputError("a report needs at least one evaluation")
    other = {e.fingerprint for e in scored} - {benchmark.fingerprint}
    if other:
        raise InputError(f"evaluations of other protocols ({', '.join(sorted(other))}) do not go into one report")
    runs = runs or {}
    found_models = models(evaluations, runs)
    parts = [
        page.recall_table(evaluations, _curves(evaluations)),
        page.further(evaluations),
        page.parts(evaluations),
        page.published_table(evaluations),
        training(evaluations, runs),
        map_and_gallery(evaluations, benchmark),
        size_curve(evaluations),
        distances(evaluations, runs),
        drawings.descriptor_differences(evaluations, found_models, benchmark),
        drawings.activations(evaluations, found_models, benchmark),
        examples(drawings.labelled(runs, benchmark, data)),
        drawings.pose_overlap(runs, benchmark, data),
        batch_compositions(evaluations, runs, data),
    ]
    shown = [part for part in parts if part is not None]
    write_page(Path(path), title, lead(evaluations), shown, navigation=True)


def _curves(evaluations: Mapping[str, Sequence[Evaluation]]) -> list[str]:
    """Recall against k, precision against recall and recall against radius, as far as the evaluations have them."""
    drawn = []
    for make in (recall_figure, precision_figure, radius_figure):
        with contextlib.suppress(InputError):
            drawn.append(plots.svg(make(evaluations)))
    return drawn
