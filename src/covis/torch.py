"""Parts of covis for a training loop of your own: graded pairs as a dataset of torch, losses as modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from covis.images import ImageSet, Split
from covis.labels import FovOverlap, LabelRule
from covis.losses import GeneralizedContrastive, Loss
from covis.reading.decoding import decode
from covis.sampling import Pairs, PairSampler


class GradedPairs(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """Batches of image pairs with their similarity: (B, 3, H, W), (B, 3, H, W) and ψ (B,), the batch's shares as its strategy says.

    Give it to `DataLoader(pairs, batch_size=None, num_workers=8)`, and call `set_epoch` before each epoch. `transform`
    takes and returns one (3, H, W) image, uint8 as it comes.

    >>> import covis
    >>> pairs = GradedPairs(covis.datasets.load("town", None, "val").database, size=(32, 32), batch_size=4)
    >>> za, zb, psi = pairs[0]
    >>> tuple(za.shape), tuple(psi.shape)
    ((4, 3, 32, 32), (4,))
    """

    def __init__(
        self,
        images: ImageSet | Split,
        size: tuple[int, int],
        *,
        labels: LabelRule | None = None,
        strategy: str = "A",
        batch_size: int = 32,
        seed: int = 0,
        transform: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.split = Split(images, images) if isinstance(images, ImageSet) else images
        self.size, self.transform, self.epoch = size, transform, 0
        graph = (labels or FovOverlap())(*self.split)
        self.sampler = PairSampler(Pairs(strategy, batch_size), graph, self.split, seed)

    def set_epoch(self, epoch: int) -> None:
        """Other batches, by (seed, epoch)."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Batches an epoch."""
        return len(self.sampler)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        batch = self.sampler.batch(self.epoch, index)
        sides = [self._images(images, ids) for images, ids in zip(self.split, batch.images(), strict=True)]
        return sides[0], sides[1], torch.from_numpy(np.array(batch.psi))

    def _images(self, images: ImageSet, ids: Any) -> Tensor:
        pixels = [torch.from_numpy(np.array(decode(images.path(int(i)), self.size))).permute(2, 0, 1) for i in ids]
        return torch.stack(pixels if self.transform is None else [self.transform(one) for one in pixels])


class LossModule(nn.Module):
    """A loss of `covis.losses` as a module: the mean over its pairs, tuples or lists.

    >>> from covis.losses import GeneralizedContrastive
    >>> z = nn.functional.normalize(torch.ones(2, 8), dim=1)
    >>> float(LossModule(GeneralizedContrastive(margin=0.5))(z, z, torch.ones(2)))
    0.0
    """

    def __init__(self, loss: Loss | None = None) -> None:
        super().__init__()
        self.loss: Any = loss or GeneralizedContrastive()

    def forward(self, *arguments: Tensor) -> Tensor:
        """What the loss takes, such as za, zb, psi of a `PairLoss`."""
        losses: Tensor = self.loss(*arguments)
        return losses.mean()

    def extra_repr(self) -> str:
        """The loss and its settings."""
        return repr(self.loss)


__all__ = ["GradedPairs", "LossModule"]
