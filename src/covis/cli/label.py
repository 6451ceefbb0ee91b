"""`covis label`: graded similarity labels from poses; and their exports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Context, Option

from covis.cli.options import DataPath, FrameOption, Json, existing, named
from covis.cli.output import emit, table
from covis.cli.verbs import STEPS, verb
from covis.core.errors import InputError

if TYPE_CHECKING:
    from covis.graph import SimilarityGraph
    from covis.images import ImageSet
    from covis.labels.rules import LabelRule

_RULE_FIELDS = (
    "A field of the rule: FIELD=VALUE, repeatable, such as within_group=true, max_angle_deg=40, facing=true, cloud=FILE and "
    "cloud_up=-y (surface), tracks=MODEL (tracks) or path=FILE (graph)."
)


@verb("label", section=STEPS, order=1)
def label(
    context: Context,
    queries: Annotated[
        Path | None, Option(callback=existing, help="The queries: a table, a folder, a COLMAP model, …")
    ] = None,
    database: Annotated[
        Path | None, Option(callback=existing, help="The map images, likewise. [default: the queries with themselves]")
    ] = None,
    output: Annotated[Path | None, Option("-o", "--out", help="Folder for the graph.")] = None,
    measure: Annotated[Literal["overlap", "iou"] | None, Option(help="[default: overlap; surface: iou]")] = None,
    radius_m: Annotated[
        str | None, Option(help="Depth of view in metres; Q,M for two cameras. [default: 50; rule radius: 25]")
    ] = None,
    fov_deg: Annotated[
        str | None, Option(help="Field of view in degrees, up to 360; Q,M for two cameras. [default: 90]")
    ] = None,
    rule: Annotated[
        str | None, Option(callback=named("rule"), help="A name of `covis list rules`. [default: the dataset's; fov]")
    ] = None,
    set_: Annotated[list[str] | None, Option("--set", help=_RULE_FIELDS)] = None,
    dataset: Annotated[
        str | None, Option(callback=named("dataset"), help="Instead of tables: a dataset by name.")
    ] = None,
    data: DataPath = None,
    split: Annotated[str | None, Option(help="Split of that dataset.")] = None,
    uint8: Annotated[bool, Option("--uint8", help="Store ψ in 8 bits; no pair changes its band.")] = False,
    frame: FrameOption = "",
    json: Json = False,
) -> None:
    """Label image pairs by how much their views share. Pairs are of two sets, or of one set with itself.

    \b
    Examples:
      covis label --queries today.csv --database map.csv -o graph
      covis label --queries garden.csv --radius-m 3.5 --measure iou -o graph
      covis label --queries phones.csv --database cars.csv --fov-deg 65,120 -o graph
      covis label --dataset msls --data /data/msls --split train --uint8 -o graph
      covis label --dataset 7scenes --data /data/7scenes --split stairs -o graph
      covis label --queries sparse/0 --rule tracks -o graph
      covis label --dataset town --split val --rule town --set radius_m=60 -o graph
      covis label --queries today.csv --database map.csv --rule graph --set path=labels.csv -o graph
      covis label --dataset msls --data /data/msls --split train --rule graph --set path=/data/msls -o released
    """
    if context.invoked_subcommand is not None:
        return
    if output is None:
        raise InputError("give a folder for the labels: covis label --queries A.csv -o GRAPH")
    given: dict[str, Any] = {
        "measure": measure,
        "radius_m": _one_or_two("radius-m", radius_m),
        "fov_deg": _one_or_two("fov-deg", fov_deg),
        "tracks": str(queries) if rule == "tracks" and queries is not None else None,
    }
    chosen = _rule(rule, dataset, {key: value for key, value in given.items() if value is not None}, set_ or [])
    if dataset is not None and queries is None:
        sides = _dataset_sides(dataset, data, split)
    elif queries is not None and dataset is None:
        sides = _open_sides([path for path in (queries, database) if path is not None], frame)
    else:
        raise InputError("give either --queries TABLE or --dataset NAME --data PATH --split SPLIT")
    left, right = _checked(sides[0]), _checked(sides[-1])
    graph = _finished(output, chosen, left, right, uint8) or _made(output, chosen, left, right, uint8)
    summary = {"graph": str(output), **_summary(graph)}
    lines = {**summary, "rule": summary["rule"]["rule"]}
    lines |= {f"  {k}": v for k, v in summary["rule"].items() if k not in ("rule", "queries", "database")}
    text = table([{"what": k, "value": str(v)} for k, v in lines.items()])
    emit(summary, json, text, f"covis label export {output} --format csv -o labels.csv")


def _one_or_two(option: str, text: str | None) -> float | tuple[float, ...] | None:
    """One number for both sides, or `Q,M` for queries and map."""
    if text is None:
        return None
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) not in (1, 2):
        raise InputError(f"--{option} {text} is not a number; give one, or two as QUERIES,MAP")
    return numbers[0] if len(numbers) == 1 else numbers


def _rule(name: str | None, dataset: str | None, given: dict[str, Any], settings: list[str]) -> LabelRule:
    """The rule of that name, or the dataset's own, with the given options; one that it does not have is an error."""
    from dataclasses import fields

    from covis.core.settings import build_value
    from covis.datasets import DATASETS
    from covis.labels import RULES, FovOverlap

    own = FovOverlap() if dataset is None else DATASETS[dataset].rule
    kind = type(own) if name is None else RULES[name]
    shown = name or next(known for known in RULES if RULES[known] is kind)
    known = {f.name for f in fields(kind)}
    alien = sorted(given.keys() - known)
    if alien:
        having = [n for n in RULES if alien[0] in {f.name for f in fields(RULES[n])}]
        hint = f"it belongs to --rule {', '.join(having)}"
        raise InputError(f"--{alien[0].replace('_', '-')} does not belong to --rule {shown}; {hint}")
    if shown == "radius" and isinstance(given.get("radius_m"), tuple):
        raise InputError("--rule radius takes one radius; it has no cameras to tell apart")
    base = {f: getattr(own, f) for f in known} if isinstance(own, kind) else {}
    return build_value(kind, base | given, settings)


