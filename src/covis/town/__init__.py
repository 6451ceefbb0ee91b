"""A simulated town that needs no download: streets, seasons, exact poses, depth and co-visibility."""

from covis.town.config import TownConfig
from covis.town.dataset import (
    StaticPoints,
    TrueCovisibility,
    covisibility,
    default_folder,
    depth,
    load,
    picture,
    point_cloud,
)

__all__ = [
    "StaticPoints",
    "TownConfig",
    "TrueCovisibility",
    "covisibility",
    "default_folder",
    "depth",
    "load",
    "picture",
    "point_cloud",
]
