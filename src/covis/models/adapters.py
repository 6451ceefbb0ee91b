"""Low-rank additions to weights (LoRA): few parameters that learn instead of many."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LowRankAddition(nn.Module):
    """A matrix plus the product of two narrow ones, up · down, of which `up` begins at zero (LoRA, Hu et al. 2022).

    The kernel of a convolution counts as a matrix of (out, in · height · width).
    """

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        out, into = weight.flatten(1).shape
        self.down = nn.Parameter(torch.randn(min(rank, out, into), into, device=weight.device) / into**0.5)
        self.up = nn.Parameter(torch.zeros(out, len(self.down), device=weight.device))

    def forward(self, weight: Tensor) -> Tensor:
        """The weight as it is used."""
        return weight + (self.up @ self.down).view_as(weight)
