"""`covis index`, `add`, `remove`, `locate`: maps on the command line."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covis.cli.common import (
    MODEL_HELP,
    Device,
    FrameOption,
    Json,
    choice_of,
    emit,
    existing,
    existing_map,
    existing_model,
    existing_weights,
    index_kind,
    named,
    require_map,
    select_photos,
    some_existing,
)
from covis.core.errors import InputError
from covis.core.tables import counted

if TYPE_CHECKING:
    from covis.descriptors import DescriptorStore
    from covis.images import ImageSet
    from covis.maps.fitting import Fitted
    from covis.maps.locating import Answer
    from covis.maps.map import Map
    from covis.runtime import Described
    from covis.search import Area

TrackOption = Annotated[
    Path | None, typer.Option(callback=existing, help="A table or track (GPX) with the positions of the photos.")
]
PicturesOption = Annotated[
    list[Path] | None,
    typer.Option(
        callback=existing,
        metavar="FOLDER",
        help="Also show map photos from here (those of folders given to covis index are always shown).",
    ),
]
GivenPhotos = Annotated[
    Path | None,
    typer.Option(
        callback=existing,
        help="Descriptors of the photos, to skip embedding: a store (covis embed), or FILE.npy with FILE.txt.",
    ),
]


def index(
    photos: Annotated[
        Path, typer.Argument(callback=existing, help="A folder of photos with GPS, or a table (CSV, Parquet, GeoJSON).")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The map to make; re-run to resume.")],
    model: Annotated[Path | None, typer.Option(callback=existing_model, help=MODEL_HELP)] = None,
    train: Annotated[
        bool, typer.Option("--train", help="Fit a model to the photos (the default without --model).")
    ] = False,
    recipe: Annotated[
        str,
        typer.Option(
            callback=named("recipe"),
            help="What to fit: own_photos, own_photos_small or another (default: the best whose weights are available).",
        ),
    ] = "",
    weights: Annotated[
        str,
        typer.Option(
            callback=existing_weights,
            help="Backbone weights (.safetensors), if they cannot be downloaded; the recipe is chosen to fit.",
        ),
    ] = "",
    fine_tune: Annotated[
        bool,
        typer.Option("--fine-tune", help="Also train the network on the photos, and keep the result if it is better."),
    ] = False,
    track: TrackOption = None,
    frame: FrameOption = "",
    kind: Annotated[
        str, typer.Option(callback=index_kind, help="Index: auto, or a name from `covis list indexes`.")
    ] = "auto",
    max_ram: Annotated[str, typer.Option(help="Memory the index may use, such as 500M or 2G.")] = "",
    descriptors: GivenPhotos = None,
    engine: Annotated[
        str, typer.Option(help="Store the map in an engine: milvus:URI or postgresql://USER@HOST/DB.")
    ] = "",
    scene: Annotated[
        Path | None,
        typer.Option(help="For locate --pose: a COLMAP model of the photos, or images with depth."),
    ] = None,
    inliers: Annotated[
        str,
        typer.Option(
            help="For locate --inliers: calibrate matched local features (sift, xfeat=FILE.onnx, alike=FILE.pth)."
        ),
    ] = "",
    runtime: Annotated[
        str,
        typer.Option(
            callback=choice_of("--runtime", ("auto", "torch")),
            help="What locate uses: auto (an ONNX file inside the map, if onnx is installed) or torch.",
        ),
    ] = "auto",
    device: Device = None,
    json: Json = False,
) -> None:
    """Make a map from photos whose positions are known. Imports, checks, embeds, indexes and calibrates.

    \b
    Examples:
      covis index photos/ -o town.map
      covis index photos/ -o town.map --weights mobilenetv2.safetensors
      covis index photos/ -o town.map --model runs/quick/model
      covis index photos/ -o town.map --model place.onnx
      covis index photos/ -o town.map --model photos.store
      covis index drives.csv -o city.map --model runs/r50/model --kind hnsw-sq8
      covis index drives.csv -o city.map --model runs/r50/model --engine postgresql://covis@db/maps
    """
    if output.is_file():
        raise InputError(f"{output} already exists and is not a folder; choose another output or remove it")
    if model is not None and (train or recipe or weights or fine_tune):
        raise InputError(
            "give --model to use a model unchanged, or --train, --recipe, --weights and --fine-tune to fit one, not both"
        )
    from covis.describing.describers import find_describer

    given = None if model is None else find_describer(model)  # before anything heavy is imported
    computed = given is not None and given.kind in ("store", "matrix")
    if computed and descriptors is not None:
        raise InputError(f"--model {model} holds descriptors already; leave out --descriptors")
    from covis.core.progress import say
    from covis.describing.describers import known_descriptors, open_model
    from covis.maps.map import INLIER_PHOTOS, Map
    from covis.poses import parse_frame
    from covis.reading.decoding import Rejected
    from covis.reading.sources import open_images
    from covis.search.kinds import parse_size

    if inliers:
        from covis.search.local import LocalReranker

        LocalReranker.parse(inliers).facts()  # missing weights are an error before the work starts
        if engine:
            raise InputError("--inliers needs a map in a folder; leave out --engine")
    metres = parse_frame(frame)
    network = None if model is None or computed else open_model(model)
    steps = 4 if model is None else 2 if given is not None and given.kind == "model" else 1
    rejects: list[Rejected] = []
    images = open_images(photos, track, positions=True, rejects=rejects, frame=metres)
    fitted, held, count = None, None, len(images) + len(rejects)
    store: DescriptorStore | None
    if model is None:
        fitted = _fitted(images, output, recipe, weights, fine_tune)
        network, held = open_model(fitted.model), fitted.questions()
        images, store, lost = fitted.described(images)
        rejects += lost
    elif computed:
        images, store, lost = known_descriptors(model, images)
        rejects += lost
    else:
        assert network is not None
        store = _given(descriptors, images, network.fingerprint(), network.dim, output)
    step = min(steps, 3 if model is None else 1)
    say(f"step {step} of {steps}: describe and index {counted(len(images), 'photo')}, calibrate the map")
    made = Map.create(
        output, images, network, index=kind, max_ram=parse_size(max_ram) if max_ram else None, descriptors=store,
        rejects=rejects, engine=engine, held=held,
    )  # fmt: skip
    if runtime == "auto" and step < steps:
        say(f"step {steps} of {steps}: put an ONNX file of the model into the map, so that covis locate starts quickly")
        made.carry_runtime()
    if inliers:
        say(f"calibrating {inliers} feature matches on up to {INLIER_PHOTOS} photos")
        made.learn_inliers(inliers, held)
    depth = "depth" in images.columns and images.intrinsics is not None and images.poses.rotation is not None
    if scene is not None or depth:
        made.keep_scene(scene or photos)
    facts: dict[str, Any] = {"left_out": count - len(made)}
    report_map(made, json, facts, None if fitted is None else fitted.to_dict())


def add(
    map_path: Annotated[Path, typer.Argument(callback=existing_map, metavar="MAP", help="A map (covis index).")],
    photos: Annotated[list[Path], typer.Argument(callback=existing, help="Folders, tables or photos, with positions.")],
    prefix: Annotated[str, typer.Option(help="Prefix for the names, if folders use the same ones.")] = "",
    track: TrackOption = None,
    descriptors: GivenPhotos = None,
    device: Device = None,
    json: Json = False,
) -> None:
    """Add photos to a map. Each folder, table or photo is added whole or not at all.

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
        store = _given(descriptors, images, now.model_fingerprint, now.dim, map_path)
        now = now.add(images, prefix=prefix, descriptors=store, rejects=rejects)
    report_map(now, json, {"added": len(now) - before})


