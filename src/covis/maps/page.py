"""Answers, or a whole map, as one self-contained page: a map that one can drag, photos side by side.

Nothing is loaded over the network unless map tiles are requested.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from covis.core.arrays import Ids
from covis.core.files import write_text
from covis.core.progress import warn
from covis.core.tables import counted
from covis.images import ImageSet
from covis.maps.answers import Answer, Match, Place, match_facts, printable, significant
from covis.maps.locating import places_of
from covis.maps.photos import text_of
from covis.maps.pictures import Pictures
from covis.reading.decoding import Reject
from covis.reading.exif import read_photo
from covis.web.page import MAP_SCRIPTS, MAP_STYLES, rendered
from covis.web.thumbnails import data_url
from covis.web.tiles import parse_tiles

_PIXELS = ((100, 400), (500, 256), (1000, 200))
"""Up to how many pictures they are how large, so that a page stays below 25 MB."""
_LEAST_PIXELS = 160
_PICTURES = 2000
"""Most pictures in a page."""
_PLACES = 20_000
"""Most photos of the map that a page shows as dots."""


def write_answers(
    path: Path, answers: Sequence[Answer], images: ImageSet, *, tiles: str = "", pictures: Sequence[Path] = ()
) -> None:
    """Writes the page of answers given by a map of `images`; `tiles` is `osm` or an address.

    Pictures of the map's photos are shown where they lie in folders that were given to the map on this machine, or in
    one of `pictures`.
    """
    sure, located = sum(a.confident for a in answers), sum(a.position is not None and not a.absent for a in answers)
    of = f"{located} of " if located < len(answers) else ""
    lead = f"{of}{counted(len(answers), 'photo')} located in a map of {counted(len(images), 'photo')}; {counted(sure, 'answer')} confident."
    ranks = range(max((len(answer.matches) for answer in answers), default=0))
    best_first = dict.fromkeys(m.file for rank in ranks for answer in answers for m in answer.matches[rank : rank + 1])
    files = list(best_first)[: max(0, _PICTURES - len(answers))]
    earth = bool(images.poses.frame)
    thumbnails = Thumbnails(images.root, _pixels(len(answers) + len(files)), pictures)
    entries = [_entry(answer, earth, thumbnails.pixels if i < _PICTURES else 0) for i, answer in enumerate(answers)]
    shown = {printable(file): thumbnails.of(file) for file in files}
    _write_page(path, "Where these photos were taken", lead, images, entries=entries, thumbnails=shown, tiles=tiles)
    thumbnails.tell(path)


def write_map(
    path: Path,
    images: ImageSet,
    name: str,
    facts: Mapping[str, Any],
    *,
    tiles: str = "",
    pictures: Sequence[Path] = (),
) -> None:
    """Writes the page of a whole map: its photos, and `facts` about it; `pictures` as in `write_answers`."""
    lead = f"{counted(len(images), 'photo')} in {counted(len(np.unique(images.group)), 'group')}."
    images = _some(images, _PLACES)
    pictured = range(0, len(images), max(1, -(-len(images) // _PICTURES)))
    thumbnails = Thumbnails(images.root, _pixels(len(pictured)), pictures)
    shown = {str(i): thumbnails.of(Path(os.fsdecode(images.columns["file"][i]))) for i in pictured}
    _write_page(path, name, lead, images, facts=facts, thumbnails=shown, tiles=tiles)
    thumbnails.tell(path)


def _write_page(
    path: Path,
    title: str,
    lead: str,
    images: ImageSet,
    *,
    entries: Sequence[Mapping[str, Any]] | None = None,
    thumbnails: Mapping[str, str],
    facts: Mapping[str, Any] | None = None,
    tiles: str = "",
) -> None:
    """entries: of the answers; None: the page is of the map's own photos."""
    below = parse_tiles(tiles) if images.poses.frame else None
    images = _some(images, _PLACES)
    present, group = np.unique(images.group, return_inverse=True)
    dots = _dots(images, group)
    data = {
        "earth": bool(images.poses.frame), "tiles": below and below.for_page([(lat, lon) for lat, lon, *_ in dots]), "photos": dots, "entries": entries,
        "groups": [text_of(os.fsencode(images.group_names[g])) for g in present], "thumbnails": thumbnails,
    }  # fmt: skip
    page = rendered(
        "answers.html",
        title=title,
        lead=lead,
        facts=facts or {},
        data=data,
        styles=(*MAP_STYLES, "answers.css"),
        scripts=(*MAP_SCRIPTS, "answers.js"),
    )
    write_text(path, page)


