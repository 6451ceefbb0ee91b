"""Maps that tell where a photo was taken."""

from covis.maps.calibration import Calibration, calibrate
from covis.maps.exports import to_geojson, to_geopose, to_kml
from covis.maps.locating import Answer, Match, Place, Position
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
    "to_geopose",
    "to_kml",
]
