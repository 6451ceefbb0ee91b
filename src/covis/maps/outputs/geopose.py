"""Answers as OGC GeoPoses, in the form Basic-YPR."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from covis.core.files import write_bytes
from covis.core.tables import counted
from covis.maps.answers import Answer, Place, printable

MEDIA_TYPE = "application/geopose+json"


def to_geopose(answers: Sequence[Answer]) -> dict[str, Any] | list[dict[str, Any]]:
    """One object for one photo, a list for several; photos without a position on Earth are left out."""
    poses = [pose for answer in answers if (pose := basic_ypr(answer)) is not None]
    return poses[0] if len(answers) == len(poses) == 1 else poses


def basic_ypr(answer: Answer) -> dict[str, Any] | None:
    """The answer's position as Basic-YPR, and what is known of it; None where the map or the Earth has none."""
    position = None if answer.absent else answer.position
    if position is None or position.place.lat is None:
        return None
    return {
        **level_camera(position.place),
        "covis": {
            "photo": printable(answer.photo), "confident": answer.confident, "probability": answer.probability,
            "radius_m": position.radius_m, "rate": position.rate, "heading_known": position.place.heading is not None,
            "height_known": False,
        },
    }  # fmt: skip


def level_camera(place: Place) -> dict[str, Any]:
    """Position and angles of a level camera at a place on Earth; its height, and its heading if unknown, are 0."""
    assert place.lat is not None
    assert place.lon is not None
    yaw = 0.0 if place.heading is None else (90.0 - place.heading + 180.0) % 360.0 - 180.0
    return {
        "position": {"lat": round(place.lat, 8), "lon": round(place.lon, 8), "h": 0.0},
        "angles": {"yaw": round(yaw, 3), "pitch": 0.0, "roll": 0.0},
    }


def write_geopose(path: Path, answers: Sequence[Answer]) -> str:
    """Writes what `to_geopose` gives."""
    poses = to_geopose(answers)
    write_bytes(path, (json.dumps(poses, indent=1) + "\n").encode())
    return counted(len(poses) if isinstance(poses, list) else 1, "GeoPose")
