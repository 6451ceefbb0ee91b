"""What a person decided about suggestions, as the review page writes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from covis.core.errors import InputError
from covis.core.files import checked, read_json
from covis.core.progress import warn
from covis.geotagging.suggestions import Suggestion

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
    by_name = {suggestion.photo.name: suggestion for suggestion in suggestions}
    entries = [e for e in checked_decisions(file, read_json(file, _REMEDY)) if e["decision"] == "accept"]
    known = [e for e in entries if e["photo"] in by_name and by_name[e["photo"]].photo.key == e["key"]]
    if len(known) < len(entries):
        passed = len(entries) - len(known)
        warn(f"{passed} decisions are about photos that have a position by now, were changed or are gone; left out")
    return [_at(by_name[entry["photo"]], entry, file) for entry in known]


def _at(suggestion: Suggestion, entry: dict[str, Any], file: Path) -> Suggestion:
    lat, lon, answer = entry.get("lat"), entry.get("lon"), suggestion.answer
    if not isinstance(lat, int | float) or not isinstance(lon, int | float):
        if answer.position is None:
            raise InputError(f"{file} accepts {suggestion.photo.name}, which has no position; set its pin")
        return suggestion
    if not (abs(lat) <= 90 and abs(lon) <= 180):
        raise InputError(f"{file} puts {suggestion.photo.name} at {lat}, {lon}, which is not on Earth")
    if (
        answer.lat is not None
        and answer.lon is not None
        and max(abs(answer.lat - lat), abs(answer.lon - lon)) <= _SAME_DEG
    ):
        return suggestion
    return suggestion.moved(float(lat), float(lon))
