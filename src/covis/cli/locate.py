"""`covis locate`: where photos were taken."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from covis.cli.options import (
    MAKE_A_MAP,
    Json,
    MapPath,
    PhotoDescriptors,
    PicturesOption,
    TilesOption,
    existing,
    existing_map,
)
from covis.cli.output import Line, emit, table
from covis.cli.verbs import LOCALISE, verb
from covis.core.errors import InputError
from covis.core.tables import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from covis.maps.answers import Answer
    from covis.maps.map import Map
    from covis.maps.walks import Walk


def _check_photos(photos: list[Path]) -> list[Path]:
    """Checks that at least one of the photos, folders and patterns exists; `-` stands for a list that is read later."""
    if not any(path.exists() or re.search(r"[*?[]", str(path)) or str(path) == "-" for path in photos):
        existing(photos[0])
    return photos


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


@verb("locate", section=LOCALISE, order=2)
def locate(
    map_path: MapPath,
    photos: Annotated[
        list[Path],
        Argument(callback=_check_photos, help="Photos, folders, tables, patterns, or - for a list on stdin."),
    ],
    k: Annotated[int, Option("-k", min=1, help="Matches per photo.")] = 5,
    near: Annotated[str, Option(help="LAT,LON,RADIUS_M: only places this near (X,Y,RADIUS in a map of metres).")] = "",
    inside: Annotated[
        str, Option(help="Only places in a polygon: a GeoJSON file, or 'LAT,LON LAT,LON LAT,LON …'.")
    ] = "",
    sequence: Annotated[bool, Option("--sequence", help="The photos are one walk, in order: one query.")] = False,
    precision: Annotated[
        str,
        Option(
            callback=_check_precision, help="Share of confident answers that should be correct (auto: the highest)."
        ),
    ] = "auto",
    prior: Annotated[float, Option(min=0.001, max=0.999, help="Share of photos that may be from elsewhere.")] = 0.5,
    rate: Annotated[float, Option(min=0.001, max=0.999, help="Share of true positions inside the radius.")] = 0.9,
    outputs: Annotated[
        list[Path] | None,
        Option(
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
        bool, Option("--pose", help="Also estimate the full pose (6DOF) from the points of a scene.")
    ] = False,
    scene: Annotated[
        Path | None,
        Option(callback=existing, help="pose: COLMAP model, or images with depth. [default: of covis index]"),
    ] = None,
    inliers: Annotated[bool, Option("--inliers", help="Also match local features (covis index --inliers).")] = False,
    descriptors: PhotoDescriptors = None,
    json: Json = False,
) -> None:
    """Find where photos were taken. With probability, radius, and the photos of the map that match.

    Several photos are a table; -v lists the matches of each.

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
    _check_map(map_path, photos)
    from covis.core.progress import say
    from covis.maps.outputs import check, check_earth, write
    from covis.reading.inputs import Photo
    from covis.reading.selection import select_photos
    from covis.search.area import read_area
    from covis.web.tiles import parse_tiles

    files, targets = select_photos(photos), outputs or []
    parse_tiles(tiles)
    area = read_area(near, inside)
    for target in targets:
        check(target, [*files, *photos])
    say(f"locating {counted(len(files), 'photo')} in {map_path}")
    from covis.describing.describers import look_up, open_descriptors
    from covis.maps.locating import LocateOptions
    from covis.maps.map import Map

    opened = Map.open(map_path)
    points = _scene_points(opened, scene) if pose else None
    for target in targets:
        check_earth(target, opened.images)
    options = LocateOptions(area and area(opened.frame), _precision(precision), rate, inliers, prior)
    described = None
    if descriptors is not None:
        computed = open_descriptors(descriptors)
        computed.require(opened.model_fingerprint, opened.dim, opened.path)
        described = look_up(computed, files)
    chosen = [Photo(file) for file in files]  # one of several may be missing: its answer says so
    walk = opened.locate_walk(chosen, k, options, described=described) if sequence else None
    answers = opened.locate(chosen, k, options, described=described) if walk is None else list(walk.answers)
    _check_answers(answers)
    poses = [{}] * len(answers) if points is None else _poses(answers, opened, points)
    for target in targets:
        write(target, answers, opened.images, tiles=tiles, pictures=pictures or ())
    page = next((target for target in targets if target.suffix.lower() == ".html"), None)
    again = f"the same with -o found.html, or covis serve {shlex.quote(str(map_path))}"
    data = [a.to_dict() | p for a, p in zip(answers, poses, strict=True)] if walk is None else walk.to_dict()
    emit(data, json, _lines(answers, poses, walk, targets), f"open {page} in a browser" if page else again)


