"""A self-contained HTML page, nothing loaded from anywhere; and its sections that need the models themselves."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from covis import artifacts, datasets
from covis.describing.describers import ModelDescriber
from covis.errors import InputError
from covis.evaluation import Benchmark, Evaluation
from covis.files import write_text
from covis.graph import POSITIVE, SimilarityGraph
from covis.images import ImageSet
from covis.models import PlaceModel
from covis.poses import angle_between
from covis.reading.decoding import Reject, decode
from covis.report import drawings, plots
from covis.report.plots import pca, tsne
from covis.tables import TableRow, best_row, csv_table, is_numeric, latex_table, markdown_table


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it; `data` is what the page's script finds under its name."""

    title: str
    body: str
    """HTML, escaped already."""
    name: str = ""
    data: Any = None

    @property
    def html(self) -> Markup:
        """The body, as templates take what is escaped."""
        return Markup(self.body)


@cache
def _templates() -> Environment:
    return Environment(loader=PackageLoader("covis.report"), autoescape=True, undefined=StrictUndefined)


def rendered(template: str, **values: Any) -> str:
    """A template of this package, filled; whatever is no `Markup` is escaped."""
    return cast(str, Markup(_templates().get_template(template).render(**values)))


def write_page(path: Path, title: str, lead: str, sections: Sequence[Section], navigation: bool = False) -> None:
    """Writes the page, with a list of its sections if asked; a reader of an older one never sees half of the new."""
    data = {s.name: s.data for s in sections if s.data is not None}
    # A tag or the start of a comment inside a string would change where the script element ends.
    script = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    page = rendered(
        "page.html",
        title=title,
        lead=Markup(lead),
        sections=sections,
        navigation=navigation,
        data=script,
        style=_asset("report.css"),
        script=_asset("report.js"),
    )
    write_text(path, page)


def html_table(rows: Sequence[TableRow], name: str, best: Mapping[str, bool] | None = None) -> str:
    """Rows of equal keys as a table that can be copied as Markdown, LaTeX or CSV.

    best: columns whose best cell is bold → whether lower is better.
    """
    if not rows:
        return cast(str, Markup("<p>none</p>"))
    head = list(rows[0])
    right = {key for key in head if is_numeric(rows, key)}
    bold = {(best_row(rows, key, lower), key) for key, lower in (best or {}).items() if key in head}
    cells = [[Cell(str(row[key]), key in right, (i, key) in bold) for key in head] for i, row in enumerate(rows)]
    copies = {"Markdown": markdown_table(rows), "LaTeX": latex_table(rows, best), "CSV": csv_table(rows)}
    headings = [Cell(key, key in right) for key in head]
    return rendered("table.html", name=name, head=headings, rows=cells, copies=copies)


@dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    text: str
    number: bool = False
    best: bool = False


def figures_row(drawings: Sequence[str]) -> str:
    """Drawings side by side where the page is wide enough."""
    drawn = Markup("").join(figure(svg) for svg in drawings)
    return cast(str, Markup('<div class="figures">{}</div>').format(drawn))


def data_thumbnail(file: Path, pixels: int) -> str:
    """A photo as a data address of a JPEG whose longer side has so many pixels; raises `Reject` as decoding does."""
    from PIL import Image

    picture = Image.fromarray(decode(file))
    picture.thumbnail((pixels, pixels))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=75)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def figure(svg: str, caption: str = "") -> str:
    """A drawing with its caption."""
    return rendered("figure.html", drawing=Markup(svg), caption=caption)


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


# What a model sees: its runs, differences of descriptors, activations, ψ against poses


EvaluationGroups = Mapping[str, Sequence[Evaluation]]
"""Evaluations by name; several of a name are seeds of one thing."""
Runs = Mapping[str, Sequence[Path]]
"""Folders of `covis train` by name."""
Models = Mapping[str, Path]
"""Model folders by name."""
MOST_MODELS = 4
"""Figures that show a model beside another have so many columns at most."""


