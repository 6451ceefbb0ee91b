"""A simulated town that needs no download: streets, seasons, exact poses and co-visibility."""

from covis.town.config import TownConfig
from covis.town.dataset import TrueCovisibility, covisibility, default_folder, load, picture, point_cloud

__all__ = [
    "TownConfig",
    "TrueCovisibility",
    "covisibility",
    "default_folder",
    "load",
    "picture",
    "point_cloud",
]
