"""`covis data`: datasets checked, photos imported into a table, gaps of a map found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from covis.cli.names import known_names
from covis.cli.options import Json, UtcOffset, existing, named
from covis.cli.output import emit, table
from covis.cli.verbs import LOCALISE, group, verb
from covis.core.errors import InputError

if TYPE_CHECKING:
    from covis.images import ImageSet

group("data", "Import photos, find gaps in a map, or check a dataset's files.", section=LOCALISE, order=7)


@verb("data check")
def check(
    name: Annotated[str, Argument(callback=named("dataset"), help="Dataset, as `covis list datasets` names it.")],
    path: Annotated[Path, Argument(callback=existing, help="Its folder, in the official layout.")],
    output: Annotated[
        Path | None, Option("-o", "--out", help="Folder for rejects.csv and report.json. [default: check-NAME]")
    ] = None,
    quick: Annotated[bool, Option("--quick", help="Look at each file's beginning and end, without decoding.")] = False,
    json: Json = False,
) -> None:
    """Check a dataset's files. Counts, what is missing or looks wrong, terms of use.

    The exit code is 2 if an error is found.

    \b
    Examples:
      covis data check msls /data/msls
      covis data check pitts30k /data/pitts --quick --json
    """
    from covis.core import machine
    from covis.datasets.doctor import check as check_dataset

    report = check_dataset(name, path, output or Path(f"check-{name}"), quick=quick, workers=machine.workers())
    whole = not any(finding["level"] == "error" for finding in report["findings"])
    emit(report, json, _check_text(report), _after_check(name, path) if whole else "")
    if not whole:
        raise typer.Exit(2)


def _after_check(name: str, path: Path) -> str:
    """The next command for a complete dataset: training on it if a recipe does, else its benchmark."""
    from covis.evaluation import BENCHMARKS

    if any(make().dataset == name for make in known_names("recipe").values()):
        return f"covis train RECIPE --data {name}={path} -o RUN (covis list recipes --match {name})"
    benchmark = next((b for b in BENCHMARKS if BENCHMARKS[b].dataset == name), "")
    return f"covis evaluate MODEL {benchmark} --data {name}={path}" if benchmark else ""


def _check_text(report: dict[str, Any]) -> str:
    rows = []
    for split, facts in report["splits"].items():
        for side in ("queries", "database"):
            if side in facts:
                counts = {k: facts[side][k] for k in ("images", "groups", "positions", "headings")}
                rows.append({"split": split, "side": "one set" if facts["one_set"] else side, **counts})
    published = [
        {"count": r["count"], "published": f"{'' if r['exact'] else '≥ '}{r['published']}", "found": r["found"]}
        for r in report["published"]
    ]
    bad, looked = sum(report["rejects"].values()), "looked at" if report["quick"] else "decoded"
    lines = [f"{report['dataset']} at {report['path']}", f"terms: {report['licence']}", "", table(rows), ""]
    lines += [table(published), ""] if published else []
    lines += [f"{f['level']}: {f['text']}" for f in report["findings"]] or ["no problems found"]
    return "\n".join([*lines, f"{report['images']} files {looked}, {bad} rejected: {report['rejects_file']}"])


@verb("data import")
def import_(
    source: Annotated[
        Path, Argument(callback=existing, help="Folder of photos (folders inside are groups), COLMAP model, video, …")
    ],
    output: Annotated[Path, Option("-o", "--out", help="Table to write: .csv or .parquet.")],
    track: Annotated[
        Path | None,
        Option(
            callback=existing, help="Positions by image name or time: .csv, .parquet, .gpx. [default: in the folder]"
        ),
    ] = None,
    utc_offset: UtcOffset = "",
    every: Annotated[str, Option(help="video, bag: distance or time between frames, such as 5m. [video: 2s]")] = "",
    clock_offset: Annotated[float, Option(help="video: seconds to add to its clock.")] = 0.0,
    mount: Annotated[
        float | None, Option(help="video: where the camera faces, in degrees clockwise from the direction of travel.")
    ] = None,
    topic: Annotated[str | None, Option(help="bag: topic of the images, if there are several")] = None,
    poses: Annotated[str | None, Option(help="bag: topic of odometry or poses, if there are several.")] = None,
    scale: Annotated[float | None, Option(help="Metres per unit, for a model of unknown scale.")] = None,
    georeference: Annotated[
        str, Option(help="Table with lat,lon of at least three images of a model, or exif for the photos' own GPS.")
    ] = "",
    up: Annotated[
        Literal["x", "y", "z", "-x", "-y", "-z"] | None, Option(help="COLMAP: which axis is up. [default: by cameras]")
    ] = None,
    json: Json = False,
) -> None:
    """Turn photos, a COLMAP model, a video or a ROS bag into a table. With positions, headings and other metadata.

    \b
    Examples:
      covis data import photos/ -o set.csv
      covis data import photos/ -o set.csv --track walk.gpx --utc-offset +02:00
      covis data import sparse/0 -o set.csv --georeference gps.csv
      covis data import walk.mp4 -o walk.csv --track walk.gpx --every 5m
      covis data import drive.mcap -o drive.csv --every 2m
    """
    if output.suffix.lower() not in (".csv", ".parquet", ".pq"):
        raise InputError(f"{output} must end in .csv or .parquet")
    from covis.reading.importing import ImportOptions, import_source

    options = ImportOptions(
        track=track, utc_offset=utc_offset, every=every, clock_offset=clock_offset, mount=mount, frames=None, topic=topic,
        poses=poses, scale=scale, georeference=georeference, up=up or "",
    )  # fmt: skip
    data = import_source(source, output, options)
    emit(data, json, _import_text(data), f"covis index {output} -o MAP")


def _import_text(data: dict[str, Any]) -> str:
    poses = f", {data['rotations']} with a 6DOF pose" if data.get("rotations") else ""
    counts = f"{data['photos']} photos, {data['positions']} with a position, {data['headings']} with a heading"
    kinds = ", ".join(f"{n} {reason}" for reason, n in data["rejects"].items())
    left_out = f"\nleft out: {kinds} (see {data['rejects_file']})" if kinds else ""
    return f"{data['table']}: {counts}{poses}{left_out}"


def open_map_or_images(source: Path, frame: str = "") -> ImageSet:
    """The images of a map, or of anything else that holds images, those of tables and photos in `frame`."""
    from covis.maps.storage.layout import RECORD
    from covis.reading.sources import open_images

    if not (source / RECORD).is_file():
        return open_images(source, frame=frame)
    from covis.maps.map import Map

    return Map.open(source).images


@verb("data coverage")
def coverage(
    source: Annotated[
        Path, Argument(callback=existing, metavar="MAP_OR_IMAGES", help="A map, a table, a folder of photos, …")
    ],
    output: Annotated[Path | None, Option("-o", "--out", help="Also write cells as polygons: .geojson.")] = None,
    cell: Annotated[float, Option(help="Metres across a cell.")] = 25.0,
    answers: Annotated[
        Path | None,
        Option(callback=existing, help="Answers (covis locate -o found.geojson): those not confident are failures."),
    ] = None,
    top: Annotated[int, Option(min=1, help="Places to photograph next.")] = 10,
    json: Json = False,
) -> None:
    """Show where a map has gaps. Empty cells, missing headings, failed answers, and where to photograph next.

    \b
    Examples:
      covis data coverage town.map
      covis data coverage town.map --answers found.geojson -o coverage.geojson
    """
    from covis.field.coverage import coverage as measure
    from covis.geojson import write_features

    images = open_map_or_images(source)
    cells = measure(images, cell, None if answers is None else _failures(answers, images))
    summary = cells.summary(top)
    if output is not None:
        if not images.poses.frame:
            raise InputError(f"{source} has no place on Earth; GeoJSON needs lat and lon (leave -o out)")
        write_features(output, cells.features())
        summary["output"] = str(output)
    counts = {k: v for k, v in summary.items() if k != "photograph_next"}
    emit(summary, json, f"{table([counts])}\n\nphotograph next:\n{table(summary['photograph_next'])}")


def _failures(path: Path, images: ImageSet) -> Any:
    """(M, 2) metres of the positions of answers that are not confident."""
    import numpy as np

    from covis.core.artifacts import read_json
    from covis.poses import Poses

    features = read_json(path).get("features") or []
    unsure = [f for f in features if (f.get("properties") or {}).get("confident") is False and f.get("geometry")]
    degrees = np.array([f["geometry"]["coordinates"][:2] for f in unsure], np.float64).reshape(-1, 2)
    return Poses.from_latlon(degrees[:, 1], degrees[:, 0], frame=images.poses.frame).xy
