"""From index batches to losses: which images a batch needs, once each, and where its pairs or tuples find them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covis.graph import SimilarityGraph
from covis.losses import PairLoss, TupleLoss
from covis.sampling import PairBatch, TupleBatch

Ids = NDArray[np.int64]
Batch = PairBatch | TupleBatch


@dataclass(frozen=True, eq=False)
class Needed:
    """The images of a batch, each once, and for each place in the batch its image."""

    batch: Batch
    request: tuple[Ids, ...]
    """Ids for each image set: one set, or queries and map."""
    left: Ids
    """Position of each query among all requested images."""
    right: Ids
    """Position of each map image: (B,) of pairs, (B, 1 + n) of tuples, the positive first."""

    @property
    def images(self) -> int:
        """How many images are to be embedded."""
        return sum(len(part) for part in self.request)


def needed(batch: Batch, one_set: bool) -> Needed:
    """What a batch asks for."""
    right = batch.database if isinstance(batch, PairBatch) else np.column_stack([batch.positives, batch.negatives])
    if one_set:
        ids = np.unique(np.concatenate([batch.queries, right.ravel()]))
        return Needed(batch, (ids,), np.searchsorted(ids, batch.queries), np.searchsorted(ids, right))
    mine, theirs = np.unique(batch.queries), np.unique(right)
    return Needed(
        batch, (mine, theirs), np.searchsorted(mine, batch.queries), len(mine) + np.searchsorted(theirs, right)
    )


def relabelled(wanted: Needed, came: Ids, labels: SimilarityGraph) -> Needed:
    """The same where bad files were replaced by other images: ψ is looked up again for the images that came.

    `came` holds the ids of all images in the order of the request.
    """
    if not isinstance(wanted.batch, PairBatch) or np.array_equal(np.concatenate(wanted.request), came):
        return wanted
    queries, database = came[wanted.left], came[wanted.right]
    psi = labels.lookup(queries, database)
    if len(wanted.request) == 1:
        psi = np.where(queries == database, np.float32(1), psi)
    return replace(wanted, batch=replace(wanted.batch, queries=queries, database=database, psi=psi))


def weighted_loss(loss: PairLoss | TupleLoss, wanted: Needed, descriptors: Tensor, focus: bool = False) -> Tensor:
    """The sum of a batch's weighted losses; `descriptors` (images, dim) in the order of the request.

    With `focus`, pairs without overlap that are far enough apart leave their weight to those that are not.
    """
    za = descriptors[torch.from_numpy(wanted.left).to(descriptors.device)]
    zb = descriptors[torch.from_numpy(wanted.right).to(descriptors.device)]
    if isinstance(loss, PairLoss):
        assert isinstance(wanted.batch, PairBatch)
        psi, weight = _like(wanted.batch.psi, descriptors), _like(wanted.batch.weight, descriptors)
        losses = loss(za, zb, psi)
        return (losses * (_focused(losses.detach(), psi, weight) if focus else weight)).sum()
    return loss(za, zb[:, 0], zb[:, 1:], _like(wanted.batch.psi, descriptors)).sum()


def _focused(losses: Tensor, psi: Tensor, weight: Tensor) -> Tensor:
    """The weights with those of pairs without overlap moved to the pairs among them that have a loss."""
    apart = psi == 0
    active = apart & (losses > 0)
    share = weight[apart].sum() / weight[active].sum().clamp_min(1e-12)
    return torch.where(apart, weight * active * share, weight)


def weight_of(batch: Batch) -> float:
    """What a batch's losses are divided by."""
    return float(batch.weight.sum()) if isinstance(batch, PairBatch) else float(len(batch.queries))


def _like(array: NDArray[Any], tensor: Tensor) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(tensor.device)
