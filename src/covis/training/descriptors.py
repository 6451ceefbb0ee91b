"""Descriptors of training and validation images, from their cached or streamed features."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from covis.core.arrays import Ids
from covis.describing.features import Features
from covis.models import PlaceModel

_BATCH_SIZE = 128


def describe_all(model: PlaceModel, source: Features, which: int, count: int) -> NDArray[np.float32]:
    """(count, dim) descriptors of every image of the source's set number `which`."""
    return describe_images(model, source, which, np.arange(count))


@torch.no_grad()
def describe_images(model: PlaceModel, source: Features, which: int, ids: Ids) -> NDArray[np.float32]:
    """(len(ids), dim) descriptors of images of the source's set number `which`."""
    training = model.training
    model.eval()
    chunks = [ids[start : start + _BATCH_SIZE] for start in range(0, len(ids), _BATCH_SIZE)]
    nothing = np.zeros(0, np.int64)
    requests = [(chunk,) if which == 0 else (nothing, chunk) for chunk in chunks]
    parts = [model.suffix(fetched.features).float().cpu().numpy() for fetched in source.fetch(requests)]
    model.train(training)
    return np.concatenate(parts)
