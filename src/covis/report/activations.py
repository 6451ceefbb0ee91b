"""Where in two photos a model finds them alike: each place's share of the similarity."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covis.errors import InputError
from covis.models import PlaceModel


def contributions(model: PlaceModel, first: Tensor, second: Tensor) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """What every place of the map adds to the cosine of two pooled photos (3, H, W) uint8; each (h, w).

    Feature × slope with the vectors' lengths held fixed: for pooling by mean, maximum or generalised mean the places of
    each photo sum to the cosine itself; for others it is the linear part. Whitening is left aside.
    """
    model.eval()
    with torch.no_grad():
        space, summary = model.pooling_input(model.normalise(torch.stack([first, second])))
    space = space.detach().float().requires_grad_()
    with torch.enable_grad():
        pooled = model.pool(space, summary.detach())
        length = pooled.detach().norm(dim=-1).clamp(min=1e-12)
        cosine = (pooled[0] * pooled[1]).sum() / (length[0] * length[1])
        [slope] = torch.autograd.grad(cosine, [space], allow_unused=True) if cosine.requires_grad else [None]
    if slope is None:
        raise InputError(f"pooling {model.config.pool!r} takes nothing from the map, so it has no activation map")
    shares = (space * slope).sum(1).detach().cpu().numpy()
    return shares[0], shares[1]
