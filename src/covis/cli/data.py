"""`covis data`: datasets checked, photos imported into a table, gaps of a map found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from covis.cli.names import known_names
from covis.cli.options import AXES, Json, existing, named
from covis.cli.output import emit, table
from covis.cli.verbs import LOCALISE, group, verb
from covis.core.errors import InputError, unknown_name

if TYPE_CHECKING:
    from covis.images import ImageSet
    from covis.poses import Poses
    from covis.reading.decoding import Rejected
    from covis.reading.frames import Extracted
    from covis.reading.tracks import Track

BAG, VIDEO, _PHOTOS = "a bag", "a video", "a folder of photos"

group("data", "Import photos, find gaps in a map, or check a dataset's files.", section=LOCALISE, order=7)


class Options(NamedTuple):
    """Options other than source and output; None or empty where not given."""

    track: Path | None
    utc_offset: str | None
    panoramas: bool
    every: str
    clock_offset: float
    mount: float | None
    frames: Path | None
    topic: str | None
    poses: str | None
    scale: float | None
    georeference: str
    up: str
    crops: int
    crop_fov: float | None
    crop_size: str

    def only(self, kind: str, *allowed: str) -> None:
        """Raises an error for an option that this kind of source does not use."""
        for name, value in self._asdict().items():
            if value not in (None, "", False, 0) and name not in allowed:
                raise InputError(f"--{name.replace('_', '-')} does not belong to {kind}; leave it out")


class Gathered(NamedTuple):
    """Images and what was left out."""

    images: ImageSet
    rejects: list[Rejected]


@verb("data check")
def check(
    name: Annotated[str, typer.Argument(callback=named("dataset"), help="Dataset, as `covis list datasets` names it.")],
    path: Annotated[Path, typer.Argument(callback=existing, help="Its folder, in the official layout.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="Folder for rejects.csv and report.json. [default: check-NAME]"),
    ] = None,
    quick: Annotated[
        bool, typer.Option(help="Check only the beginning and end of each file, without decoding.")
    ] = False,
    json: Json = False,
) -> None:
    """Check a dataset's files. Counts, what is missing or looks wrong, terms of use.

    Re-run an interrupted check to resume it. The exit code is 2 if an error is found.

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
    lines = [f"{report['dataset']} at {report['path']}", f"terms: {report['licence']}", "", table(rows), ""]
    if report["published"]:
        published = [
            {"count": r["count"], "published": f"{'' if r['exact'] else '≥ '}{r['published']}", "found": r["found"]}
            for r in report["published"]
        ]
        lines += [table(published), ""]
    lines += [f"{f['level']}: {f['text']}" for f in report["findings"]] or ["no problems found"]
    bad = sum(report["rejects"].values())
    lines.append(
        f"{report['images']} files {'looked at' if report['quick'] else 'decoded'}, {bad} rejected: {report['rejects_file']}"
    )
    return "\n".join(lines)


