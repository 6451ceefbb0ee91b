"""The images of a batch: each is described once, wherever the batch names it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from covis.core.arrays import Ids
from covis.graph import SimilarityGraph
from covis.losses import Loss
from covis.sampling import Batch


@dataclass(frozen=True, eq=False)
class BatchImages:
    """The distinct images of a batch, and which of them belongs at each place in the batch."""

    batch: Batch
    request: tuple[Ids, ...]
    """Ids for each image set: one set, or queries and map."""
    left: Ids
    """Position of each query among all requested images."""
    right: Ids
    """Position of each map image: (B,) of pairs, (B, 1 + n) of tuples, the positive first."""

    @classmethod
    def of(cls, batch: Batch, one_set: bool) -> BatchImages:
        """The images that a batch needs."""
        queries, right = batch.images()
        if one_set:
            ids = np.unique(np.concatenate([queries.ravel(), right.ravel()]))
            return cls(batch, (ids,), np.searchsorted(ids, queries), np.searchsorted(ids, right))
        left_ids, right_ids = np.unique(queries), np.unique(right)
        positions = len(left_ids) + np.searchsorted(right_ids, right)
        return cls(batch, (left_ids, right_ids), np.searchsorted(left_ids, queries), positions)

    def __len__(self) -> int:
        return sum(len(part) for part in self.request)

    def relabelled(self, ids: Ids, labels: SimilarityGraph) -> BatchImages:
        """The same after bad files were replaced by other images; `ids` are all that came, in the order of the request."""
        if np.array_equal(np.concatenate(self.request), ids):
            return self
        return replace(self, batch=self.batch.relabelled(ids[self.left], ids[self.right], labels))

    def loss(self, loss: Loss, descriptors: Tensor) -> Tensor:
        """The sum of the batch's weighted losses; `descriptors` (images, dim) in the order of the request."""
        za = descriptors[torch.from_numpy(self.left).to(descriptors.device)]
        zb = descriptors[torch.from_numpy(self.right).to(descriptors.device)]
        return self.batch.loss(loss, za, zb)
