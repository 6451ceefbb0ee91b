"""Answers as OGC GeoPose (Basic-YPR, 21-056r11): a position on Earth and how the camera stood, as JSON.

Angles turn the axes east, north, up into those of the camera (forward, left, up): yaw is counter-clockwise from east,
so yaw = 90° − heading. covis knows neither tilt nor height of most answers; both are then 0, and `covis` says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from covis.maps.answers import Answer, printable

MEDIA_TYPE = "application/geopose+json"


def to_geopose(answers: Sequence[Answer]) -> dict[str, Any] | list[dict[str, Any]]:
    """One object for one photo, a list for several; photos without a position on Earth are left out."""
    poses = [pose for answer in answers if (pose := basic_ypr(answer)) is not None]
    return poses[0] if len(answers) == len(poses) == 1 else poses


def basic_ypr(answer: Answer) -> dict[str, Any] | None:
    """The answer's position as Basic-YPR; None where it has none on Earth."""
    spot = answer.position
    if spot is None or spot.place.lat is None or spot.place.lon is None:
        return None
    heading = spot.place.heading
    yaw = 0.0 if heading is None else (90.0 - heading + 180.0) % 360.0 - 180.0
    return {
        "position": {"lat": round(spot.place.lat, 8), "lon": round(spot.place.lon, 8), "h": 0.0},
        "angles": {"yaw": round(yaw, 3), "pitch": 0.0, "roll": 0.0},
        "covis": {
            "photo": printable(answer.photo), "confident": answer.confident, "probability": answer.probability,
            "radius_m": spot.radius_m, "rate": spot.rate, "heading_known": heading is not None, "height_known": False,
        },
    }  # fmt: skip
