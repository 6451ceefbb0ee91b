"""Maps that tell where a photo was taken."""

from covis.maps.answers import Answer, Match, Place, Position, to_geojson, to_kml
from covis.maps.calibration import Calibration, calibrate
from covis.maps.map import Map

__all__ = [
    "Answer",
    "Calibration",
    "Map",
    "Match",
    "Place",
    "Position",
    "calibrate",
    "to_geojson",
    "to_kml",
]
