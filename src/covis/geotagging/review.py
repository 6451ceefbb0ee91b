"""The review page: each photo beside its evidence, to be accepted, rejected or moved.

It is one file with everything in it, or a page of the service, which reads what the last run left beside the map.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from covis.core import files
from covis.core.errors import InputError
from covis.core.progress import track, warn
from covis.geotagging.decisions import FORMAT, checked_decisions
from covis.geotagging.raw import picture_of
from covis.maps.answers import significant
from covis.web.page import MAP_SCRIPTS, MAP_STYLES, rendered
from covis.web.thumbnails import data_url
from covis.web.tiles import parse_tiles

if TYPE_CHECKING:
    from covis.geotagging.session import Geotagged
    from covis.geotagging.suggestions import Suggestion

STYLES, SCRIPTS = (*MAP_STYLES, "answers.css", "geotag.css"), (*MAP_SCRIPTS, "geotag.js")
TITLE = "Places for photos"
_PIXELS = ((600, 320), (3000, 200), (10_000, 128))
"""Up to how many pictures they are how large in a file."""
_SMALLEST_PIXELS = 96
_MOST_BYTES = 64 << 20
"""Of pictures in a file; what is beyond them can be looked at in the service."""
_DOTS = 20_000
_SHOWN = 2
"""Matches that are shown with a picture."""


def review_data(found: Geotagged, precision: float) -> dict[str, Any]:
    """All that the page shows but the pictures."""
    known = [photo.place for photo in found.library.photos if photo.known]
    return {
        "format": FORMAT, "library": found.library.root.name, "precision": precision,
        "dots": np.round(known[:: max(1, -(-len(known) // _DOTS))], 6).tolist(),
        "entries": [_entry(suggestion) for suggestion in found.suggestions],
    }  # fmt: skip


def _entry(suggestion: Suggestion) -> dict[str, Any]:
    answer, photo, facts = suggestion.answer, suggestion.photo, []
    at = _at(answer.lat, answer.lon)
    beside = {name: f"{abs(s) / 60:.1f} min {'later' if s > 0 else 'earlier'}" for name, s in suggestion.neighbours}
    matches = {match.image: match for match in answer.matches}
    shown = list(matches)[:_SHOWN] if "pictures" in suggestion.evidence else []
    for name in [*shown, *beside][: _SHOWN + 1]:
        match = matches.get(name)
        fact = beside.get(name) or (f"looks alike, distance {match.distance:.2f}" if match else "")
        facts.append({"image": name, "at": match and _at(match.place.lat, match.place.lon), "fact": fact})
    return {
        "photo": photo.name, "key": photo.key, "album": photo.album, "day": photo.day, "at": at,
        "p": significant(answer.probability) if answer.position else None, "confident": suggestion.confident,
        "by": suggestion.evidence, "note": answer.note, "evidence": facts,
    }  # fmt: skip


def _at(lat: float | None, lon: float | None) -> list[float] | None:
    return None if lat is None or lon is None else [round(lat, 8), round(lon, 8)]


def write_review(path: Path, data: dict[str, Any], root: Path, tiles: str = "") -> None:
    """Writes the page as one file, whose pictures are photos below `root`."""
    below = parse_tiles(tiles)
    names = list(dict.fromkeys(_pictures(data)))
    pixels = next((size for most, size in _PIXELS if len(names) <= most), _SMALLEST_PIXELS)
    thumbnails, used = dict[str, str](), 0
    for name in track(names, "pictures", unit="photos"):
        if used < _MOST_BYTES:
            thumbnails[name] = data_url(picture_of(root / name), pixels)
            used += len(thumbnails[name])
    if len(thumbnails) < len(names):
        warn(f"{path} shows {len(thumbnails)} of {len(names)} pictures; covis serve {root} shows all of them")
    data = data | {"thumbnails": thumbnails, "tiles": below and below.for_page(data["dots"])}
    page = rendered(
        "geotag.html", frame="frame.html", title=TITLE, data=data, styles=STYLES, scripts=SCRIPTS, tiles=None
    )
    files.write_text(path, page)


def _pictures(data: dict[str, Any]) -> Iterator[str]:
    """Names of the photos that are shown: those asked about first."""
    yield from (entry["photo"] for entry in data["entries"])
    yield from (fact["image"] for entry in data["entries"] for fact in entry["evidence"])


class StoredReview:
    """What the last run left for the service, in the folder that remembers the library of a map."""

    def __init__(self, memory: Path) -> None:
        self.file, self.decisions = memory / "review.json", memory / "decisions.json"

    def write(self, data: dict[str, Any], root: Path) -> None:
        """Keeps what the page shows, and where the photos are."""
        files.write_json(self.file, {"root": str(root), "data": data})

    def read(self) -> dict[str, Any]:
        """What the page shows, with the decisions made so far."""
        made = checked_decisions(self.decisions, files.read_json(self.decisions)) if self.decisions.is_file() else []
        return self._stored[0] | {"decisions": made}

    def picture(self, name: str) -> Path:
        """The file of a photo that is shown; raises `KeyError` for others."""
        _, root, names = self._stored
        if name not in names:
            raise KeyError(name)
        return root / name

    def save(self, record: Any) -> int:
        """Keeps decisions, and says how many."""
        made = checked_decisions(self.decisions, record)
        files.write_json(self.decisions, record)
        return len(made)

    @property
    def _stored(self) -> tuple[dict[str, Any], Path, frozenset[str]]:
        if not self.file.is_file():
            raise InputError("this map has no suggestions to review; run covis geotag")
        return _read(self.file, files.stamp(self.file))


@lru_cache(maxsize=8)
def _read(file: Path, stamp: files.Stamp) -> tuple[dict[str, Any], Path, frozenset[str]]:
    """What the page shows, where the photos are, and which of them are shown."""
    record = files.read_record(file, {"root": str, "data": dict}, "run covis geotag again")
    return record["data"], Path(record["root"]), frozenset(_pictures(record["data"]))