def remove(
    map_path: Annotated[Path, typer.Argument(callback=existing_map, metavar="MAP", help="A map (covis index).")],
    names: Annotated[list[str], typer.Argument(help="Names of photos, as covis locate prints them.")],
    json: Json = False,
) -> None:
    """Remove photos from a map. All of them, or none if a name is unknown.

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
        typer.Option(
            help="Share of confident answers that should be correct, such as 0.9 (auto: the highest the map promises)."
        ),
    ] = "auto",
    rate: Annotated[
        float | None, typer.Option(help="Share of true positions inside the radius. [default: 0.9]")
    ] = None,
    outputs: Annotated[
        list[Path] | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write answers in the format of the ending, repeatable: .html page, .csv, .json, .geojson, .gpkg, "
            ".geopose.json, or a folder for copies of the photos with GPS.",
        ),
    ] = None,
    tiles: Annotated[
        str, typer.Option(help="html: map tiles to draw, such as https://tile.openstreetmap.org/{z}/{x}/{y}.png")
    ] = "",
    pictures: PicturesOption = None,
    pose: Annotated[
        bool, typer.Option("--pose", help="Also estimate the full pose (6DOF) from the points of a scene.")
    ] = False,
    scene: Annotated[
        Path | None,
        typer.Option(
            callback=existing,
            help="pose: COLMAP model of the map's photos, or images with depth. [default: the one given to covis index]",
        ),
    ] = None,
    inliers: Annotated[
        bool, typer.Option("--inliers", help="Also match local features; the map must be made with index --inliers.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check every byte of the map against its checksums first.")
    ] = False,
    descriptors: GivenPhotos = None,
    device: Device = None,
    json: Json = False,
) -> None:
    """Find where photos were taken. With probability, radius, and the photos of the map that match.

    \b
    Examples:
      covis locate town.map IMG_2041.jpg
      covis locate town.map new/ -k 3 -o found.html -o found.geojson
      covis locate town.map new/ -o found.csv -o new-with-gps/
      covis locate town.map walk/*.jpg --sequence --near 55.7047,13.1910,500
      covis locate town.map IMG_2041.jpg --inside district.geojson
      covis locate town.map IMG_2041.jpg --pose --scene sparse/0
      covis locate town.map new/ --descriptors new.store
    """
    wanted = _precision(precision)
    if scene is not None and not pose:
        raise InputError("--scene goes with --pose")
    if inliers and sequence:
        raise InputError("--inliers treats photos one by one; leave out --sequence")
    from covis.core.progress import say

    if rate is not None and not 0 < rate < 1:
        raise InputError(f"--rate is a share between 0 and 1 such as 0.9, not {rate:g}")
    require_map(map_path, photos)
    files = select_photos(photos)
    from covis.maps import outputs as formats

    if outputs or tiles:
        formats.check_tiles(tiles)
        for output in outputs or ():
            formats.check(output, files, photos)
    say(f"locating {counted(len(files), 'photo')} in {map_path}")

    from covis.maps.calibration import RATE
    from covis.maps.map import Map

    opened = Map.open(map_path, verify=verify)
    points = _points(opened, scene) if pose else None
    for output in outputs or ():
        formats.check_earth(output, opened.images)
    shares: dict[str, Any] = {"precision": wanted, "rate": RATE if rate is None else rate}
    area = read_area(near, inside, opened.frame)
    if descriptors is not None:
        shares["described"] = _looked_up(descriptors, files, opened)
    walk = opened.locate_walk(files, k, area=area, **shares) if sequence else None
    answers = opened.locate(files, k, area=area, inliers=inliers, **shares) if walk is None else list(walk.answers)
    unusable = [a for a in answers if a.unusable]
    if len(unusable) == len(files):
        raise InputError(f"{unusable[0].photo}: {unusable[0].note}; give a photo that can be opened")
    _warn_of_own([a for a in answers if a.in_map], len(answers))
    poses = [{}] * len(answers) if points is None else _poses(answers, opened, points)
    if outputs:
        located = formats.Located(answers, opened.images, tiles, pictures or ())
        for output in outputs:
            say(formats.write(output, located))
    lines = [line for a, p in zip(answers, poses, strict=True) for line in (*a.lines(), *_pose_lines(p))]
    if any(a.reordered for a in answers):
        from covis.maps.locating import ORDER

        lines.append(f"({ORDER})")
    page = next((output for output in outputs or () if output.suffix.lower() == ".html"), None)
    again = f"the same with -o found.html, or covis serve {shlex.quote(str(map_path))}"
    then = f"open {page} in a browser" if page else again
    if walk is None:
        emit([a.to_dict() | p for a, p in zip(answers, poses, strict=True)], json, "\n".join(lines), then)
    else:
        verdict = "confident" if walk.confident else f"not confident: {walk.note}"
        lines.append(f"the walk: {verdict}; {100 * walk.agreement:.0f} % of its photos agree")
        emit(walk.to_dict(), json, "\n".join(lines), then)


def _warn_of_own(own: list[Answer], asked: int) -> None:
    """Warns once if photos to be located are already in the map."""
    if own:
        from covis.core.progress import warn
        from covis.maps.locating import printable

        first = printable(own[0].photo)
        warn(
            f"{len(own)} of {counted(asked, 'photo')} already in the map, such as {first}; probabilities are for new photos"
        )


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


def _points(opened: Map, scene: Path | None) -> Path:
    """Where the points for 6DOF poses lie: what was given, or what the map was made with."""
    chosen = scene or opened.scene
    if chosen is None:
        raise InputError(
            f"{opened.path} has no scene points, which full poses need; give --scene MODEL here, or to covis index"
        )
    if not chosen.exists():
        raise InputError(f"{chosen}, the scene of {opened.path}, does not exist; give --scene MODEL")
    return chosen


def _poses(answers: list[Answer], opened: Map, scene: Path) -> list[dict[str, Any]]:
    """For each answer its 6DOF pose, or why there is none."""
    from covis.core.progress import track as progress
    from covis.field.resection import open_scene, pose_photo

    place = open_scene(scene, opened.images)
    poses: list[dict[str, Any]] = []
    for answer in progress(answers, "posing", unit="photos"):
        names = [os.fsencode(m.image) for m in answer.matches]
        pose = None if answer.unusable else pose_photo(answer.photo, names, place)
        poses.append({"pose": None if pose is None else {**pose.to_dict(), "unit": place.unit}})
    return poses


def _pose_lines(facts: dict[str, Any]) -> list[str]:
    if "pose" not in facts:
        return []
    pose = facts["pose"]
    if pose is None:
        return ["  no 6DOF pose: its features agree with the scene no better than chance"]
    x, y, z = pose["centre"]
    spread = f"standard deviation {pose['deviation_m']:.3g} {pose['unit']} and {pose['deviation_deg']:.2g}°"
    return [f"  pose: centre {x:.3f} {y:.3f} {z:.3f} ({spread}), {pose['inliers']} of {pose['matches']} matches agree"]


def _fitted(images: ImageSet, output: Path, recipe: str, weights: str, fine_tune: bool) -> Fitted:
    """A model fitted to the photos, in a folder beside the map, and their descriptors."""
    from covis.core.progress import duration, say
    from covis.maps.fitting import choose_recipe, estimate_s, fit_model

    say("step 1 of 4: choose a recipe and its weights")
    chosen = choose_recipe(recipe, weights)
    more = ", and more to fine-tune" if fine_tune else ""
    say(f"all steps take about {duration(estimate_s(chosen, len(images)))}{more}")
    say(f"step 2 of 4: fit {chosen.model.backbone} to {counted(len(images), 'photo')} and describe them")
    return fit_model(images, chosen, output.with_name(f"{output.name}.model"), fine_tune=fine_tune)


def _given(path: Path | None, images: ImageSet, model: str, dim: int, map_path: Path) -> DescriptorStore | None:
    """The descriptors at `path` of photos for a map of this model; None without a path."""
    if path is None:
        return None
    from covis.describing.describers import StoreDescriber, open_descriptors
    from covis.descriptors import DescriptorStore

    computed = open_descriptors(path)
    computed.require(model, dim, map_path)
    if isinstance(computed, StoreDescriber):
        return computed.store
    return DescriptorStore.in_memory(images.names, computed.describe(images)[0], model)


def _looked_up(path: Path, photos: list[Path], opened: Map) -> Described:
    """The descriptors at `path` of photos that are to be located in a map."""
    from covis.describing.describers import look_up, open_descriptors

    computed = open_descriptors(path)
    computed.require(opened.model_fingerprint, opened.dim, opened.path)
    return look_up(computed, photos)


def report_map(made: Map, json: bool, facts: dict[str, Any], fitted: dict[str, Any] | None = None) -> None:
    """Prints what a verb did to a map, and what the map promises."""
    calibration = made.calibration
    promised = None if calibration is None else calibration.promised()
    summary = None if calibration is None else calibration.summary()
    data = {"map": str(made.path), "version": made.version, "photos": len(made), "model": made.model_fingerprint,
            "dim": made.dim, "index": made.index_kind, **facts, "promised_precision": promised, "calibration": summary,
            **({} if fitted is None else {"fitted": fitted})}  # fmt: skip
    changed = "".join(f", {value} {key.replace('_', ' ')}" for key, value in facts.items())
    text = f"{made.path}: {counted(len(made), 'photo')}, version {made.version}{changed}\n{_promise(promised, summary)}"
    path = shlex.quote(str(made.path))
    then = f"covis locate {path} PHOTO, or covis serve {path}"
    if not made.network:
        then = f"covis locate {path} PHOTO --descriptors STORE, made by the same model"
    emit(data, json, text, then if len(made) else "")


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
        return "not calibrated: answers will have no probability"
    if not summary["calibrated"]:
        return f"not calibrated: {summary['note']}; answers will have no probability"
    if promised is None:
        return "the map cannot promise a precision of 80 % or more: answers have probabilities, but none is called confident"
    share = f"{100 * summary['confident']:.0f} % of new photos get a confident answer"
    return f"the map promises a precision of {100 * promised:g} %: {share} (the default of covis locate)"


def read_area(near: str, inside: str, frame: str = "", option: str = "--near") -> Area | None:
    """The area in metres of `frame` (without one the numbers are metres already); None where nothing is given."""
    from covis.search import area

    if near and inside:
        raise InputError(f"{option} and --inside contradict each other; give one area")
    if near:
        return area.circle(near, frame, option)
    if Path(inside).suffix.lower() not in (".geojson", ".json"):
        return area.polygon(inside, frame) if inside else None
    from covis.core.files import read_foreign_text

    try:
        text = read_foreign_text(inside)
    except InputError as error:
        cause = str(error).partition(";")[0]
        raise InputError(f"{inside} cannot be read as GeoJSON ({cause}); give a file with one polygon") from None
    return area.from_geojson(text, frame, inside)
