"""A simulated town that needs no download: streets, seasons, exact poses, depth and co-visibility."""

from covis.datasets.town.config import TownConfig
from covis.datasets.town.dataset import default_folder, load
from covis.datasets.town.truth import PointCloud, TrueCovisibility, covisibility, depth, picture, point_cloud

__all__ = [
    "PointCloud",
    "TownConfig",
    "TrueCovisibility",
    "covisibility",
    "default_folder",
    "depth",
    "load",
    "picture",
    "point_cloud",
]
