"""Maps that tell where a photo was taken."""

from covis.maps.answers import Answer, Match, Place, Position
from covis.maps.calibration import Calibration, calibrate
from covis.maps.locating import LocateOptions
from covis.maps.map import Map
from covis.maps.outputs import to_geojson, to_geopose

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
