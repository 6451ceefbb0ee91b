"""Descriptors of training and validation images, from their cached or streamed features."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from covis.core.arrays import Ids
from covis.describing.features import Features, low_precision
from covis.models import PlaceModel
from covis.training.ranks import Ranks

_BATCH_SIZE = 128


def describe_all(
    model: PlaceModel, source: Features, which: int, count: int, ranks: Ranks | None = None
) -> NDArray[np.float32]:
    """(count, dim) descriptors of every image of the source's set number `which`."""
    return describe_images(model, source, which, np.arange(count), ranks)


@torch.no_grad()
def describe_images(
    model: PlaceModel, source: Features, which: int, ids: Ids, ranks: Ranks | None = None
) -> NDArray[np.float32]:
    """(len(ids), dim) descriptors of images of the source's set number `which`; `ranks` share the work."""
    ranks = ranks or Ranks()
    training = model.training
    model.eval()
    own = ids[ranks.rank :: ranks.world]
    chunks = [own[start : start + _BATCH_SIZE] for start in range(0, len(own), _BATCH_SIZE)]
    nothing = np.zeros(0, np.int64)
    requests = [(chunk,) if which == 0 else (nothing, chunk) for chunk in chunks]
    parts = [np.zeros((0, model.dim), np.float32)]
    for fetched in source.fetch(requests):
        with low_precision(fetched.features.device, source.precision):
            parts.append(model.suffix(fetched.features).float().cpu().numpy())
    model.train(training)
    return ranks.gather_rows(np.concatenate(parts), len(ids))
