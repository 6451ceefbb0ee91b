"""The review page: each photo beside its evidence, to be accepted, rejected or moved; it saves a file of decisions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from covis.core.files import write_text
from covis.core.progress import track
from covis.core.tables import counted
from covis.geotagging.decisions import FORMAT
from covis.geotagging.library import LibraryPhoto
from covis.geotagging.session import Geotagged
from covis.geotagging.suggestions import Suggestion
from covis.maps.answers import significant
from covis.reading.decoding import Reject
from covis.web.page import MAP_SCRIPTS, MAP_STYLES, rendered
from covis.web.thumbnails import data_url

_PIXELS = ((300, 320), (1500, 200))
"""Up to how many suggestions pictures are how large."""
_SMALLEST_PIXELS = 128
_DOTS = 20_000
_SHOWN = 2
"""Photos of the evidence that are shown with a picture."""


def write_review(path: Path, found: Geotagged, precision: float) -> None:
    """Writes the page, one file that loads nothing from elsewhere."""
    pixels = next((size for most, size in _PIXELS if len(found.suggestions) <= most), _SMALLEST_PIXELS)
    photos = {photo.name: photo for photo in found.library.photos}
    evidence = sorted({name for suggestion in found.suggestions for name in _evidence(suggestion)})
    shown = [*(s.photo.name for s in found.suggestions), *evidence]
    thumbnails = {name: _thumbnail(photos[name], pixels) for name in track(shown, "pictures", unit="photos")}
    known = [photo for photo in found.library.photos if photo.known]
    every = max(1, -(-len(known) // _DOTS))
    data = {
        "format": FORMAT, "library": str(found.library.root), "precision": precision, "thumbnails": thumbnails,
        "dots": np.round([photo.place for photo in known[::every]], 6).tolist(),
        "entries": [_entry(suggestion) for suggestion in found.suggestions],
    }  # fmt: skip
    located = sum(s.answer.position is not None for s in found.suggestions)
    lead = f"{counted(len(found.suggestions), 'photo')} without a position, {located} suggestions. Nothing is written by this page."
    page = rendered(
        "geotag.html", title="Places for photos", lead=lead, data=data, styles=(*MAP_STYLES, "answers.css", "geotag.css"),
        scripts=(*MAP_SCRIPTS, "geotag.js"),
    )  # fmt: skip
    write_text(path, page)


def _evidence(suggestion: Suggestion) -> list[str]:
    """The photos that a suggestion rests on: matches first, then neighbours in time."""
    names = [match.image for match in suggestion.answer.matches[:_SHOWN]] if "pictures" in suggestion.evidence else []
    return [*names, *(name for name, _ in suggestion.neighbours)][: _SHOWN + 1]


def _entry(suggestion: Suggestion) -> dict[str, Any]:
    answer, photo = suggestion.answer, suggestion.photo
    place = None if answer.position is None else answer.position.place
    beside = {name: f"{abs(s) / 60:.1f} min {'later' if s > 0 else 'earlier'}" for name, s in suggestion.neighbours}
    matches = {match.image: match for match in answer.matches}
    facts = [
        {"image": name, "at": None if name not in matches else _at(matches[name].place.lat, matches[name].place.lon),
         "fact": beside.get(name) or f"looks alike, distance {matches[name].distance:.2f}"}
        for name in _evidence(suggestion)
    ]  # fmt: skip
    return {
        "photo": photo.name, "key": photo.key, "album": photo.name.rpartition("/")[0], "day": photo.day,
        "at": None if place is None else _at(place.lat, place.lon), "p": significant(answer.probability) if place else None,
        "confident": suggestion.confident, "by": suggestion.evidence, "note": answer.note, "evidence": facts,
    }  # fmt: skip


def _at(lat: float | None, lon: float | None) -> list[float] | None:
    return None if lat is None or lon is None else [round(lat, 8), round(lon, 8)]


def _thumbnail(photo: LibraryPhoto, pixels: int) -> str:
    try:
        return data_url(photo.picture(), pixels)
    except Reject:
        return ""
