"""Small image sets for label tests."""

import numpy as np

from covis.images import ImageSet
from covis.poses import Poses


def image_set(xy, heading, group=""):
    """A set with made-up names."""
    return ImageSet.of("photos", [f"{i:05d}.jpg" for i in range(len(xy))], Poses(np.asarray(xy, float), heading), group)


def random_set(n, side_m, seed, unknown=0.0, groups=0, origin=0.0):
    """n cameras in a square, a share of them without heading, in some groups."""
    rng = np.random.default_rng(seed)
    heading = rng.uniform(0, 360, n)
    heading[rng.random(n) < unknown] = np.nan
    group = rng.integers(0, groups, n).astype(str) if groups else ""
    return image_set(rng.uniform(0, side_m, (n, 2)) + origin, heading, group)


def all_pairs(queries, database):
    """Aligned ids of every pair."""
    i, j = np.indices((len(queries), len(database)))
    return i.ravel(), j.ravel()