@verb("data import")
def import_(
    source: Annotated[
        Path,
        typer.Argument(
            callback=existing, help="Folder of photos (folders inside become groups), COLMAP model, video, …"
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--out", help="Table to write: .csv or .parquet.")],
    track: Annotated[
        Path | None,
        typer.Option(
            callback=existing,
            help="Positions by image name or by time: .csv, .parquet, .geojson or .gpx. [default: the one in the folder]",
        ),
    ] = None,
    utc_offset: Annotated[
        str | None,
        typer.Option(help="UTC offset of the camera's clock, if the photos do not state it, such as +02:00."),
    ] = None,
    panoramas: Annotated[bool, typer.Option(help="Keep full panoramas, which have no single heading.")] = False,
    every: Annotated[
        str, typer.Option(help="video, bag: distance or time between frames, such as 5m or 2s. [video: 2s]")
    ] = "",
    clock_offset: Annotated[float, typer.Option(help="video: seconds to add to its clock.")] = 0.0,
    mount: Annotated[
        float | None,
        typer.Option(help="video: where the camera faces, in degrees clockwise from the direction of travel."),
    ] = None,
    frames: Annotated[Path | None, typer.Option(help="Folder for frames and crops. [default: OUTPUT.frames]")] = None,
    topic: Annotated[str | None, typer.Option(help="bag: topic of the images, if there are several")] = None,
    poses: Annotated[str | None, typer.Option(help="bag: topic of odometry or poses, if there are several.")] = None,
    scale: Annotated[float | None, typer.Option(help="Metres per unit, for a model of unknown scale.")] = None,
    georeference: Annotated[
        str,
        typer.Option(help="Table with lat,lon of at least three images of a model, or exif for the photos' own GPS."),
    ] = "",
    up: Annotated[
        str, typer.Option(help=f"COLMAP: the axis that points up: {', '.join(AXES)}. [default: by cameras]")
    ] = "",
    crops: Annotated[int, typer.Option(min=0, help="Number of pictures to cut from each panorama.")] = 0,
    crop_fov: Annotated[float | None, typer.Option(help="Degrees across a crop. [default: 90]")] = None,
    crop_size: Annotated[str, typer.Option(help="Pixels of a crop. [default: 640x480]")] = "",
    json: Json = False,
) -> None:
    """Turn photos, a COLMAP model, a video or a ROS bag into a table. With positions, headings and other metadata.

    Re-run to resume an interrupted import of a video or bag.

    \b
    Examples:
      covis data import photos/ -o set.csv
      covis data import photos/ -o set.csv --track walk.gpx --utc-offset +02:00
      covis data import sparse/0 -o set.csv --georeference gps.csv
      covis data import walk.mp4 -o walk.csv --track walk.gpx --every 5m
      covis data import drive.mcap -o drive.csv --every 2m
      covis data import spheres/ -o crops.csv --crops 4
    """
    if output.suffix.lower() not in (".csv", ".parquet", ".pq"):
        raise InputError(f"{output} must end in .csv or .parquet")
    options = Options(
        track, utc_offset, panoramas, every, clock_offset, mount, frames, topic, poses, scale, georeference, up, crops,
        crop_fov, crop_size,
    )  # fmt: skip
    gathered = _gathered(source, output, options)
    if gathered is None:
        options.only(_PHOTOS, "track", "utc_offset", "panoramas")
        _import_photos(source, output, options, json)
        return
    _write(gathered, output, json)


def _gathered(source: Path, output: Path, options: Options) -> Gathered | None:
    """Images of any source except a plain folder of photos, for which it returns None."""
    from covis.reading.sources import is_bag, is_video

    folder = options.frames or output.with_suffix(".frames")
    if is_video(source):
        options.only(VIDEO, "track", "every", "clock_offset", "mount", "frames")
        return _video(source, folder, options)
    if is_bag(source):
        options.only(BAG, "every", "topic", "poses", "frames")
        return _bag(source, folder, options)
    images = _posed(source, options)
    if options.crops:
        return Gathered(_crops(source, images, folder, options), [])
    return None if images is None else Gathered(images, [])


def _video(source: Path, folder: Path, options: Options) -> Gathered:
    from covis.reading.formats.video import import_video
    from covis.reading.frames import Every

    images, done = import_video(
        source,
        folder,
        Every.parse(options.every or "2s"),
        track=_track(options.track),
        offset_s=options.clock_offset,
        mount_deg=options.mount,
    )
    return Gathered(images, _left_out(done))


def _bag(source: Path, folder: Path, options: Options) -> Gathered:
    from covis.reading.formats.bag import import_bag
    from covis.reading.frames import Every

    every = Every.parse(options.every) if options.every else None
    images, done = import_bag(source, folder, every, topic=options.topic, poses=options.poses)
    return Gathered(images, _left_out(done))


def _track(path: Path | None) -> Track | None:
    from covis.reading.tracks import names_images, read_track

    if path is None:
        return None
    if not path.is_file():
        raise InputError(f"{path} does not exist; check --track")
    if names_images(path):
        raise InputError(f"{path} gives positions by image name; a video needs a track by time, such as GPX")
    return read_track(path)


def _left_out(done: Extracted) -> list[Rejected]:
    from covis.reading.decoding import Rejected

    return [Rejected(*row) for row in done.left_out]


def _posed(source: Path, options: Options) -> ImageSet | None:
    """Images of a source with poses, scaled and placed as asked; None for a plain folder of photos."""
    from dataclasses import replace

    from covis.reading.georeference import georeference, scaled, warn_of_course
    from covis.reading.sources import open_posed, posed_format

    kind, allowed = posed_format(source), ["scale", "georeference", "crops", "crop_fov", "crop_size", "frames"]
    if kind == "colmap":
        images: ImageSet | None = _model(source, options.up)
        allowed.append("up")
    else:
        images = open_posed(source)
    if images is None:
        return None
    options.only(f"a source like {source}", *allowed)
    if options.scale is not None and options.georeference:
        raise InputError("give --scale or --georeference, not both: georeferenced images fix the scale too")
    if options.scale is not None:
        images = replace(images, poses=scaled(images.poses, options.scale))
    elif options.georeference:
        images = georeference(images, _known(images, options.georeference))
        warn_of_course(images, str(source))
    return images


def _model(source: Path, up: str) -> ImageSet:
    from typing import cast

    from covis.poses import Axis
    from covis.reading.formats.colmap import read_reconstruction
    from covis.reading.georeference import warn_of_course

    if up and up not in AXES:
        raise unknown_name("axis (--up)", up, AXES)
    images = read_reconstruction(source).image_set(up=cast(Axis, up) if up else None)
    warn_of_course(images, str(source))
    return images


def _known(images: ImageSet, given: str) -> Poses:
    """Where images are known to be, by a table or by their own EXIF."""
    from covis.reading.georeference import exif_positions, known_positions
    from covis.reading.table import read_table

    return exif_positions(images) if given == "exif" else known_positions(images, read_table(Path(given)))


def _crops(source: Path, images: ImageSet | None, folder: Path, options: Options) -> ImageSet:
    import re

    from covis.reading.panoramas import cut, only_panoramas
    from covis.reading.photos import import_photos

    size = re.fullmatch(r"(\d+)x(\d+)", options.crop_size or "640x480")
    if not size:
        raise InputError(f"--crop-size {options.crop_size!r} is not a size; expected one like 640x480")
    if images is None:
        images = import_photos(source, options.track, panoramas=True, positions=False).images()
    fov = 90.0 if options.crop_fov is None else options.crop_fov
    shape = int(size[1]), int(size[2])
    return cut(only_panoramas(images, source), folder, count=options.crops, fov_deg=fov, size=shape)


def _write(gathered: Gathered, output: Path, json: bool) -> None:
    from collections import Counter

    import numpy as np

    from covis.reading.decoding import REJECTS, write_rejects
    from covis.reading.pose_columns import write_images

    images = gathered.images
    write_images(images, output)
    if gathered.rejects:
        write_rejects(output.parent / REJECTS, gathered.rejects)
    rotation = images.poses.rotation
    data: dict[str, Any] = {
        "table": str(output),
        "photos": len(images),
        "positions": int(images.poses.known.sum()),
        "headings": int((~np.isnan(images.poses.heading)).sum()),
        "rotations": 0 if rotation is None else int((~np.isnan(rotation[:, 0, 0])).sum()),
        "cameras": 0 if images.intrinsics is None else int((~np.isnan(images.intrinsics[:, 4])).sum()),
        "groups": len(images.group_names),
        "frame": images.poses.frame,
        "rejects": dict(Counter(r.reason for r in gathered.rejects)),
        "rejects_file": str(output.parent / REJECTS) if gathered.rejects else None,
    }
    emit(data, json, _import_text(data), f"covis index {output} -o MAP")


def _import_photos(source: Path, output: Path, options: Options, json: bool) -> None:
    from collections import Counter

    import numpy as np

    from covis.reading.decoding import REJECTS, write_rejects
    from covis.reading.photos import import_photos, write_table

    offset = _offset_s(options.utc_offset)
    imported = import_photos(source, options.track, utc_offset_s=offset, panoramas=options.panoramas, output=output)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_table(imported, output)
    if imported.rejects:
        write_rejects(output.parent / REJECTS, imported.rejects)
    data: dict[str, Any] = {
        "table": str(output),
        "photos": len(imported.names),
        "positions": int((~np.isnan(imported.lat)).sum()),
        "headings": int((~np.isnan(imported.heading)).sum()),
        "magnetic_headings": imported.reference.count("magnetic"),
        "turned": int((imported.orientation != 1).sum()),
        "groups": len(set(imported.group)),
        "frame": imported.poses.frame,
        "rejects": dict(Counter(r.reason for r in imported.rejects)),
        "rejects_file": str(output.parent / REJECTS) if imported.rejects else None,
    }
    emit(data, json, _import_text(data), f"covis index {output} -o MAP")


def _offset_s(text: str | None) -> float | None:
    """`+02:00` → 7200."""
    if text is None:
        return None
    sign, rest = text[:1], text[1:].split(":")
    if sign not in "+-" or len(rest) != 2 or not all(part.isdigit() for part in rest):
        raise InputError(f"--utc-offset {text!r} is not an offset; expected one like +02:00")
    seconds = 3600.0 * int(rest[0]) + 60.0 * int(rest[1])
    return -seconds if sign == "-" else seconds


def _import_text(data: dict[str, Any]) -> str:
    lines = [
        f"{data['table']}: {data['photos']} photos, {data['positions']} with a position, {data['headings']} with a heading"
    ]
    if data.get("rotations"):
        lines[0] += f", {data['rotations']} with a 6DOF pose"
    if data["rejects"]:
        kinds = ", ".join(f"{n} {reason}" for reason, n in data["rejects"].items())
        lines.append(f"left out: {kinds} (see {data['rejects_file']})")
    return "\n".join(lines)


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
        Path, typer.Argument(callback=existing, metavar="MAP_OR_IMAGES", help="A map, a table, a folder of photos, …")
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--out", help="Also write cells as a layer: .gpkg or .geojson.")
    ] = None,
    cell: Annotated[float, typer.Option(help="Metres across a cell.")] = 25.0,
    answers: Annotated[
        Path | None,
        typer.Option(
            callback=existing,
            help="Answers as GeoJSON (covis locate -o found.geojson); those not confident count as failures.",
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Places to photograph next.")] = 10,
    json: Json = False,
) -> None:
    """Show where a map has gaps. Empty cells, missing headings, failed answers, and where to photograph next.

    \b
    Examples:
      covis data coverage town.map
      covis data coverage town.map --answers found.geojson -o coverage.gpkg
    """
    from covis.field.coverage import coverage as measure
    from covis.gis import write_layers

    images = open_map_or_images(source)
    failed = None if answers is None else _failures(answers, images)
    cells = measure(images, cell, failed)
    summary = cells.summary(top)
    if output is not None:
        if not images.poses.frame:
            raise InputError(f"{source} has no place on Earth; a layer needs lat and lon (leave -o out)")
        write_layers(output, [cells.layer()])
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