def models(evaluations: EvaluationGroups, runs: Runs) -> dict[str, Path]:
    """The first models that can be opened: of runs, else the folders that were evaluated if they still hold the same.

    A model that was evaluated several times (whitened to several sizes) counts once.
    """
    models = {name: paths[0] / "model" for name, paths in runs.items()}
    seen = {_fingerprint(folder) for folder in models.values()}
    for name, group in evaluations.items():
        folder = Path(str(group[0].subject.get("folder", "")))
        mark = group[0].subject.get("fingerprint")
        if name not in models and mark not in seen and mark == _fingerprint(folder):
            models[name] = folder
            seen.add(mark)
    order = [name for name in (*evaluations, *models) if name in models]
    return {name: models[name] for name in list(dict.fromkeys(order))[:MOST_MODELS]}


def _fingerprint(folder: Path) -> object:
    record = folder / artifacts.MANIFEST
    return artifacts.read_json(record).get("fingerprint") if record.is_file() else None


def colours(evaluations: EvaluationGroups, further: Iterable[str] = ()) -> dict[str, str]:
    """The colour of each name, the same in every figure of a report."""
    return plots.palette([*evaluations, *further])


def graded_samples(evaluations: EvaluationGroups) -> dict[str, Mapping[str, NDArray[Any]]]:
    """The arrays of the first evaluation of each name, where it has sampled pairs of graded similarity."""
    return {name: found[0].arrays for name, found in evaluations.items() if "pair_psi" in found[0].arrays}


def needed_sample(evaluations: EvaluationGroups) -> dict[str, Mapping[str, NDArray[Any]]]:
    """`sampled`, or an error where there is none."""
    samples = graded_samples(evaluations)
    if not samples:
        raise InputError("these evaluations hold no sampled pairs with graded similarity")
    return samples


def run_recipe(run: Path) -> dict[str, Any]:
    """The recipe of a run as JSON."""
    recipe: dict[str, Any] = artifacts.read_json(run / "run.json")["config"]["recipe"]
    return recipe


EACH = 120
"""So many positive and as many negative pairs are laid out."""
CHOSEN = (0.9, 0.6, 0.3, 0.0)
"""ψ of the pairs whose activation maps are shown."""
_POSE_PAIRS = 4_000_000


# Differences of descriptors


def descriptor_differences(evaluations: EvaluationGroups, models: Models, benchmark: Benchmark) -> Section | None:
    """Differences of descriptors of positive and negative pairs on a plane, one column per model."""
    caption = f"z(query) − z(map) of {EACH} positive (ψ ≥ {POSITIVE}) and {EACH} negative pairs of the benchmark"
    return _section(
        "Differences of descriptors", "differences", difference_figure, caption, evaluations, models, benchmark
    )


def difference_figure(evaluations: EvaluationGroups, models: Models, benchmark: Benchmark) -> Figure:
    """PCA and t-SNE of the differences of sampled pairs, for each model."""
    opened = _opened(models)
    rows, columns, positive = _balanced(_sample(evaluations, benchmark))
    curves = {
        name: _described(model, benchmark.queries, rows) - _described(model, benchmark.database, columns)
        for name, model in opened.items()
    }
    planes = {
        "PCA": {name: pca(vectors) for name, vectors in curves.items()},
        "t-SNE": {name: tsne(vectors) for name, vectors in curves.items()},
    }
    return drawings.difference_planes(planes, positive, colours(evaluations, models))


def _balanced(sample: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_]]:
    """Queries, map images and which are positive: `EACH` of either kind, or as many as both kinds have."""
    positive = np.asarray(sample["pair_psi"]) >= POSITIVE
    rng = np.random.default_rng(0)
    kinds = [rng.permutation(np.flatnonzero(kind)) for kind in (positive, ~positive)]
    each = min(EACH, *map(len, kinds))
    chosen = np.concatenate([kind[:each] for kind in kinds])
    return np.asarray(sample["pair_query"])[chosen], np.asarray(sample["pair_map"])[chosen], positive[chosen]


