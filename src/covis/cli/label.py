"""`covis label`: graded similarity labels from poses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covis.cli.common import Json, emit, table
from covis.errors import InputError, unknown_name

if TYPE_CHECKING:
    from covis.graph import SimilarityGraph
    from covis.images import ImageSet
    from covis.labels.pointclouds import PointCloud
    from covis.labels.rules import Rule

RULES = ("fov", "radius", "surface")
AXES = ("x", "y", "z", "-x", "-y", "-z")

Queries = Annotated[Path | None, typer.Option(help="Table of the queries (CSV or Parquet).")]
Database = Annotated[Path | None, typer.Option(help="Table of the map images. [default: the queries with themselves]")]
DatasetName = Annotated[str | None, typer.Option("--dataset", help="Instead of tables: a dataset by name.")]
Data = Annotated[Path | None, typer.Option(help="Folder of that dataset; not needed for the town.")]
SplitName = Annotated[str | None, typer.Option("--split", help="Split of that dataset.")]
Cloud = Annotated[Path | None, typer.Option(help="surface: point cloud, .ply or .npz. [default: fused depth maps]")]
CloudUp = Annotated[str, typer.Option(help=f"surface: the cloud file's axis that points up: {', '.join(AXES)}.")]


def label(
    context: typer.Context,
    queries: Queries = None,
    database: Database = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder for the graph.")] = None,
    measure: Annotated[
        str | None, typer.Option(help="overlap | query_overlap | iou. [default: overlap; surface: iou]")
    ] = None,
    radius_m: Annotated[
        str | None, typer.Option(help="Depth of view in metres; Q,M for two cameras. [default: 50; rule radius: 25]")
    ] = None,
    fov_deg: Annotated[
        str | None, typer.Option(help="Opening in degrees, up to 360; Q,M for two cameras. [default: 90]")
    ] = None,
    rule: Annotated[str, typer.Option(help=" | ".join(RULES))] = "fov",
    max_angle_deg: Annotated[float | None, typer.Option(help="Leave out pairs whose headings differ by more.")] = None,
    facing: Annotated[bool, typer.Option("--facing", help="Weigh cameras that look at each other down.")] = False,
    within_group: Annotated[
        bool, typer.Option("--within-group", help="Only pairs of one group (city, scene).")
    ] = False,
    dataset: DatasetName = None,
    data: Data = None,
    split: SplitName = None,
    cloud: Cloud = None,
    cloud_up: CloudUp = "z",
    occlusion: Annotated[str, typer.Option(help="surface: none | zbuffer.")] = "none",
    uint8: Annotated[bool, typer.Option("--uint8", help="Keep ψ in steps of 1/255; no pair changes its band.")] = False,
    skip_unknown: Annotated[bool, typer.Option("--skip-unknown", help="Leave out images without a position.")] = False,
    json: Json = False,
) -> None:
    """Label every pair of two sets (or of one set with itself) by how much the two views share.

    \b
    Examples:
      covis label --queries today.csv --database map.csv -o graph
      covis label --queries garden.csv --radius-m 3.5 --measure iou -o graph
      covis label --queries phones.csv --database cars.csv --fov-deg 65,120 -o graph
      covis label --dataset msls --data /data/msls --split train --within-group --uint8 -o graph
      covis label --dataset 7scenes --data /data/7scenes --split stairs --rule surface -o graph
    """
    if context.invoked_subcommand is not None:
        return
    if output is None:
        raise InputError("give a folder for the labels: covis label --queries A.csv -o GRAPH")
    given = {"measure": measure, "radius_m": _sides("radius-m", radius_m), "fov_deg": _sides("fov-deg", fov_deg)}
    given |= {"max_angle_deg": max_angle_deg, "facing": facing or None, "within_group": within_group or None}
    chosen = _rule(rule, given, cloud, cloud_up, occlusion)
    here, there = _with_positions(image_sets(queries, database, dataset, data, split), skip_unknown)
    graph = _finished(output, chosen, here, there, uint8) or _made(output, chosen, here, there, uint8)
    summary = {"graph": str(output), **_summary(graph)}
    emit(summary, json, table([{"what": k, "value": str(v)} for k, v in _flat(summary)]))


def _sides(option: str, text: str | None) -> float | tuple[float, float] | None:
    """One number for both sides, or `Q,M` for queries and map."""
    try:
        numbers = [float(part) for part in text.split(",")] if text is not None else None
    except ValueError:
        numbers = []
    if numbers is None:
        return None
    if len(numbers) not in (1, 2):
        raise InputError(f"--{option} {text} is not a number; give one, or two as QUERIES,MAP")
    return numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1])


def _rule(name: str, given: dict[str, Any], cloud: Path | None, cloud_up: str, occlusion: str) -> Rule:
    """The rule with what was given; an option that the rule does not have is an error."""
    from dataclasses import fields

    from covis.labels import FovOverlap, Radius, SurfaceOverlap

    if name not in RULES:
        raise unknown_name("rule", name, RULES)
    kind: Any = {"fov": FovOverlap, "radius": Radius, "surface": SurfaceOverlap}[name]
    options = {key: value for key, value in given.items() if value is not None}
    if name == "surface":
        options |= {"occlusion": occlusion, "cloud": read_cloud(cloud, cloud_up)}
    elif cloud is not None or occlusion != "none":
        raise InputError(f"--cloud and --occlusion belong to --rule surface, not to --rule {name}")
    alien = sorted(options.keys() - {f.name for f in fields(kind)})
    if alien:
        raise InputError(f"--{alien[0].replace('_', '-')} does not belong to --rule {name}")
    if name == "radius" and isinstance(options.get("radius_m"), tuple):
        raise InputError("--rule radius takes one radius; it has no cameras to tell apart")
    chosen: Rule = kind(**options)
    return chosen


def read_cloud(path: Path | None, up: str) -> PointCloud | None:
    """The cloud of a file whose axis `up` points away from the ground; None where no file is given."""
    from typing import cast

    from covis.labels.pointclouds import read_points
    from covis.poses import Axis

    if up not in AXES:
        raise unknown_name("axis", up, AXES)
    return read_points(path, up=cast(Axis, up)) if path else None


def image_sets(
    queries: Path | None, database: Path | None, dataset: str | None, data: Path | None, split: str | None
) -> tuple[ImageSet, ImageSet]:
    """Both sides; one object twice where a set is matched with itself."""
    if (queries is None) == (dataset is None):
        raise InputError("give either --queries TABLE or --dataset NAME --data PATH --split SPLIT")
    if dataset is not None:
        from covis import datasets

        if split is None:
            raise InputError(
                f"--dataset {dataset} needs --split as well, such as {datasets.DATASETS[dataset].splits[0]}"
            )
        sides: tuple[ImageSet, ...] = tuple(datasets.load(dataset, data, split))
    else:
        from covis.datasets.table import read_tables

        sides = read_tables([path for path in (queries, database) if path is not None])
    _warn_of_shared_files(sides[0], sides[-1])
    return sides[0], sides[-1]


def _warn_of_shared_files(queries: ImageSet, database: ImageSet) -> None:
    """A file on both sides is its own perfect match, which is seldom meant."""
    from covis.progress import warn

    if queries is database or queries.root.resolve() != database.root.resolve():
        return
    shared = set(queries.names.tolist()) & set(database.names.tolist())
    if shared:
        warn(f"{len(shared)} files are both query and map image; each is its own match")


def _with_positions(sides: tuple[ImageSet, ImageSet], skip_unknown: bool) -> tuple[ImageSet, ImageSet]:
    known = {id(side): _with_position(side, skip_unknown) for side in sides}
    return known[id(sides[0])], known[id(sides[1])]


def _with_position(images: ImageSet, skip_unknown: bool) -> ImageSet:
    from covis.progress import warn

    unknown = (~images.poses.known).nonzero()[0]
    if not len(unknown):
        return images
    told = f"{len(unknown)} of {len(images)} images have no position (first: {images.name(int(unknown[0]))})"
    if not skip_unknown or len(unknown) == len(images):
        raise InputError(f"{told}; fill them in, or leave such images out with --skip-unknown")
    warn(f"{told}; they are left out")
    return images.subset(images.poses.known)


def _finished(output: Path, rule: Rule, queries: ImageSet, database: ImageSet, uint8: bool) -> SimilarityGraph | None:
    """The graph of an earlier run of the same command; an error if the folder holds another."""
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return None
    from json import dumps, loads

    from covis.graph import SimilarityGraph
    from covis.labels.rules import facts_of
    from covis.progress import say

    graph = SimilarityGraph.open(output)
    wanted = {**facts_of(rule, queries, database), "dtype": "uint8" if uint8 else "float32"}
    found = {"dtype": "float32", **graph.facts}
    if "cloud" in wanted:
        wanted["cloud"] = wanted["cloud"] and wanted["cloud"].describe()
        found["cloud"] = wanted["cloud"] and found["cloud"]
    wanted, found = (loads(dumps(facts)) for facts in (wanted, found))
    other = [k for k in {**found, **wanted} if found.get(k) != wanted.get(k)]
    if other:
        told = ", ".join(f"{k}: {found.get(k)!r} there, {wanted.get(k)!r} now" for k in other[:3])
        raise InputError(f"{output} holds other labels ({told}); choose another output folder")
    say(f"{output} holds these labels already")
    return graph


def _made(output: Path, rule: Rule, queries: ImageSet, database: ImageSet, uint8: bool) -> SimilarityGraph:
    """Labels with an estimate before and progress meanwhile, saved."""
    from covis.labels.estimates import estimate
    from covis.labels.saved import Labels, save_labels
    from covis.progress import Meter, duration, say

    sizes = f"{len(queries)} images" if queries is database else f"{len(queries)} × {len(database)} images"
    expected = estimate(rule, queries, database, quantised=uint8)
    took = duration(expected.seconds)
    say(f"labelling {sizes}: about {expected.pairs:,} overlapping pairs, {took}, {expected.megabytes:.1f} MB")
    with Meter("labelled", len(queries), "queries") as meter:
        graph = rule(queries, database, meter.advance)
    graph = graph.quantised() if uint8 else graph
    save_labels(Labels(graph, queries, database), output)
    return graph


def _summary(graph: SimilarityGraph) -> dict[str, Any]:
    from covis.graph import POSITIVE

    positive = graph.band(POSITIVE, 1.0)
    return {
        "queries": graph.shape[0],
        "database": graph.shape[1],
        "pairs": graph.pairs,
        "positives": positive.pairs,
        "queries_without_positive": int((positive.indptr[1:] == positive.indptr[:-1]).sum()),
        "rule": dict(graph.facts),
        "fingerprint": graph.fingerprint(),
    }


def _flat(summary: dict[str, Any]) -> list[tuple[str, Any]]:
    """The summary a line each, the rule's parameters too."""
    named = ((key, value) for key, value in summary["rule"].items() if key not in ("rule", "queries", "database"))
    return [*((k, v if k != "rule" else v["rule"]) for k, v in summary.items()), *((f"  {k}", v) for k, v in named)]
