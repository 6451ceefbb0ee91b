"""Answers, or a whole map, as one self-contained page: a map that one can drag, photos side by side.

Nothing is loaded over the network unless map tiles are requested.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from covis.core.files import write_text
from covis.core.progress import warn
from covis.core.tables import counted
from covis.images import ImageSet
from covis.maps.answers import Answer, Match, Place, match_facts, printable, significant
from covis.maps.locating import places_of
from covis.maps.photos import text_of
from covis.maps.pictures import Pictures
from covis.web.page import MAP_SCRIPTS, MAP_STYLES, rendered
from covis.web.thumbnails import data_url
from covis.web.tiles import parse_tiles

_PIXELS = ((100, 400), (1000, 256))
"""Up to how many pictures they are how large, so that a page of a thousand answers stays below 25 MB."""
_LEAST_PIXELS = 160
_PLACES = 20_000
"""Most photos of the map that a page shows as dots."""
_PICTURES = 400
"""Most photos of a whole map that are shown with a picture."""


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
    files = {match.file for answer in answers for match in answer.matches}
    earth = bool(images.poses.frame)
    thumbnails = Thumbnails(images.root, _pixels(len(answers) + len(files)), pictures)
    entries = [_entry(answer, earth, thumbnails.pixels) for answer in answers]
    shown = {printable(file): thumbnails.of(file) for file in sorted(files)}
    _write_page(path, "Where these photos were taken", lead, entries, images, thumbnails=shown, tiles=tiles)
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
    shown = np.arange(len(images))[:: max(1, -(-len(images) // _PICTURES))]
    earth, thumbnails = bool(images.poses.frame), Thumbnails(images.root, _pixels(len(shown)), pictures)
    entries: list[dict[str, Any]] = [
        {"kind": "photo", "name": text_of(images.names[i]), "tone": "none", "matches": [], "radius_m": None,
         "verdict": text_of(images.group_names[images.group[i]].encode("utf-8", "surrogateescape")),
         "thumbnail": thumbnails.of(Path(os.fsdecode(images.columns["file"][i]))), "heading": place.heading, "at": _at(place, earth)}
        for i, place in zip(shown, places_of(images.poses.subset(shown)), strict=True)
    ]  # fmt: skip
    _write_page(path, name, lead, entries, images, facts=facts, tiles=tiles)
    thumbnails.tell(path)


def _write_page(
    path: Path,
    title: str,
    lead: str,
    entries: Sequence[Mapping[str, Any]],
    images: ImageSet,
    *,
    thumbnails: Mapping[str, str] | None = None,
    facts: Mapping[str, Any] | None = None,
    tiles: str = "",
) -> None:
    below = parse_tiles(tiles) if images.poses.frame else None
    data = {
        "earth": bool(images.poses.frame), "tiles": below and asdict(below), "photos": _dots(images), "entries": entries,
        "thumbnails": thumbnails or {},
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
        "kind": "answer", "name": printable(Path(*answer.photo.parts[-2:])), "verdict": answer.verdict,
        "tone": "none" if position is None else "sure" if answer.confident else "unsure",
        "p": significant(answer.probability),
        "thumbnail": data_url(answer.photo if answer.view is None else answer.view.photo, pixels),
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


def _dots(images: ImageSet) -> list[tuple[float, float, float | None, str]]:
    """Position, heading and name of the map's photos, every n-th if there are many."""
    some = images.subset(np.arange(0, len(images), max(1, -(-len(images) // _PLACES))))
    earth = bool(images.poses.frame)
    return [
        (*_at(place, earth), None if place.heading is None else round(place.heading, 1), text_of(name))
        for place, name in zip(places_of(some.poses), some.names, strict=True)
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
