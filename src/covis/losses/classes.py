"""Losses of classes: each image against all classes of places."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from covis.core.settings import above
from covis.losses.pairs import LOSSES, Loss, common_dtype

if TYPE_CHECKING:
    from torch import Tensor, nn


class ClassLoss(Loss):
    """A loss of classes."""

    shape: ClassVar[str] = "classes"

    def head(self, sampler: Any, dim: int) -> nn.Module | None:
        """A descriptor for each class of the sampler, `weight` (classes, dim); not part of the saved model."""
        from torch import nn

        proxies: nn.Module = nn.utils.skip_init(nn.Linear, dim, sampler.classes, bias=False)  # type: ignore[no-untyped-call]
        weight = proxies.get_parameter("weight")
        nn.init.xavier_uniform_(weight)
        return proxies

    def bound(self, head: nn.Module | None) -> Callable[..., Tensor]:
        """The loss with the descriptors of its classes: (z, classes, target) → (B,)."""
        assert head is not None
        return functools.partial(self._among, head.get_parameter("weight"))

    def _among(self, proxies: Tensor, z: Tensor, classes: NDArray[np.int64], target: NDArray[np.int64]) -> Tensor:
        import torch

        at = torch.from_numpy(classes).to(z.device)
        return self(z, proxies[at], torch.from_numpy(target).to(z.device))

    @abstractmethod
    def __call__(self, z: Tensor, proxies: Tensor, target: Tensor) -> Tensor:
        """(B,) losses, unreduced; z (B, D), proxies (K, D), target (B,) of 0 … K − 1."""


@LOSSES.register("large_margin_cosine")
@dataclass(frozen=True)
class LargeMarginCosine(ClassLoss):
    """−log e^(σ(cos y − m)) / (e^(σ(cos y − m)) + Σ e^(σ cos j)), j over the other classes (CosPlace's loss)."""

    scale: float = 30.0
    margin: float = 0.4

    def __post_init__(self) -> None:
        above(0, scale=self.scale, margin=self.margin)

    def __call__(self, z: Tensor, proxies: Tensor, target: Tensor) -> Tensor:
        """(B,) losses."""
        from torch.nn.functional import cross_entropy, normalize, one_hot

        dtype = common_dtype(z, proxies)
        cosines = z.to(dtype) @ normalize(proxies.to(dtype), dim=1).T
        own = one_hot(target, len(proxies)).to(dtype)
        return cross_entropy(self.scale * (cosines - self.margin * own), target, reduction="none")