def _described(model: PlaceModel, images: ImageSet, ids: NDArray[Any]) -> NDArray[np.float32]:
    """(N, dim) descriptors of the images at `ids`, each embedded once and kept in the cache."""
    distinct, at = np.unique(ids, return_inverse=True)
    vectors, lost = ModelDescriber(model, workers=0).describe(images.subset(distinct))
    if lost.any():
        raise InputError(f"{images.path(int(distinct[lost][0]))} cannot be read; fix it or evaluate again without it")
    return vectors[at]


# Activation maps


def activations(evaluations: EvaluationGroups, models: Models, benchmark: Benchmark) -> Section | None:
    """Where each model finds two photos alike."""
    caption = "query, map image; bright places add most to the similarity of the pooled descriptors (one scale a pair)"
    return _section("Activation maps", "activations", activation_figure, caption, evaluations, models, benchmark)


def activation_figure(evaluations: EvaluationGroups, models: Models, benchmark: Benchmark) -> Figure:
    """Sampled pairs with ψ near `CHOSEN`, seen by each model."""
    opened = _opened(models)
    sample = _sample(evaluations, benchmark)
    psi = np.asarray(sample["pair_psi"])
    at = [int(np.argmin(np.abs(psi - wanted))) for wanted in CHOSEN]
    pairs = [(int(sample["pair_query"][k]), int(sample["pair_map"][k])) for k in at]
    captions = [f"ψ = {psi[k]:.2f}" for k in at]
    return pair_activations(opened, benchmark.queries, benchmark.database, pairs, captions)


def pair_activations(
    models: Mapping[str, PlaceModel],
    queries: ImageSet,
    database: ImageSet,
    pairs: list[tuple[int, int]],
    captions: list[str],
) -> Figure:
    """Activation maps of chosen pairs (query id, map id), one column per model."""
    paths = [(queries.path(i), database.path(j)) for i, j in pairs]
    try:
        photos = [(_photo(a), _photo(b)) for a, b in paths]
        shares = {
            name: [contributions(m, m.preprocessing.pixels(a), m.preprocessing.pixels(b)) for a, b in paths]
            for name, m in models.items()
        }
    except Reject as reject:
        raise InputError(f"{reject}; fix the file or evaluate again without it") from reject
    return drawings.activation_maps(photos, captions, shares)


def _photo(path: Path) -> NDArray[np.uint8]:
    from PIL import Image

    picture = Image.fromarray(decode(path))
    picture.thumbnail((200, 200))
    return np.asarray(picture)


# ψ against poses


Labelled = tuple[SimilarityGraph, ImageSet, ImageSet]
Posed = tuple[NDArray[Any], NDArray[Any], NDArray[Any], float]


def pose_overlap(runs: Runs, benchmark: Benchmark, data: Path | None) -> Section | None:
    """How labels depend on the distance and angle between two cameras."""
    pairs = _posed_pairs(*labelled(runs, benchmark, data))
    if pairs is None:
        return None
    whose = "training labels" if runs else "the benchmark's graded similarity"
    drawn = plots.svg(drawings.overlap_against_pose(*pairs))
    caption = f"{whose}; pairs that share nothing count as ψ = 0"
    return Section("Overlap against distance and angle", figure(drawn, caption), "overlap")


def overlap_figure(runs: Runs, benchmark: Benchmark, data: Path | None) -> Figure:
    """ψ against metres and degrees."""
    pairs = _posed_pairs(*labelled(runs, benchmark, data))
    if pairs is None:
        raise InputError("there is no pair of graded similarity with known positions and headings")
    return drawings.overlap_against_pose(*pairs)


def labelled(runs: Runs, benchmark: Benchmark, data: Path | None) -> Labelled:
    """The labels of the last name's first run with their images; without runs, the benchmark's own."""
    if not runs:
        return benchmark.graded, benchmark.queries, benchmark.database
    run = list(runs.values())[-1][0]
    recipe = run_recipe(run)
    split = datasets.load(recipe["dataset"], data, recipe["split"])
    return SimilarityGraph.open(run / "labels"), split.queries, split.database


