"""Maps that tell where a photo was taken."""

from covis.localise.answers import Answer, Match, Place, Position, to_geojson, to_kml
from covis.localise.calibration import Calibration, calibrate
from covis.localise.map import Map
from covis.localise.sources import read_given

__all__ = [
    "Answer",
    "Calibration",
    "Map",
    "Match",
    "Place",
    "Position",
    "calibrate",
    "read_given",
    "to_geojson",
    "to_kml",
]