def _entry(answer: Answer, earth: bool, pixels: int) -> dict[str, Any]:
    """One photo for the page's script."""
    position = None if answer.absent else answer.position
    return {
        "name": printable(Path(*answer.photo.parts[-2:])), "verdict": answer.verdict,
        "walk": printable(Path(answer.photo.parent.name)), "day": _day(answer.photo),
        "tone": "none" if position is None else "sure" if answer.confident else "unsure",
        "p": significant(answer.probability),
        "thumbnail": data_url(answer.photo if answer.view is None else answer.view.photo, pixels) if pixels else "",
        "at": None if position is None else _at(position.place, earth),
        "heading": None if position is None else position.place.heading,
        "radius_m": None if position is None else position.radius_m,
        "matches": [_match(answer.matches, i, earth) for i in range(len(answer.matches))],
    }  # fmt: skip


def _match(matches: Sequence[Match], i: int, earth: bool) -> dict[str, Any]:
    match = matches[i]
    return {
        "image": match.image, "file": printable(match.file), "at": _at(match.place, earth),
        "heading": match.place.heading, "facts": match_facts(matches, i),
    }  # fmt: skip


def _at(place: Place, earth: bool) -> tuple[float, float]:
    """In Leaflet's order: latitude and longitude, or north and east in metres."""
    if earth and place.lat is not None and place.lon is not None:
        return round(place.lat, 8), round(place.lon, 8)
    return round(place.y, 3), round(place.x, 3)


def _day(photo: Path) -> str:
    """When a photo was taken, such as 2025-07-05; empty where its file does not say."""
    try:
        return read_photo(photo).taken[:10] if photo.is_file() else ""
    except Reject:
        return ""


def _some(images: ImageSet, most: int) -> ImageSet:
    """All photos, or every n-th if there are more than `most`."""
    return images.subset(np.arange(0, len(images), max(1, -(-len(images) // most))))


def _dots(images: ImageSet, groups: Ids) -> list[tuple[float, float, float | None, str, int]]:
    """Position, heading, name and group of the map's photos."""
    earth = bool(images.poses.frame)
    return [
        (*_at(place, earth), None if place.heading is None else round(place.heading, 1), text_of(name), int(group))
        for place, name, group in zip(places_of(images.poses), images.names, groups, strict=True)
    ]


def _pixels(count: int) -> int:
    """How large each of so many pictures is."""
    return next((pixels for most, pixels in _PIXELS if count <= most), _LEAST_PIXELS)


class Thumbnails:
    """Small pictures of a map's photos that may be shown; how many may not is reported once."""

    def __init__(self, map_path: Path, pixels: int, pictures: Sequence[Path] = ()) -> None:
        self.pixels = pixels
        self.pictures = Pictures.of(map_path, pictures)
        self.hidden: list[Path] = []

    def of(self, file: Path) -> str:
        """As a data URL; empty where it may not be shown."""
        if not self.pictures.shows(file):
            self.hidden += [file] if file.name and file.is_file() else []
            return ""
        return data_url(file, self.pixels)

    def tell(self, page: Path) -> None:
        """Warns of photos without a picture."""
        if self.hidden:
            warn(
                f"{page}: {len(self.hidden)} photo{' is' if len(self.hidden) == 1 else 's are'} shown without a picture, "
                f"outside the folders that were given to the map on this machine; show with --pictures {self.hidden[0].parent}"
            )
