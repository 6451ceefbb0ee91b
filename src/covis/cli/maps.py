"""`covis index`, `add`, `remove`, `locate`: maps on the command line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covis.cli.common import (
    Device,
    FrameOption,
    Json,
    choice_of,
    emit,
    existing,
    existing_map,
    existing_model,
    index_kind,
    named,
    some_existing,
)
from covis.errors import InputError

if TYPE_CHECKING:
    from covis.images import ImageSet
    from covis.maps.exports import GeoPoseForm
    from covis.maps.fitting import Fitted
    from covis.maps.locating import Answer
    from covis.maps.map import Map
    from covis.models import PlaceModel
if TYPE_CHECKING:
    from covis.search import Area

TrackOption = Annotated[
    Path | None, typer.Option(callback=existing, help="A table or track (GPX) with the positions of the photos.")
]
PicturesOption = Annotated[
    list[Path] | None,
    typer.Option(
        callback=existing,
        metavar="FOLDER",
        help="Also show photos of the map that lie here; those of folders given to covis index are shown anyway.",
    ),
]
GivenPhotos = Annotated[
    Path | None,
    typer.Option(callback=existing, help="A store with the photos' descriptors (covis embed), if there is one."),
]


def index(
    photos: Annotated[
        Path, typer.Argument(callback=existing, help="A folder of photos with GPS, or a table (CSV, Parquet, GeoJSON).")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The map; the same command resumes it.")],
    model: Annotated[
        Path | None, typer.Option(callback=existing_model, help="A model directory, or a training run.")
    ] = None,
    train: Annotated[
        bool, typer.Option("--train", help="Fit a model to the photos, the default without --model.")
    ] = False,
    recipe: Annotated[
        str,
        typer.Option(
            callback=named("recipe"),
            help="What is fitted: own_photos, own_photos_small or another (default: the best there is).",
        ),
    ] = "",
    weights: Annotated[
        str, typer.Option(help="Backbone weights (.safetensors) where they cannot be fetched; tells the recipe.")
    ] = "",
    fine_tune: Annotated[
        bool, typer.Option("--fine-tune", help="Also train the network on the photos, and keep that if it helps.")
    ] = False,
    track: TrackOption = None,
    frame: FrameOption = "",
    kind: Annotated[
        str, typer.Option(callback=index_kind, help="Search: auto, or a kind of `covis list indexes`.")
    ] = "auto",
    max_ram: Annotated[str, typer.Option(help="Memory that the index may take, such as 500M or 2G.")] = "",
    descriptors: GivenPhotos = None,
    engine: Annotated[
        str, typer.Option(help="Keep photos and descriptors in an engine: milvus:URI or postgresql://USER@HOST/DB.")
    ] = "",
    scene: Annotated[
        Path | None,
        typer.Option(help="For locate --pose: a COLMAP model of the photos, or images with depth."),
    ] = None,
    runtime: Annotated[
        str,
        typer.Option(
            callback=choice_of("--runtime", ("auto", "torch")),
            help="What locate runs: auto (an ONNX file inside the map, if onnx is installed) or torch.",
        ),
    ] = "auto",
    device: Device = None,
    json: Json = False,
) -> None:
    """Make a map from photos whose positions are known: import, check, embed, index and calibrate.

    \b
    Examples:
      covis index photos/ -o town.map
      covis index photos/ -o town.map --weights mobilenetv2.safetensors
      covis index photos/ -o town.map --model runs/quick/model
      covis index drives.csv -o city.map --model runs/r50/model --kind hnsw-sq8
      covis index drives.csv -o city.map --model runs/r50/model --engine postgresql://covis@db/maps
    """
    if model is not None and (train or recipe or weights or fine_tune):
        raise InputError(
            "give --model to use a model as it is, or --train, --recipe, --weights and --fine-tune to fit one, not both"
        )
    from covis.describing.describers import find_describer

    if model is not None:
        find_describer(model)  # before anything heavy is imported
    from covis.maps.map import Map
    from covis.poses import parse_frame
    from covis.progress import say
    from covis.reading.decoding import Rejected
    from covis.reading.sources import open_images
    from covis.search.index import parse_size

    metres = parse_frame(frame)
    loaded = None if model is None else _model(model)
    steps = 2 if loaded is not None else 4
    rejects: list[Rejected] = []
    images = open_images(photos, track, positions=True, rejects=rejects, frame=metres)
    fitted, given, held, count = None, _store(descriptors), None, len(images) + len(rejects)
    if loaded is None:
        fitted = _fitted(images, output, recipe, weights, fine_tune)
        loaded, held = _model(fitted.model), fitted.questions()
        images, given, lost = fitted.described(images)
        rejects += lost
    say(f"step {steps - 1} of {steps}: describe and index {len(images)} photos, calibrate the map")
    made = Map.create(
        output, images, loaded, index=kind, max_ram=parse_size(max_ram) if max_ram else None, descriptors=given,
        rejects=rejects, engine=engine, held=held,
    )  # fmt: skip
    if runtime == "auto":
        say(
            f"step {steps} of {steps}: put an ONNX file of the model into the map, so that covis locate answers at once"
        )
        made.carry_runtime()
    depth = "depth" in images.columns and images.intrinsics is not None and images.poses.rotation is not None
    if scene is not None or depth:
        made.keep_scene(scene or photos)
    facts: dict[str, Any] = {"left_out": count - len(made)}
    report_map(made, json, facts, None if fitted is None else fitted.to_dict())


def add(
    map_path: Annotated[Path, typer.Argument(callback=existing_map, metavar="MAP", help="A map (covis index).")],
    photos: Annotated[list[Path], typer.Argument(callback=existing, help="Folders, tables or photos, with positions.")],
    prefix: Annotated[str, typer.Option(help="Put before the names, where folders use the same ones.")] = "",
    track: TrackOption = None,
    descriptors: GivenPhotos = None,
    device: Device = None,
    json: Json = False,
) -> None:
    """Add photos to a map. Each folder, table or photo is one change: whole or not at all.

    \b
    Examples:
      covis add town.map photos/autumn/ --prefix autumn/
      covis add town.map IMG_2041.jpg
    """
    from covis.maps.map import Map
    from covis.reading.decoding import Rejected
    from covis.reading.sources import open_images

    now = Map.open(map_path)
    before = len(now)
    for path in photos:
        rejects: list[Rejected] = []
        images = open_images(path, track, positions=True, rejects=rejects)
        now = now.add(images, prefix=prefix, descriptors=_store(descriptors), rejects=rejects)
    report_map(now, json, {"added": len(now) - before})


def remove(
    map_path: Annotated[Path, typer.Argument(callback=existing_map, metavar="MAP", help="A map (covis index).")],
    names: Annotated[list[str], typer.Argument(help="Names of photos, as covis locate prints them.")],
    json: Json = False,
) -> None:
    """Remove photos from a map, all of them in one change.

    \b
    Examples:
      covis remove town.map walk-1/IMG_0007.jpg walk-1/IMG_0008.jpg
    """
    from covis.maps.map import Map

    now = Map.open(map_path).remove(names)
    report_map(now, json, {"removed": len(set(names))})


def locate(
    map_path: Annotated[Path, typer.Argument(callback=existing_map, metavar="MAP", help="A map (covis index).")],
    photos: Annotated[
        list[Path],
        typer.Argument(
            callback=some_existing, help="Photos, folders, tables, patterns, or - for a list on standard input."
        ),
    ],
    k: Annotated[int, typer.Option("-k", min=1, help="Matches per photo.")] = 5,
    near: Annotated[
        str, typer.Option(help="LAT,LON,RADIUS_M: only places this near (EASTING,NORTHING in a map of metres).")
    ] = "",
    inside: Annotated[
        str, typer.Option(help="Only places in a polygon: a GeoJSON file, or corners 'LAT,LON LAT,LON LAT,LON …'.")
    ] = "",
    sequence: Annotated[bool, typer.Option("--sequence", help="The photos are one walk, in order: one query.")] = False,
    precision: Annotated[
        str,
        typer.Option(help="Share of confident answers that shall be right, such as 0.9 (auto: the best promised one)."),
    ] = "auto",
    rate: Annotated[float | None, typer.Option(help="Share of true positions within the radius (0.9).")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with a map and the photos side by side.")] = None,
    tiles: Annotated[
        str, typer.Option(help="html: map tiles to draw, such as https://tile.openstreetmap.org/{z}/{x}/{y}.png")
    ] = "",
    pictures: PicturesOption = None,
    csv: Annotated[Path | None, typer.Option(help="Write a table, one line per photo.")] = None,
    geojson: Annotated[Path | None, typer.Option(help="Write positions, radii, matches and lines as GeoJSON.")] = None,
    kml: Annotated[Path | None, typer.Option(help="Write them as KML.")] = None,
    gpx: Annotated[Path | None, typer.Option(help="Write positions as GPX waypoints.")] = None,
    geopose: Annotated[
        Path | None, typer.Option(help="Write OGC GeoPoses: FILE.json for one photo, a folder for several.")
    ] = None,
    geopose_form: Annotated[
        str,
        typer.Option(callback=choice_of("--geopose-form", ("ypr", "quaternion")), help="geopose: ypr or quaternion."),
    ] = "ypr",
    exif: Annotated[Path | None, typer.Option(help="Write copies of the photos with GPS into a folder.")] = None,
    gis: Annotated[Path | None, typer.Option(help="Write them as a layer: .gpkg or .parquet (GeoParquet).")] = None,
    pose: Annotated[bool, typer.Option("--pose", help="Also the full pose (6DOF), by the points of a scene.")] = False,
    scene: Annotated[
        Path | None,
        typer.Option(
            callback=existing,
            help="pose: COLMAP model of the map's photos, or images with depth. [default: what index was told]",
        ),
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Read every byte of the map against its checksums.")] = False,
    device: Device = None,
    json: Json = False,
) -> None:
    """Say where photos were taken, how sure that is, and which photos of the map show it.

    \b
    Examples:
      covis locate town.map IMG_2041.jpg
      covis locate town.map new/ -k 3 --html found.html --geojson found.geojson
      covis locate town.map new/ --csv found.csv --exif new-with-gps/
      covis locate town.map walk/*.jpg --sequence --near 55.7047,13.1910,500
      covis locate town.map IMG_2041.jpg --inside district.geojson
      covis locate town.map IMG_2041.jpg --pose --scene sparse/0
    """
    wanted, form = _precision(precision), _form(geopose_form)
    if scene is not None and not pose:
        raise InputError("--scene goes with --pose")
    from covis.progress import say
    from covis.reading.sources import require_map, select_photos

    require_map(map_path, photos)
    files = select_photos(photos)
    say(f"locating {len(files)} photo{'' if len(files) == 1 else 's'} in {map_path}")

    from covis.maps.calibration import RATE
    from covis.maps.map import Map

    opened = Map.open(map_path, verify=verify)
    points = _points(opened, scene) if pose else None
    texts = {"csv": csv, "geojson": geojson, "kml": kml, "gpx": gpx}
    on_earth = [name for name, target in {**texts, "geopose": geopose, "exif": exif, "gis": gis}.items() if target]
    _need_earth(opened, [name for name in on_earth if name != "csv"])
    shares: dict[str, Any] = {"precision": wanted, "rate": RATE if rate is None else rate}
    area = read_area(near, inside, opened.frame)
    walk = opened.locate_walk(files, k, area=area, **shares) if sequence else None
    answers = opened.locate(files, k, area=area, **shares) if walk is None else list(walk.answers)
    unusable = [a for a in answers if a.unusable]
    if len(unusable) == len(files):
        raise InputError(f"{unusable[0].photo}: {unusable[0].note}; give a photo that can be opened")
    poses = [{}] * len(answers) if points is None else _poses(answers, opened, points)
    _write_files(answers, {name: target for name, target in texts.items() if target}, geopose, form, exif)
    _write_gis(answers, gis)
    if html:
        from covis.maps.exports import write_answers

        write_answers(html, answers, opened.images, tiles=tiles, pictures=pictures or ())
        say(f"wrote {html}")
    lines = [line for a, p in zip(answers, poses, strict=True) for line in (*a.lines(), *_pose_lines(p))]
    if any(a.reordered for a in answers):
        from covis.maps.locating import ORDER

        lines.append(f"({ORDER})")
    then = f"open {html} in a browser" if html else f"the same with --html found.html, or covis serve {map_path}"
    if walk is None:
        emit([a.to_dict() | p for a, p in zip(answers, poses, strict=True)], json, "\n".join(lines), then)
    else:
        verdict = "confident" if walk.confident else f"not confident: {walk.note}"
        lines.append(f"the walk: {verdict}; {100 * walk.agreement:.0f} % of its photos agree")
        emit(walk.to_dict(), json, "\n".join(lines), then)


def _precision(text: str) -> float | None:
    """`auto`, `0.9` or `90%`."""
    if text == "auto":
        return None
    try:
        share = float(text.rstrip("% ")) / (100 if text.rstrip().endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 < share < 1:
        raise InputError(f"--precision is auto or a share between 0 and 1 such as 0.9, not {text!r}")
    return share


def _form(text: str) -> GeoPoseForm:
    return "ypr" if text == "ypr" else "quaternion"


def _need_earth(opened: Map, outputs: list[str]) -> None:
    if outputs and not opened.frame:
        named = ", ".join(f"--{name}" for name in outputs)
        raise InputError(f"{opened.path} is in metres without a place on Earth; {named} need a map of lat and lon")


def _write_files(
    answers: list[Answer], texts: dict[str, Path], geopose: Path | None, form: GeoPoseForm, exif: Path | None
) -> None:
    """Writes what other programs read, and says what was written."""
    if not (texts or geopose or exif):
        return
    from covis.maps.exports import write_answers_as, write_exif, write_geoposes
    from covis.progress import say, warn

    for kind, target in texts.items():
        write_answers_as(target, kind, answers)
        say(f"wrote {target}")
    if geopose:
        written, without = write_geoposes(geopose, answers, form)
        say(f"wrote {written} GeoPose{'' if written == 1 else 's'} to {geopose}")
        if without:
            warn(f"{without} photos have no position or no heading, and so no GeoPose")
    if exif:
        written, beside, left_out = write_exif(exif, answers)
        inside = f"; for {beside} that are no JPEG, PNG or WebP it is in an XMP file beside them" if beside else ""
        say(f"wrote {written} photos with GPS to {exif}{inside}")
        if left_out:
            warn(f"{len(left_out)} photos could not be given a position, such as {left_out[0]}")


def _write_gis(answers: list[Answer], target: Path | None) -> None:
    """Writes a layer of the answers, and says so."""
    if target is None:
        return
    from covis.gis import geojson_layers, write_layers
    from covis.maps.exports import to_geojson
    from covis.progress import say

    write_layers(target, geojson_layers(to_geojson(answers), "answers"))
    say(f"wrote {target}")


def _points(opened: Map, scene: Path | None) -> Path:
    """Where the points for 6DOF poses lie: what was given, or what the map was told when it was made."""
    chosen = scene or opened.scene
    if chosen is None:
        raise InputError(
            f"{opened.path} knows no points of its scene, which full poses need; give --scene MODEL here, or to covis index"
        )
    if not chosen.exists():
        raise InputError(f"{chosen}, the scene of {opened.path}, is not there; give --scene MODEL")
    return chosen


def _poses(answers: list[Answer], opened: Map, scene: Path) -> list[dict[str, Any]]:
    """For each answer its 6DOF pose, or why there is none."""
    from covis.field.resection import open_scene, pose_photo
    from covis.progress import track as progress

    place = open_scene(scene, opened.images)
    found: list[dict[str, Any]] = []
    for answer in progress(answers, "posing", unit="photos"):
        names = [os.fsencode(m.image) for m in answer.matches]
        pose = None if answer.unusable else pose_photo(answer.photo, names, place)
        found.append({"pose": None if pose is None else {**pose.to_dict(), "unit": place.unit}})
    return found


def _pose_lines(found: dict[str, Any]) -> list[str]:
    if "pose" not in found:
        return []
    pose = found["pose"]
    if pose is None:
        return ["  no 6DOF pose: no more of its features agree with points of the scene than may by chance"]
    x, y, z = pose["centre"]
    spread = f"± {pose['deviation_m']:.3g} {pose['unit']}, ± {pose['deviation_deg']:.2g}°"
    return [f"  pose: centre {x:.3f} {y:.3f} {z:.3f} {spread}, {pose['inliers']} of {pose['matches']} matches agree"]


def _model(path: Path) -> PlaceModel:
    """The model of a directory, or of a training run."""
    from covis.describing.describers import open_place_model

    return open_place_model(path)


def _fitted(images: ImageSet, output: Path, recipe: str, weights: str, fine_tune: bool) -> Fitted:
    """A model fitted to the photos, in a folder beside the map, and their descriptors."""
    from covis.maps.fitting import choose_recipe, estimate_s, fit_model
    from covis.progress import duration, say

    say("step 1 of 4: choose a recipe and its weights")
    chosen = choose_recipe(recipe, weights)
    more = ", and more to fine-tune" if fine_tune else ""
    say(f"all steps take about {duration(estimate_s(chosen, len(images)))}{more}")
    say(f"step 2 of 4: fit {chosen.model.backbone} to {len(images)} photos and describe them")
    return fit_model(images, chosen, output.with_name(f"{output.name}.model"), fine_tune=fine_tune)


def _store(path: Path | None) -> Any:
    from covis.descriptors import DescriptorStore

    return None if path is None else DescriptorStore.open(path)


def report_map(made: Map, json: bool, facts: dict[str, Any], fitted: dict[str, Any] | None = None) -> None:
    """What a verb made of a map, and what the map promises."""
    calibration = made.calibration
    promised = None if calibration is None else calibration.promised()
    summary = None if calibration is None else calibration.summary()
    data = {"map": str(made.path), "version": made.version, "photos": len(made), "model": made.model_fingerprint,
            "dim": made.dim, "index": made.index_kind, **facts, "promised_precision": promised, "calibration": summary,
            **({} if fitted is None else {"fitted": fitted})}  # fmt: skip
    changed = "".join(f", {value} {key.replace('_', ' ')}" for key, value in facts.items())
    text = f"{made.path}: {len(made)} photos, version {made.version}{changed}\n{_promise(promised, summary)}"
    emit(data, json, text, f"covis locate {made.path} PHOTO, or covis serve {made.path}" if len(made) else "")


def promise_of(made: Map) -> str:
    """What a map can promise of its answers, for people."""
    calibration = made.calibration
    promised = None if calibration is None else calibration.promised()
    return _promise(
        promised, None if calibration is None else calibration.summary(*([] if promised is None else [promised]))
    )


def _promise(promised: float | None, summary: dict[str, Any] | None) -> str:
    """What the map can promise of its answers, for people."""
    if summary is None:
        return "not calibrated: answers will carry no probability"
    if not summary["calibrated"]:
        return f"not calibrated: {summary['note']}; answers will carry no probability"
    if promised is None:
        return "the map promises no precision of 80 % or more; answers carry probabilities, none is called confident"
    share = f"{100 * summary['confident']:.0f} % of new photos get a confident answer"
    return f"the map promises a precision of {100 * promised:g} %: {share}, as covis locate gives by default"


def read_area(near: str, inside: str, frame: str = "", option: str = "--near") -> Area | None:
    """The area in metres of `frame` (without one the numbers are metres already); None where nothing is given."""
    from covis.search import area

    if near and inside:
        raise InputError(f"{option} and --inside are both given; give one area")
    if near:
        return area.circle(near, frame, option)
    if Path(inside).suffix.lower() not in (".geojson", ".json"):
        return area.polygon(inside, frame) if inside else None
    from covis.files import read_foreign_text

    try:
        text = read_foreign_text(inside)
    except InputError as error:
        cause = str(error).partition(";")[0]
        raise InputError(f"{inside} cannot be read as GeoJSON ({cause}); give a file with one polygon") from None
    return area.from_geojson(text, frame, inside)
