"""Answers as OGC GeoPose (Basic-YPR and Basic-Quaternion, 21-056r11): a position on Earth and how the camera stood, as JSON.

Angles turn the axes east, north, up into those of the camera (forward, left, up): yaw is counter-clockwise from east,
so yaw = 90° − heading. covis knows neither tilt nor height of most answers; both are then 0, and `covis` says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from covis.maps.answers import Answer, Place, printable

MEDIA_TYPE = "application/geopose+json"
GeoPoseForm = Literal["ypr", "quaternion"]


def geopose(place: Place, form: GeoPoseForm = "ypr") -> dict[str, Any]:
    """A level camera at a place on Earth, its height and (where unknown) its heading 0."""
    assert place.lat is not None
    assert place.lon is not None
    yaw = 0.0 if place.heading is None else (90.0 - place.heading + 180.0) % 360.0 - 180.0
    position = {"lat": round(place.lat, 8), "lon": round(place.lon, 8), "h": 0.0}
    if form == "ypr":
        return {"position": position, "angles": {"yaw": round(yaw, 3), "pitch": 0.0, "roll": 0.0}}
    half = math.radians(yaw) / 2
    return {"position": position, "quaternion": {"x": 0.0, "y": 0.0, "z": math.sin(half), "w": math.cos(half)}}


def to_geopose(answers: Sequence[Answer]) -> dict[str, Any] | list[dict[str, Any]]:
    """One object for one photo, a list for several; photos without a position on Earth are left out."""
    poses = [pose for answer in answers if (pose := basic_ypr(answer)) is not None]
    return poses[0] if len(answers) == len(poses) == 1 else poses


def basic_ypr(answer: Answer) -> dict[str, Any] | None:
    """The answer's position as Basic-YPR; None where it has none on Earth."""
    spot = answer.position
    if spot is None or spot.place.lat is None or spot.place.lon is None:
        return None
    return {
        **geopose(spot.place),
        "covis": {
            "photo": printable(answer.photo), "confident": answer.confident, "probability": answer.probability,
            "radius_m": spot.radius_m, "rate": spot.rate, "heading_known": spot.place.heading is not None,
            "height_known": False,
        },
    }  # fmt: skip
