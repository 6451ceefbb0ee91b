"""`covis label export` and `covis label plot`: labels for other tools, and pictures of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covis.cli.common import Json, emit
from covis.cli.label import Cloud, CloudUp, Data, Database, DatasetName, Queries, SplitName, image_sets, read_cloud
from covis.errors import InputError, unknown_name

if TYPE_CHECKING:
    from covis.images import ImageSet
    from covis.labels.saved import Labels

FORMATS = ("csv", "h5", "parquet", "hloc")
ENDINGS = {".csv": "csv", ".h5": "h5", ".hdf5": "h5", ".parquet": "parquet", ".pq": "parquet", ".txt": "hloc"}
PICTURES = ("pair", "scatter", "heatmap", "map", "surface")


def export(
    graph: Annotated[Path, typer.Argument(help="Folder that `covis label` wrote.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")],
    format_: Annotated[str, typer.Option("--format", help=" | ".join(FORMATS))],
    least: Annotated[
        float | None, typer.Option("--min-similarity", help="Leave out smaller ψ. [default: 0; hloc: 0.5]")
    ] = None,
    most: Annotated[int | None, typer.Option("--top", min=1, help="hloc: at most this many a query.")] = None,
    full: Annotated[bool, typer.Option("--full", help="h5: a whole matrix also for one set with itself.")] = False,
    json: Json = False,
) -> None:
    """Write labels for other tools: an edge list, the authors' HDF5, or an hloc pair list.

    csv and parquet have the columns query, database, similarity. h5 has `fov` (graded) and `sim` (binary), queries ×
    map, or condensed for one set with itself.

    \b
    Examples:
      covis label export graph --format csv -o labels.csv
      covis label export graph --format h5 -o boston_gt.h5
      covis label export graph --format hloc --top 20 -o pairs.txt
    """
    from covis.graph import POSITIVE
    from covis.labels.edges import write_edges, write_hloc
    from covis.labels.released import write_h5
    from covis.labels.saved import open_labels

    if format_ not in FORMATS:
        raise unknown_name("format", format_, FORMATS)
    if output.is_dir():
        raise InputError(f"{output} is a folder; give a file")
    labels = open_labels(graph)
    if format_ == "h5":
        kept = labels.graph if least is None else labels.graph.band(least, 1.0)
        write_h5(kept, output, full=full)
        pairs = kept.pairs
    elif format_ == "hloc":
        pairs = write_hloc(labels, output, least=POSITIVE if least is None else least, most=most)
    else:
        pairs = write_edges(labels, output, format_, least=least or 0.0)
    emit({"file": str(output), "format": format_, "pairs": pairs}, json, f"{output}: {pairs} pairs")


def import_labels(
    file: Annotated[Path, typer.Argument(help="Labels of another tool: .csv, .parquet, .h5, or a pair list .txt.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the graph.")],
    queries: Queries = None,
    database: Database = None,
    dataset: DatasetName = None,
    data: Data = None,
    split: SplitName = None,
    key: Annotated[str, typer.Option(help="h5: fov (graded) or sim (binary).")] = "fov",
    format_: Annotated[str | None, typer.Option("--format", help=" | ".join(FORMATS))] = None,
    json: Json = False,
) -> None:
    """Read labels of another tool into a graph: an edge list, the authors' HDF5, or an hloc pair list (ψ = 1).

    Edge and pair lists name their images; the rows and columns of h5 are the images of the tables, in their order.

    \b
    Examples:
      covis label import labels.csv --queries today.csv --database map.csv -o graph
      covis label import W17_similarity.h5 --dataset tb_places --data /data/tb --split w17_train -o graph
      covis label import pairs.txt --queries today.csv --database map.csv -o graph
    """
    from covis.labels.edges import read_edges, read_hloc
    from covis.labels.released import read_released
    from covis.labels.saved import Labels, save_labels

    kind = format_ or ENDINGS.get(file.suffix.lower(), file.suffix or file.name)
    if kind not in FORMATS:
        raise unknown_name("format", kind, FORMATS)
    if not file.is_file():
        raise InputError(f"{file} is not there; check the path")
    sides = image_sets(queries, database, dataset, data, split)
    if kind == "h5":
        graph = read_released(file, *sides, key)
    else:
        graph = read_hloc(file, *sides) if kind == "hloc" else read_edges(file, *sides, kind)
    save_labels(Labels(graph, *sides), output)
    shape = list(graph.shape)
    emit({"graph": str(output), "shape": shape, "pairs": graph.pairs}, json, f"{output}: {graph.pairs} pairs")


def plot(
    graph: Annotated[Path, typer.Argument(help="Folder that `covis label` wrote.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Picture to write: .png, .svg or .pdf.")],
    kind: Annotated[str, typer.Option(help=" | ".join(PICTURES))] = "scatter",
    pair: Annotated[
        tuple[str, str] | None,
        typer.Option(help="pair, surface: a query and a map image, by name or row number. [default: one near ψ = 0.5]"),
    ] = None,
    dataset: DatasetName = None,
    data: Data = None,
    split: SplitName = None,
    cloud: Cloud = None,
    cloud_up: CloudUp = "z",
    json: Json = False,
) -> None:
    """Draw labels: a pair's fields of view, overlap against distance and angle, a city's positives, shared points.

    surface needs the dataset as well, for its poses and depth maps.

    \b
    Examples:
      covis label plot graph --kind scatter -o overlap.png
      covis label plot graph --kind pair --pair a.jpg b.jpg -o pair.svg
      covis label plot graph --kind map -o city.png
      covis label plot graph --kind surface --dataset 7scenes --data /data/7scenes --split stairs -o points.png
    """
    from covis.labels.pictures import picture_heatmap, picture_map, picture_scatter
    from covis.labels.saved import open_labels

    if kind not in PICTURES:
        raise unknown_name("kind of picture", kind, PICTURES)
    if output.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise InputError(f"{output} must end in .png, .svg or .pdf")
    labels = open_labels(graph)
    if kind == "surface":
        sides = image_sets(None, None, dataset, data, split)
        figure = _surface_picture(labels, pair, sides, cloud, cloud_up)
    elif kind == "pair":
        figure = _pair_picture(labels, pair)
    elif kind == "map":
        figure = picture_map(labels.graph, labels.queries)
    else:
        draw = picture_scatter if kind == "scatter" else picture_heatmap
        figure = draw(labels.graph, labels.queries, labels.database)
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=150)
    emit({"file": str(output), "kind": kind}, json, str(output))


def _pair_picture(labels: Labels, pair: tuple[str, str] | None) -> Any:
    from covis.labels.pictures import picture_pair

    facts = labels.graph.facts
    if facts.get("rule") != "FovOverlap":
        raise InputError(f"these labels are by {facts.get('rule')}; fields of view belong to FovOverlap")
    i, j = _pair(labels, pair)
    radius, fov = (tuple(v) if isinstance(v, list) else v for v in (facts["radius_m"], facts["fov_deg"]))
    return picture_pair(
        labels.queries, i, labels.database, j,
        radius_m=radius, fov_deg=fov, measure=facts["measure"], facing=bool(facts.get("facing")),
    )  # fmt: skip


def _surface_picture(
    labels: Labels, pair: tuple[str, str] | None, sides: tuple[ImageSet, ImageSet], cloud: Path | None, cloud_up: str
) -> Any:
    from covis.labels.pictures import picture_surface
    from covis.labels.pointclouds import fuse_depth

    queries, database = sides
    if (len(queries), len(database)) != labels.graph.shape:
        raise InputError(
            f"the graph is of {labels.graph.shape[0]} × {labels.graph.shape[1]} images, "
            f"the split has {len(queries)} × {len(database)}; give the split that was labelled"
        )
    i, j = _pair(labels, pair)
    points = read_cloud(cloud, cloud_up) or fuse_depth([queries] if queries is database else [queries, database])
    return picture_surface(points, queries, i, database, j, str(labels.graph.facts.get("occlusion", "none")))


def _pair(labels: Labels, pair: tuple[str, str] | None) -> tuple[int, int]:
    """Row and column: as given, or those of a pair near half overlap, which shows most."""
    import numpy as np

    if pair is not None:
        return _image(labels.queries, pair[0]), _image(labels.database, pair[1])
    if not labels.graph.pairs:
        raise InputError("the graph holds no pair; name one with --pair")
    at = int(np.argmin(np.abs(labels.graph.psi - 0.5)))
    return int(np.searchsorted(labels.graph.indptr, at, side="right") - 1), int(labels.graph.indices[at])


def _image(images: ImageSet, name: str) -> int:
    import os

    names = images.names.tolist()
    if os.fsencode(name) in names:
        return int(names.index(os.fsencode(name)))
    if name.isdigit() and int(name) < len(images):
        return int(name)
    raise unknown_name("image", name, (os.fsdecode(n) for n in names))