def _posed_pairs(graph: SimilarityGraph, a: ImageSet, b: ImageSet) -> Posed | None:
    """Metres, degrees and ψ of every pair of some evenly drawn queries, up to the reach of the labels, in metres."""
    if not graph.has_grades:
        return None
    reach = _reach(graph, a, b)
    most = max(1, _POSE_PAIRS // max(1, len(b)))
    parts = []
    for i in np.unique(np.linspace(0, len(a) - 1, min(most, len(a))).astype(int)):
        metres = np.hypot(*(b.poses.xy - a.poses.xy[i]).T)
        degrees = angle_between(a.poses.heading[i], b.poses.heading)
        near = (metres <= reach) & ~np.isnan(degrees)
        if graph.facts.get("within_group"):
            near &= np.array(b.group_names)[b.group] == a.group_names[a.group[i]]
        if a is b:
            near[i] = False
        j = np.flatnonzero(near)
        parts.append(np.stack([metres[j], degrees[j], graph.lookup(np.full(len(j), i), j)]))
    metres, degrees, psi = np.concatenate(parts, axis=1)
    return (metres, degrees, psi, reach) if len(psi) else None


def _reach(graph: SimilarityGraph, a: ImageSet, b: ImageSet) -> float:
    """Metres within which pairs can share something, as the stored ones tell."""
    some = slice(None, None, max(1, graph.pairs // 100_000))
    apart = a.poses.xy[graph.rows[some]] - b.poses.xy[graph.indices[some]]
    metres = np.hypot(*apart.T)
    return float(np.nanmax(metres, initial=0.0)) or 1.0


# What there is


def _section(
    title: str,
    name: str,
    draw: Callable[[EvaluationGroups, Models, Benchmark], Figure],
    caption: str,
    evaluations: EvaluationGroups,
    models: Models,
    benchmark: Benchmark,
) -> Section | None:
    """A figure of models in its section, or why it cannot be drawn (such as a pooling that takes nothing from the map)."""
    if not models or not graded_samples(evaluations):
        return None
    try:
        body = figure(plots.svg(draw(evaluations, models, benchmark)), caption)
    except InputError as reason:
        body = Markup("<p>{}</p>").format(reason)
    return Section(title, body, name)


def _sample(evaluations: EvaluationGroups, benchmark: Benchmark) -> Mapping[str, NDArray[Any]]:
    """The sampled pairs of the first evaluation that has some; ids are those of the benchmark's images."""
    name, arrays = next(iter(needed_sample(evaluations).items()))
    if evaluations[name][0].fingerprint != benchmark.fingerprint:
        raise InputError(f"the evaluation's {benchmark.name!r} is another than the data's; evaluate again")
    return arrays


def _opened(models: Models) -> dict[str, PlaceModel]:
    if not models:
        raise InputError("this figure needs models; give run folders, or evaluations whose model is still there")
    return {name: PlaceModel.load(folder) for name, folder in models.items()}


def contributions(model: PlaceModel, first: Tensor, second: Tensor) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """What every place of the map adds to the cosine of two pooled photos (3, H, W) uint8; each (h, w).

    Feature × slope with the vectors' lengths held fixed: for pooling by mean, maximum or generalised mean the places of
    each photo sum to the cosine itself; for others it is the linear part. Whitening is left aside.
    """
    model.eval()
    with torch.no_grad():
        space, summary = model.pooling_input(model.normalise(torch.stack([first, second])))
    space = space.detach().float().requires_grad_()
    with torch.enable_grad():
        pooled = model.pool(space, summary.detach())
        length = pooled.detach().norm(dim=-1).clamp(min=1e-12)
        cosine = (pooled[0] * pooled[1]).sum() / (length[0] * length[1])
        [slope] = torch.autograd.grad(cosine, [space], allow_unused=True) if cosine.requires_grad else [None]
    if slope is None:
        raise InputError(f"pooling {model.config.pool!r} takes nothing from the map, so it has no activation map")
    shares = (space * slope).sum(1).detach().cpu().numpy()
    return shares[0], shares[1]