def _dataset_sides(dataset: str, data: list[str] | None, split: str | None) -> tuple[ImageSet, ...]:
    from covis import datasets

    if split is None:
        raise InputError(f"--dataset {dataset} needs --split as well, such as {datasets.DATASETS[dataset].splits[0]}")
    return tuple(datasets.load(dataset, datasets.given_paths(data, [dataset]).get(dataset), split))


def _open_sides(paths: list[Path], frame: str) -> tuple[ImageSet, ...]:
    """Tables in one common frame, or the images of maps and other sources in the frame that they have."""
    from covis.cli.data import open_map_or_images
    from covis.core.progress import warn
    from covis.poses import parse_frame
    from covis.reading.table import SUFFIXES, read_tables

    if all(path.suffix.lower() in SUFFIXES for path in paths):
        sides = read_tables(paths, parse_frame(frame))
    else:
        sides = tuple(open_map_or_images(path, parse_frame(frame)) for path in paths)
    if len({side.poses.frame for side in sides}) > 1:
        raise InputError(f"{paths[0]} and {paths[1]} are in different frames; import both into tables first")
    if len(sides) == 2 and sides[0].root.resolve() == sides[1].root.resolve():
        shared = set(sides[0].names.tolist()) & set(sides[1].names.tolist())
        if shared:
            warn(f"{len(shared)} files are both query and map image; each is its own match")
    return sides


def _checked(images: ImageSet) -> ImageSet:
    """Refuses images without a position, whose pairs would count as sharing nothing."""
    unknown = (~images.poses.known).nonzero()[0]
    if len(unknown):
        first = images.name(int(unknown[0]))
        cause = f"{len(unknown)} of {len(images)} images have no position (first: {first})"
        raise InputError(f"{cause}; fill them in, or leave these images out of the table")
    return images


def _finished(
    output: Path, rule: LabelRule, queries: ImageSet, database: ImageSet, uint8: bool
) -> SimilarityGraph | None:
    """The graph of an earlier run of the same command; an error if the folder holds another."""
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return None
    from json import dumps, loads

    from covis.core.artifacts import difference
    from covis.core.progress import say
    from covis.graph import SimilarityGraph

    graph = SimilarityGraph.open(output)
    requested = {**rule.facts(queries, database), "dtype": "uint8" if uint8 else "float32"}
    stored = {"dtype": "float32", **graph.facts}
    requested, stored = (loads(dumps(facts)) for facts in (requested, stored))
    changes = difference({key: stored.get(key) for key in requested}, requested)
    if changes:
        raise InputError(f"{output} holds other labels ({changes}); choose another output folder")
    say(f"{output} already holds these labels")
    return graph


def _made(output: Path, rule: LabelRule, queries: ImageSet, database: ImageSet, uint8: bool) -> SimilarityGraph:
    """Computes and saves labels, with an estimate before and progress meanwhile."""
    from covis.core.progress import Meter, duration, say
    from covis.labels.exchange import Labels, save_labels

    sizes = f"{len(queries)} images" if queries is database else f"{len(queries)} × {len(database)} images"
    expected = rule.estimate(queries, database, quantised=uint8)
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


@verb("label export")
def export(
    graph: Annotated[Path, Argument(callback=existing, help="Folder that `covis label` wrote.")],
    output: Annotated[Path, Option("-o", "--out", help="File to write.")],
    format_: Annotated[Literal["csv", "h5", "parquet", "hloc"], Option("--format", help="What to write.")],
    least: Annotated[
        float | None, Option("--min-similarity", help="Leave out pairs with a smaller ψ. [default: 0; hloc: 0.5]")
    ] = None,
    most: Annotated[int | None, Option("--top", min=1, help="hloc: at most this many per query.")] = None,
    json: Json = False,
) -> None:
    """Write labels for other tools. As an edge list, the authors' HDF5 or an hloc pair list.

    csv and parquet have the columns query, database, similarity. h5 has `fov` (graded) and `sim` (binary), queries ×
    map, or condensed for one set with itself; for several MSLS cities, a folder of <city>_gt.h5,
    with panoramas as empty rows.

    \b
    Examples:
      covis label export graph --format csv -o labels.csv
      covis label export graph --format h5 -o boston_gt.h5
      covis label export graph --format hloc --top 20 -o pairs.txt
    """
    from covis.graph import POSITIVE
    from covis.labels.exchange import open_labels, write_edges, write_hloc
    from covis.labels.released import write_released

    labels = open_labels(graph)
    if output.is_dir() and format_ != "h5":
        raise InputError(f"{output} is a folder; give a file")
    if format_ == "h5":
        kept = labels.graph if least is None else labels.graph.band(least, 1.0)
        write_released(labels._replace(graph=kept), output)
        pairs = kept.pairs
    elif format_ == "hloc":
        pairs = write_hloc(labels, output, least=POSITIVE if least is None else least, most=most)
    else:
        pairs = write_edges(labels, output, format_, least=least or 0.0)
    emit({"file": str(output), "format": format_, "pairs": pairs}, json, f"{output}: {pairs} pairs")
