"""Answers, or a whole map, as one self-contained page: a map that one can drag, photos side by side.

Nothing is loaded from anywhere unless map tiles are asked for.
"""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np

from covis.errors import InputError
from covis.files import write_text
from covis.images import ImageSet
from covis.maps.intake import Pictures
from covis.maps.locating import Answer, Match, Place, match_facts, places_of, printable
from covis.maps.storage import text_of
from covis.progress import warn
from covis.reading.decoding import Reject, decode

if TYPE_CHECKING:
    import jinja2

_THUMBNAIL = 400
_ROUGH = 2.0
"""Photos are decoded at up to this times the thumbnail's size, then scaled down."""
_PLACES = 20_000
"""Photos of the map that a page shows as dots at most."""
_PICTURES = 400
"""Photos of a whole map that are shown with a picture at most."""


def write_answers(
    path: Path, answers: Sequence[Answer], images: ImageSet, *, tiles: str = "", pictures: Sequence[Path] = ()
) -> None:
    """Writes the page of answers given by a map of `images`; `tiles` is an address with {z}, {x} and {y}.

    Pictures of the map's photos are shown where they lie in folders that were given to the map on this machine, or in
    one of `pictures`.
    """
    sure = sum(a.confident for a in answers)
    lead = f"{len(answers)} photos asked of a map of {len(images)} photos; {sure} answers are confident."
    files = {match.file for answer in answers for match in answer.matches}
    earth = bool(images.poses.frame)
    entries = [_entry(answer, earth) for answer in answers]
    thumbnails = _Thumbnails(images.root, pictures)
    shown = {printable(file): thumbnails.of(file) for file in sorted(files)}
    _write(path, "Where these photos were taken", lead, entries, images, thumbnails=shown, tiles=tiles)
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
    lead = f"{len(images)} photos in {len(np.unique(images.group))} groups."
    shown = np.arange(len(images))[:: max(1, -(-len(images) // _PICTURES))]
    earth, thumbnails = bool(images.poses.frame), _Thumbnails(images.root, pictures)
    entries: list[dict[str, Any]] = [
        {"kind": "photo", "name": text_of(images.names[i]), "tone": "none", "matches": [], "radius_m": None,
         "verdict": text_of(images.group_names[images.group[i]].encode("utf-8", "surrogateescape")),
         "thumbnail": thumbnails.of(Path(os.fsdecode(images.columns["file"][i]))), "heading": place.heading, "at": _at(place, earth)}
        for i, place in zip(shown, places_of(images.poses.subset(shown)), strict=True)
    ]  # fmt: skip
    _write(path, name, lead, entries, images, facts=facts, tiles=tiles)
    thumbnails.tell(path)


def _write(
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
    if tiles and not all(part in tiles for part in ("{z}", "{x}", "{y}")):
        raise InputError(f"--tiles is an address with {{z}}, {{x}} and {{y}} in it, not {tiles!r}")
    data = {
        "earth": bool(images.poses.frame), "tiles": tiles, "photos": _dots(images), "entries": entries,
        "thumbnails": thumbnails or {},
    }  # fmt: skip
    leaflet = resources.files("covis").joinpath("report", "assets", "leaflet")
    own = resources.files("covis.maps").joinpath("assets")
    raw = _raw({
        "leaflet_css": leaflet.joinpath("leaflet.css"), "leaflet_js": leaflet.joinpath("leaflet.js"),
        "css": own.joinpath("map.css"), "script": own.joinpath("map.js"),
    })  # fmt: skip
    page = _environment().get_template("map.html").render(
        title=title, lead=lead, entries=entries, facts=facts or {}, data=data, tiles=tiles, **raw,
        tiles_host=urlsplit(tiles).hostname or "", footer="Written by covis.",
        licence=leaflet.joinpath("LICENSE").read_text(encoding="utf-8"),
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page)


def _environment() -> jinja2.Environment:
    import jinja2

    return jinja2.Environment(loader=jinja2.PackageLoader("covis.maps"), autoescape=True, keep_trailing_newline=True)


def _raw(assets: Mapping[str, Any]) -> dict[str, Any]:
    """Our own files as they are: scripts and styles must not be escaped."""
    from markupsafe import Markup

    texts = {name: asset.read_text(encoding="utf-8") for name, asset in assets.items()}
    texts["leaflet_js"] = texts["leaflet_js"].replace("//# sourceMappingURL=leaflet.js.map", "")
    return {name: Markup(text) for name, text in texts.items()}


def _entry(answer: Answer, earth: bool) -> dict[str, Any]:
    """One photo for the page's script and template."""
    position = answer.position
    return {
        "kind": "answer", "name": printable(Path(*answer.photo.parts[-2:])), "verdict": answer.verdict,
        "tone": "none" if position is None else "sure" if answer.confident else "unsure",
        "thumbnail": _thumbnail(answer.photo), "at": None if position is None else _at(position.place, earth),
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
    """As Leaflet counts: latitude and longitude, or north and east in metres."""
    if earth and place.lat is not None and place.lon is not None:
        return round(place.lat, 8), round(place.lon, 8)
    return round(place.y, 3), round(place.x, 3)


def _dots(images: ImageSet) -> list[tuple[float, float, float | None, str]]:
    """Position, heading and name of the map's photos, every n-th where they are many."""
    some = images.subset(np.arange(0, len(images), max(1, -(-len(images) // _PLACES))))
    earth = bool(images.poses.frame)
    return [
        (*_at(place, earth), None if place.heading is None else round(place.heading, 1), text_of(name))
        for place, name in zip(places_of(some.poses), some.names, strict=True)
    ]


class _Thumbnails:
    """Small pictures of a map's photos that may be shown; how many may not is told once."""

    def __init__(self, map_path: Path, pictures: Sequence[Path]) -> None:
        self.pictures = Pictures.of(map_path, pictures)
        self.hidden: list[Path] = []

    def of(self, file: Path) -> str:
        if not self.pictures.shows(file):
            self.hidden += [file] if file.name and file.is_file() else []
            return ""
        return _thumbnail(file)

    def tell(self, page: Path) -> None:
        if self.hidden:
            warn(
                f"{page}: {len(self.hidden)} photos are shown without a picture, because they lie outside the folders "
                f"that were given to the map on this machine; show them with --pictures {self.hidden[0].parent}"
            )


def _thumbnail(file: Path) -> str:
    """A photo as a data address of a small JPEG; empty where the file cannot be used any more."""
    from PIL import Image

    try:
        picture = Image.fromarray(decode(file))
    except Reject:
        return ""
    picture.thumbnail((_THUMBNAIL, _THUMBNAIL), reducing_gap=_ROUGH)
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=72)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
