"""What a person decided about suggestions, as the review page writes it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from covis.core.errors import InputError
from covis.core.files import checked, read_json
from covis.core.progress import warn
from covis.geotagging.suggestions import Suggestion, moved

FORMAT = "covis geotag decisions"
_ENTRY = {"photo": str, "key": str, "decision": str}
_REMEDY = "save it from the review page again"
_SAME_DEG = 1e-6


def checked_decisions(file: Path, record: Any) -> list[dict[str, Any]]:
    """The decisions in what a file holds, or is to hold."""
    record = checked(file, record, {"format": str, "decisions": list}, _REMEDY)
    if record["format"] != FORMAT:
        raise InputError(f"{file} is no file of decisions; save one from the review page")
    return [checked(file, entry, _ENTRY, _REMEDY) for entry in record["decisions"]]


def accepted(suggestions: Sequence[Suggestion], file: Path) -> list[Suggestion]:
    """The suggestions that were accepted, where a person put them; all others are left alone."""
    open_ = {suggestion.photo.name: suggestion for suggestion in suggestions}
    chosen, passed = [], 0
    for entry in checked_decisions(file, read_json(file, _REMEDY)):
        suggestion = open_.get(entry["photo"])
        if entry["decision"] != "accept":
            continue
        if suggestion is None or suggestion.photo.key != entry["key"]:
            passed += 1
            continue
        chosen.append(_at(suggestion, entry, file))
    if passed:
        warn(f"{passed} decisions are about photos that have a position by now, were changed or are gone; left out")
    return chosen


def _at(suggestion: Suggestion, entry: dict[str, object], file: Path) -> Suggestion:
    lat, lon = entry.get("lat"), entry.get("lon")
    position = suggestion.answer.position
    if not isinstance(lat, int | float) or not isinstance(lon, int | float):
        if position is None:
            raise InputError(f"{file} accepts {suggestion.photo.name}, which has no position; set its pin")
        return suggestion
    if not (math.isfinite(lat) and abs(lat) <= 90 and math.isfinite(lon) and abs(lon) <= 180):
        raise InputError(f"{file} puts {suggestion.photo.name} at {lat}, {lon}, which is not on Earth")
    before = (None, None) if position is None else (position.place.lat, position.place.lon)
    if None not in before and max(abs((a or 0) - b) for a, b in zip(before, (lat, lon), strict=True)) <= _SAME_DEG:
        return suggestion
    return moved(suggestion, float(lat), float(lon))
