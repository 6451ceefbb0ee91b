"""Maps that tell where a photo was taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from covis.maps.answers import Answer, Match, Place, Position
from covis.maps.calibration import Calibration, calibrate
from covis.maps.locating import LocateOptions
from covis.maps.map import Map

if TYPE_CHECKING:
    from covis.maps.outputs import to_geojson, to_geopose

_EXPORTS = ("to_geojson", "to_geopose")
"""Loaded when they are first asked for: an answer takes a second, and most need none of them."""


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'covis.maps' has no attribute {name!r}")
    from covis.maps import outputs

    return getattr(outputs, name)


__all__ = [
    "Answer",
    "Calibration",
    "LocateOptions",
    "Map",
    "Match",
    "Place",
    "Position",
    "calibrate",
    "to_geojson",
    "to_geopose",
]
