"""Answers as a table (CSV) or as JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from covis.core.files import write_bytes
from covis.maps.answers import Answer, printable, significant

COLUMNS = ("photo", "verdict", "probability", "elsewhere", "confident", "lat", "lon", "easting", "northing", "heading", "radius_m",
           "rate", "match", "match_distance", "match_probability", "note")  # fmt: skip


def to_csv(answers: Sequence[Answer]) -> str:
    """One line per photo, with its first match."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(answer_row(answer) for answer in answers)
    return buffer.getvalue()


def answer_row(answer: Answer) -> dict[str, Any]:
    """Column → value, of those that are known."""
    row: dict[str, Any] = {"photo": printable(answer.photo), "verdict": answer.word, "confident": answer.confident}
    row |= {"probability": significant(answer.probability), "elsewhere": significant(answer.elsewhere)}
    row |= {"note": answer.note}
    if answer.position is not None and not answer.absent:
        row |= {key: value for key, value in answer.position.to_dict().items() if key in COLUMNS}
    if answer.matches:
        best = answer.matches[0]
        row |= {"match": best.image, "match_distance": round(best.distance, 6)}
        row |= {"match_probability": significant(best.probability)}
    return row


def write_csv(path: Path, answers: Sequence[Answer]) -> None:
    """Writes the table."""
    write_bytes(path, to_csv(answers).encode("utf-8", "surrogateescape"))


def write_json(path: Path, answers: Sequence[Answer]) -> None:
    """Writes a list with one object per photo."""
    text = json.dumps([answer.to_dict() for answer in answers], indent=1) + "\n"
    write_bytes(path, text.encode())
