"""Batch normalisation over the images of all ranks, so that several ranks train as one does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_NAMES = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")


class SharedStatistics(TorchFunctionMode):
    """While entered, live batch normalisation of any module uses the statistics of all ranks' images.

    torch's SyncBatchNorm is for GPUs alone and would replace timm's modules that also hold an activation; the call
    below them is the same everywhere. `gather`: (n,) of this rank → (ranks, n), differentiable.
    """

    def __init__(self, gather: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.gather = gather

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not functional.batch_norm:
            return func(*args, **kwargs)
        given = dict(zip(_NAMES, args, strict=False)) | kwargs
        return self._normalised(**given) if given.pop("training", False) else func(*args, **kwargs)

    def _normalised(
        self,
        input: Tensor,
        running_mean: Tensor | None = None,
        running_var: Tensor | None = None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        """What `functional.batch_norm` computes in training; input (B, C, …)."""
        x = input
        channels = x.shape[1]
        others, shape = [0, *range(2, x.ndim)], (1, channels, *(1,) * (x.ndim - 2))
        own_mean, own_squares = _moments(x.float(), others, shape)
        count = own_mean.new_tensor([x.numel() / channels])
        gathered = self.gather(torch.cat([count, own_mean, own_squares]))
        counts, means, squares = gathered[:, :1], gathered[:, 1 : 1 + channels], gathered[:, 1 + channels :]
        number = counts.sum()
        mean = (counts * means).sum(0) / number
        variance = (squares + counts * (means - mean).square()).sum(0) / number
        if running_mean is not None and running_var is not None:
            with torch.no_grad():
                running_mean.lerp_(mean.to(running_mean.dtype), momentum)
                running_var.lerp_((variance * number / (number - 1)).to(running_var.dtype), momentum)
        scale = torch.rsqrt(variance + eps) * (1.0 if weight is None else weight)
        shift = (0.0 if bias is None else bias) - mean * scale
        normalised: Tensor = x.float() * scale.view(shape) + shift.view(shape)
        return normalised.to(x.dtype)


def _moments(x: Tensor, others: list[int], shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Mean and sum of squared deviations of each channel, over the axes `others`."""
    mean = x.mean(others)
    return mean, (x - mean.view(shape)).square().sum(others)