def _check_map(path: Path, photos: Sequence[Path]) -> None:
    """Raises an error if `path` is no map, and says why: missing, a photo, or swapped with another argument."""
    if (path / "CURRENT").is_file() or (path / "map.json").is_file():
        return
    swapped = next((photo for photo in photos if (photo / "CURRENT").is_file()), None)
    if swapped is not None:
        raise InputError(f"{swapped} is the map, and it comes first: covis locate {swapped} {path}")
    existing_map(path)
    raise InputError(f"{path} is not a covis map; the first argument is a map: covis locate MAP PHOTO… ({MAKE_A_MAP})")


def _check_answers(answers: Sequence[Answer]) -> None:
    """Raises an error if no photo could be opened; warns once of photos that are in the map."""
    from covis.core.progress import warn
    from covis.maps.answers import printable

    if all(answer.unusable for answer in answers):
        raise InputError(f"{answers[0].photo}: {answers[0].note}; give a photo that can be opened")
    known = [answer for answer in answers if answer.in_map]
    if known:
        first, asked = printable(known[0].photo), counted(len(answers), "photo")
        warn(f"{len(known)} of {asked} already in the map, such as {first}; probabilities are for new photos")


def _lines(
    answers: Sequence[Answer], poses: Sequence[dict[str, Any]], walk: Walk | None, targets: Sequence[Path]
) -> list[Line]:
    """The answers for people: a photo in full, several as a table, and what they come to."""
    from covis.core.progress import is_verbose

    if len(answers) == 1 or is_verbose() or any(poses):
        lines = []
        for answer, pose in zip(answers, poses, strict=True):
            first, *matches = answer.lines()
            lines += [(first, _tone(answer)), *((match, "") for match in (*matches, *_pose_lines(pose)))]
    else:
        cells = [_row(answer) for answer in answers]
        filled = [column for column in cells[0] if any(row[column] for row in cells)]
        head, rule, *rows = table([{column: row[column] for column in filled} for row in cells]).splitlines()
        lines = [(head, "bold"), (rule, "dim"), *zip(rows, map(_tone, answers), strict=True)]
        notes = [a.note for a in answers if not (a.confident or a.absent or a.unusable)]
        lines += [(f"not confident ({notes.count(note)}): {note}", "dim") for note in dict.fromkeys(notes)]
    if walk is not None:
        verdict = "confident" if walk.confident else f"not confident: {walk.note}"
        lines.append((f"the walk: {verdict}; {100 * walk.agreement:.0f} % of its photos agree", "bold"))
    summary = "; ".join(
        [*([_summary(answers)] if len(answers) > 1 else []), *(f"wrote {target}" for target in targets)]
    )
    return [*lines, *([(summary, "bold")] if summary else [])]


def _tone(answer: Answer) -> str:
    return "good" if answer.confident else "dim" if answer.absent or answer.position is None else "doubtful"


def _row(answer: Answer) -> dict[str, str]:
    """A line of the table."""
    from covis.maps.answers import metres, percent, printable, where

    row = dict.fromkeys(("photo", "answer", "probability", "position", "within", "confident"), "")
    row |= {"photo": printable(answer.photo), "answer": answer.word or "best guess"}
    if answer.position is None:
        return row | {"answer": answer.note if answer.unusable else "no match"}
    share = answer.elsewhere if answer.absent else answer.probability
    row |= {"probability": "" if share is None else percent(share), "confident": "yes" if answer.confident else "no"}
    if answer.absent:
        return row
    radius = answer.position.radius_m
    return row | {"position": where(answer.position.place), "within": "" if radius is None else metres(radius)}


def _summary(answers: Sequence[Answer]) -> str:
    """How many answers can be relied on."""
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
        hint = "give --scene MODEL here, or to covis index"
        raise InputError(f"{opened.path} has no scene points, which full poses need; {hint}")
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
