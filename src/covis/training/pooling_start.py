"""Where a pooling of clusters starts: at clusters of local features of training images."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from covis.core.arrays import Ids
from covis.core.errors import InputError
from covis.core.progress import Meter
from covis.describing.features import Cached
from covis.describing.loading import image_batches
from covis.images import ImageSet
from covis.models import PlaceModel

INITIAL_IMAGES = 500
"""Number of images whose local features a clustered pooling starts from."""


def images_of_groups(images: ImageSet, group: str) -> Ids:
    """The images whose group's name begins with `group`."""
    named = np.array([name.startswith(group) for name in images.group_names], bool)
    ids = np.flatnonzero(named[images.group]) if len(named) else np.arange(0 if group else len(images))
    if not len(ids):
        raise InputError(
            f"start_on={group}: no group of the training images begins with it; the first is {images.group_names[:1]}"
        )
    return ids


def start_pooling(
    model: PlaceModel,
    images: ImageSet,
    seed: int,
    workers: int,
    features: Cached | None = None,
    *,
    most: int = INITIAL_IMAGES,
    among: Ids | None = None,
) -> None:
    """Initialises a pooling of clusters of local features (NetVLAD) from up to `most` training images.

    features: those of the images, in the last of its sets, so that the network need not see the images again. among:
    the images to take them from; None = all.
    """
    if not model.pool.has_start:
        return
    among = np.arange(len(images)) if among is None else among
    ids = np.sort(among[np.random.default_rng(seed).permutation(len(among))[:most]])
    if features is not None:
        others = (np.zeros(0, np.int64),) * (len(features.rows) - 1)
        requests = ((*others, ids[start : start + 32]) for start in range(0, len(ids), 32))
        model.initialise_pool((fetched.features for fetched in features.fetch(requests)), seed)
        return
    with Meter("place clusters", len(ids), "images") as meter:

        def batches() -> Iterator[Tensor]:
            for _, pixels in image_batches(images, ids, model.config.image_size, 32, workers):
                yield pixels
                meter.advance(len(pixels))

        model.initialise_pool(batches(), seed)
