"""`covis index`, `add`, `remove`, `locate`: maps on the command line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covis.cli.common import Json, emit
from covis.errors import InputError

if TYPE_CHECKING:
    from covis.images import ImageSet
    from covis.maps.answers import Answer
    from covis.maps.fitting import Fitted
    from covis.maps.map import Map
    from covis.models import PlaceModel
if TYPE_CHECKING:
    from covis.search import Area

Track = Annotated[Path | None, typer.Option(help="A table or track (GPX) with the positions of the photos.")]
Given = Annotated[
    Path | None, typer.Option(help="A store with the photos' descriptors (covis embed), if there is one.")
]


def index(
    photos: Annotated[Path, typer.Argument(help="A folder of photos with GPS, or a table (CSV, Parquet, GeoJSON).")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The map; the same command resumes it.")],
    model: Annotated[Path | None, typer.Option(help="A model directory, or a training run.")] = None,
    train: Annotated[
        bool, typer.Option("--train", help="Fit a model to the photos, and train it on them if that helps.")
    ] = False,
    recipe: Annotated[str, typer.Option(help="What --train fits: own_photos, own_photos_small or another.")] = "",
    weights: Annotated[str, typer.Option(help="Backbone weights (.safetensors) for --train, if not fetched.")] = "",
    track: Track = None,
    kind: Annotated[
        str, typer.Option(help="Search: auto | exact | hnsw | hnsw-sq8 | scalar | ivfpq | binary")
    ] = "auto",
    max_ram: Annotated[str, typer.Option(help="Memory that the index may take, such as 500M or 2G.")] = "",
    descriptors: Given = None,
    json: Json = False,
) -> None:
    """Make a map from photos whose positions are known: import, check, embed, index and calibrate.

    \b
    Examples:
      covis index photos/ -o town.map --model runs/quick/model
      covis index photos/ -o town.map --train
      covis index photos/ -o town.map --train --recipe own_photos_small --weights mobilenetv2.safetensors
      covis index drives.csv -o city.map --model runs/r50/model --kind hnsw-sq8
    """
    from covis.maps.map import Map
    from covis.reading.screening import Rejected
    from covis.reading.sources import open_images
    from covis.search.kinds import parse_size

    if train and model is not None:
        raise InputError("give --model to use a model as it is, or --train to fit one to the photos, not both")
    if not train and (recipe or weights):
        raise InputError("--recipe and --weights say what --train fits; add --train")
    loaded = None if train else _model(model)
    rejects: list[Rejected] = []
    images = open_images(photos, track, positions=True, rejects=rejects)
    fitted = _fitted(images, output, recipe, weights) if loaded is None else None
    if fitted is not None:
        loaded = _model(fitted.model)
    assert loaded is not None
    made = Map.create(
        output, images, loaded, index=kind, max_ram=parse_size(max_ram) if max_ram else None,
        descriptors=_store(descriptors), rejects=rejects,
    )  # fmt: skip
    facts: dict[str, Any] = {"left_out": len(images) + len(rejects) - len(made)}
    _report(made, json, facts, None if fitted is None else fitted.to_dict())


def add(
    map_path: Annotated[Path, typer.Argument(metavar="MAP", help="A map (covis index).")],
    photos: Annotated[list[Path], typer.Argument(help="Folders, tables or photos, with positions.")],
    prefix: Annotated[str, typer.Option(help="Put before the names, where folders use the same ones.")] = "",
    track: Track = None,
    descriptors: Given = None,
    json: Json = False,
) -> None:
    """Add photos to a map. Each folder, table or photo is one change: whole or not at all.

    \b
    Examples:
      covis add town.map photos/autumn/ --prefix autumn/
      covis add town.map IMG_2041.jpg
    """
    from covis.maps.map import Map
    from covis.reading.screening import Rejected
    from covis.reading.sources import open_images

    now = Map.open(map_path)
    before = len(now)
    for path in photos:
        rejects: list[Rejected] = []
        images = open_images(path, track, positions=True, rejects=rejects)
        now = now.add(images, prefix=prefix, descriptors=_store(descriptors), rejects=rejects)
    _report(now, json, {"added": len(now) - before})


def remove(
    map_path: Annotated[Path, typer.Argument(metavar="MAP", help="A map (covis index).")],
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
    _report(now, json, {"removed": len(set(names))})


def locate(
    map_path: Annotated[Path, typer.Argument(metavar="MAP", help="A map (covis index).")],
    photos: Annotated[list[Path], typer.Argument(help="Photos to locate.")],
    k: Annotated[int, typer.Option("-k", min=1, help="Matches a photo.")] = 5,
    near: Annotated[
        str, typer.Option(help="LAT,LON,RADIUS_M: only places this near (EASTING,NORTHING in a map of metres).")
    ] = "",
    inside: Annotated[
        str, typer.Option(help="Only places in a polygon: a GeoJSON file, or corners 'LAT,LON LAT,LON LAT,LON …'.")
    ] = "",
    sequence: Annotated[bool, typer.Option("--sequence", help="The photos are one walk, in order: one query.")] = False,
    precision: Annotated[
        float | None, typer.Option(help="Share of confident answers that shall be right (0.99).")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Share of true positions within the radius (0.9).")] = None,
    geojson: Annotated[Path | None, typer.Option(help="Write positions and matches as GeoJSON.")] = None,
    kml: Annotated[Path | None, typer.Option(help="Write them as KML.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with thumbnails.")] = None,
    gis: Annotated[Path | None, typer.Option(help="Write them as a layer: .gpkg or .parquet (GeoParquet).")] = None,
    pose: Annotated[bool, typer.Option("--pose", help="Also the full pose (6DOF), by points of --scene.")] = False,
    scene: Annotated[
        Path | None, typer.Option(help="pose: COLMAP model of the map's photos, or a table of them with depth maps.")
    ] = None,
    json: Json = False,
) -> None:
    """Say where photos were taken, how sure that is, and which photos of the map show it.

    \b
    Examples:
      covis locate town.map IMG_2041.jpg
      covis locate town.map new/*.jpg -k 3 --html found.html --geojson found.geojson
      covis locate town.map walk/*.jpg --sequence --near 55.7047,13.1910,500
      covis locate town.map IMG_2041.jpg --inside district.geojson
      covis locate town.map IMG_2041.jpg --pose --scene sparse/0
    """
    from covis.maps.calibration import RATE
    from covis.maps.map import Map

    opened = Map.open(map_path)
    if pose != (scene is not None):
        raise InputError("--pose needs the points of a scene: --pose --scene MODEL (and --scene goes with --pose)")
    if (geojson or kml or gis) and not opened.images.poses.frame:
        raise InputError(f"{map_path} is in metres without a place on Earth; GeoJSON, KML and layers need lat and lon")
    shares: dict[str, Any] = {"precision": precision, "rate": RATE if rate is None else rate}
    area = read_area(near, inside, opened.images.poses.frame)
    walk = opened.locate_walk(photos, k, area=area, **shares) if sequence else None
    answers = opened.locate(photos, k, area=area, **shares) if walk is None else list(walk.answers)
    unusable = [a for a in answers if a.unusable]
    if len(unusable) == len(photos):
        raise InputError(f"{unusable[0].photo}: {unusable[0].note}; give a photo that can be opened")
    _write(answers, opened, geojson, kml, html)
    if gis:
        from covis.gis import geojson_layers, write_layers
        from covis.maps.answers import to_geojson

        write_layers(gis, geojson_layers(to_geojson(answers), "answers"))
    poses = [{}] * len(answers) if scene is None else _poses(answers, opened, scene)
    text = "\n".join(line for a, p in zip(answers, poses, strict=True) for line in (*a.lines(), *_pose_lines(p)))
    if walk is None:
        emit([a.to_dict() | p for a, p in zip(answers, poses, strict=True)], json, text)
    else:
        verdict = "confident" if walk.confident else f"no confident match ({walk.note})"
        emit(walk.to_dict(), json, f"{text}\nthe walk: {verdict}, {walk.agreement:.0%} of its photos agree")


def _write(answers: list[Answer], opened: Map, geojson: Path | None, kml: Path | None, html: Path | None) -> None:
    from covis.maps.answers import write_geojson, write_kml

    if geojson:
        write_geojson(geojson, answers)
    if kml:
        write_kml(kml, answers)
    if html:
        from covis.maps.page import write_answers

        write_answers(html, answers, opened.images)


def _poses(answers: list[Answer], opened: Map, scene: Path) -> list[dict[str, Any]]:
    """For each answer its 6DOF pose, or why there is none."""
    from covis.progress import track as progress
    from covis.resection import open_scene, pose_photo

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
        return ["  no 6DOF pose: too few matches with points of the scene"]
    x, y, z = pose["centre"]
    spread = f"± {pose['deviation_m']:.3g} {pose['unit']}, ± {pose['deviation_deg']:.2g}°"
    return [f"  pose: centre {x:.3f} {y:.3f} {z:.3f} {spread}, {pose['inliers']} of {pose['matches']} matches agree"]


def _model(path: Path | None) -> PlaceModel:
    """The model of a directory, or of a training run."""
    if path is None:
        raise InputError(
            "no model was given (none is bundled); add --model MODEL, from: covis train RECIPE --data PATH -o RUN (then "
            "RUN/model), or: covis model import WEIGHTS.safetensors --backbone NAME -o MODEL"
        )
    from covis.describing.describers import open_place_model

    return open_place_model(path)


def _fitted(images: ImageSet, output: Path, recipe: str, weights: str) -> Fitted:
    """A model fitted to the photos, in a folder beside the map."""
    from dataclasses import replace

    from covis.experiments import get, photos
    from covis.maps.fitting import fit_model

    chosen = get(recipe or photos.RECOMMENDED)
    if weights:
        chosen = replace(chosen, model=replace(chosen.model, weights=weights))
    return fit_model(images, chosen, output.with_name(f"{output.name}.model"))


def _store(path: Path | None) -> Any:
    from covis.descriptors import DescriptorStore

    return None if path is None else DescriptorStore.open(path)


def _report(made: Map, json: bool, facts: dict[str, Any], fitted: dict[str, Any] | None = None) -> None:
    calibration = made.calibration
    summary = None if calibration is None else calibration.summary()
    data = {"map": str(made.path), "version": made.version, "photos": len(made), "model": made.model_fingerprint, "dim": made.dim,
            "index": made.index.kind, **facts, "calibration": summary, **({} if fitted is None else {"fitted": fitted})}  # fmt: skip
    changed = ", ".join(f"{value} {key.replace('_', ' ')}" for key, value in facts.items())
    note = "" if summary is None or summary["calibrated"] else f"\nnot calibrated: {summary['note']}"
    emit(data, json, f"{made.path}: {len(made)} photos, version {made.version}, {changed}{note}")


def read_area(near: str, inside: str, frame: str = "", option: str = "--near") -> Area | None:
    """The area in metres of `frame` (without one the numbers are metres already); None where nothing is given."""
    from covis.maps import areas

    if near and inside:
        raise InputError(f"{option} and --inside are both given; give one area")
    if near:
        return areas.circle(near, frame, option)
    if Path(inside).suffix.lower() not in (".geojson", ".json"):
        return areas.polygon(inside, frame) if inside else None
    try:
        text = Path(inside).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"{inside} cannot be read as GeoJSON ({error}); give a file with one polygon") from None
    return areas.from_geojson(text, frame, inside)
