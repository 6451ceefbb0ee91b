"""`covis locate`: where photos were taken."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covis.cli.options import (
    Json,
    MapPath,
    PhotoDescriptors,
    PicturesOption,
    TilesOption,
    existing,
    require_map,
    some_existing,
)
from covis.cli.output import emit
from covis.cli.verbs import LOCALISE, verb
from covis.core.errors import InputError
from covis.core.tables import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from covis.maps.answers import Answer
    from covis.maps.map import Map
    from covis.runtime import Described


def _precision(text: str) -> float | None:
    """`auto` (None), `0.9` or `90%`."""
    return None if text == "auto" else float(text.rstrip("% ")) / (100 if text.rstrip().endswith("%") else 1)


def _check_precision(text: str) -> str:
    try:
        share = _precision(text)
    except ValueError:
        share = -1.0
    if share is not None and not 0 < share < 1:
        raise InputError(f"--precision is auto or a share between 0 and 1 such as 0.9, not {text!r}")
    return text


def _check_rate(rate: float) -> float:
    if not 0 < rate < 1:
        raise InputError(f"--rate is a share between 0 and 1 such as 0.9, not {rate:g}")
    return rate


@verb("locate", section=LOCALISE, order=2)
def locate(
    map_path: MapPath,
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
            callback=_check_precision,
            help="Share of confident answers that should be correct, such as 0.9 (auto: the highest the map promises).",
        ),
    ] = "auto",
    prior: Annotated[
        float,
        typer.Option(min=0.001, max=0.999, help="Share of the photos that may be of places the map does not have."),
    ] = 0.5,
    rate: Annotated[float, typer.Option(callback=_check_rate, help="Share of true positions inside the radius.")] = 0.9,
    outputs: Annotated[
        list[Path] | None,
        typer.Option(
            "-o",
            "--out",
            metavar="FILE",
            help="Write answers in the format of the ending, repeatable: .html page, .csv, .json, .geojson, "
            ".geopose.json.",
        ),
    ] = None,
    tiles: TilesOption = "",
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
    descriptors: PhotoDescriptors = None,
    json: Json = False,
) -> None:
    """Find where photos were taken. With probability, radius, and the photos of the map that match.

    \b
    Examples:
      covis locate town.map IMG_2041.jpg
      covis locate town.map new/ -k 3 -o found.html -o found.geojson
      covis locate town.map walk/*.jpg --sequence --near 55.7047,13.1910,500
      covis locate town.map IMG_2041.jpg --inside district.geojson
      covis locate town.map IMG_2041.jpg --pose --scene sparse/0
      covis locate town.map new/ --descriptors new.store
    """
    if scene is not None and not pose:
        raise InputError("--scene goes with --pose")
    if inliers and sequence:
        raise InputError("--inliers treats photos one by one; leave out --sequence")
    require_map(map_path, photos)
    from covis.core.progress import say
    from covis.maps.outputs import check, check_earth, write
    from covis.reading.inputs import Photo
    from covis.reading.selection import select_photos
    from covis.search.area import read_area
    from covis.web.tiles import parse_tiles

    files, targets = select_photos(photos), outputs or []
    parse_tiles(tiles)
    for target in targets:
        check(target, [*files, *photos])
    say(f"locating {counted(len(files), 'photo')} in {map_path}")
    from covis.maps.locating import LocateOptions
    from covis.maps.map import Map

    opened = Map.open(map_path)
    points = _scene_points(opened, scene) if pose else None
    for target in targets:
        check_earth(target, opened.images)
    area = read_area(near, inside)
    options = LocateOptions(area and area(opened.frame), _precision(precision), rate, inliers, prior)
    described = None if descriptors is None else _look_up(descriptors, files, opened)
    chosen = [Photo(file) for file in files]  # one of several may be missing: its answer says so
    walk = opened.locate_walk(chosen, k, options, described=described) if sequence else None
    answers = opened.locate(chosen, k, options, described=described) if walk is None else list(walk.answers)
    _refuse_unusable(answers)
    _warn_of_map_photos(answers)
    poses = [{}] * len(answers) if points is None else _poses(answers, opened, points)
    for target in targets:
        write(target, answers, opened.images, tiles=tiles, pictures=pictures or ())
        say(f"wrote {target}")
    lines = _answer_lines(answers, poses)
    page = next((target for target in targets if target.suffix.lower() == ".html"), None)
    again = f"the same with -o found.html, or covis serve {shlex.quote(str(map_path))}"
    then = f"open {page} in a browser" if page else again
    if walk is None:
        emit([a.to_dict() | p for a, p in zip(answers, poses, strict=True)], json, "\n".join(lines), then)
    else:
        verdict = "confident" if walk.confident else f"not confident: {walk.note}"
        lines.append(f"the walk: {verdict}; {100 * walk.agreement:.0f} % of its photos agree")
        emit(walk.to_dict(), json, "\n".join(lines), then)


def _refuse_unusable(answers: Sequence[Answer]) -> None:
    """Raises an error if no photo could be opened."""
    unusable = [answer for answer in answers if answer.unusable]
    if len(unusable) == len(answers):
        raise InputError(f"{unusable[0].photo}: {unusable[0].note}; give a photo that can be opened")


def _warn_of_map_photos(answers: Sequence[Answer]) -> None:
    """Warns once if photos to be located are already in the map."""
    from covis.core.progress import warn
    from covis.maps.answers import printable

    known = [answer for answer in answers if answer.in_map]
    if known:
        first, asked = printable(known[0].photo), counted(len(answers), "photo")
        warn(f"{len(known)} of {asked} already in the map, such as {first}; probabilities are for new photos")


def _answer_lines(answers: Sequence[Answer], poses: Sequence[dict[str, Any]]) -> list[str]:
    from covis.maps.answers import ORDER

    lines = [line for a, p in zip(answers, poses, strict=True) for line in (*a.lines(), *_pose_lines(p))]
    lines += [f"({ORDER})"] if any(a.reordered for a in answers) else []
    return [*lines, _summary(answers)] if len(answers) > 1 else lines


def _summary(answers: Sequence[Answer]) -> str:
    """The last line: how many answers can be relied on."""
    from statistics import median

    confident = [a for a in answers if a.confident]
    radii = [a.position.radius_m for a in confident if a.position is not None and a.position.radius_m is not None]
    around = f", median radius {median(radii):.0f} m" if radii else ""
    elsewhere = sum(a.absent for a in answers)
    absent = f"; {elsewhere} probably not in this map" if elsewhere else ""
    return f"{len(confident)} of {counted(len(answers), 'photo')} confident{around}{absent}"


def _scene_points(opened: Map, scene: Path | None) -> Path:
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


def _look_up(path: Path, photos: list[Path], opened: Map) -> Described:
    """The descriptors at `path` of photos that are to be located in a map."""
    from covis.describing.describers import look_up, open_descriptors

    computed = open_descriptors(path)
    computed.require(opened.model_fingerprint, opened.dim, opened.path)
    return look_up(computed, photos)
