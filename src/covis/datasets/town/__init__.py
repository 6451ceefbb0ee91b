"""A simulated town that needs no download: streets, seasons, exact poses, depth and co-visibility."""

from covis.datasets.town.config import TownConfig
from covis.datasets.town.dataset import default_folder, load

__all__ = ["TownConfig", "default_folder", "load"]
