"""Transformers that stay as they are, beside a branch that learns: SelaVPR++, EDTformer."""

from __future__ import annotations

from typing import Any, Literal, cast

from torch import Tensor, nn
from torch.nn import functional

from covis.models.backbone import embed_originally
from covis.models.networks import Scales

_LOW_RANK = 4
_LOW_RANK_SHARE = 0.5
_SCALES_BLOCKS = 16
"""Blocks, counted from the last, that SelaVPR++ adapts in a network of more."""


class LowRankSide(nn.Module):
    """EDTformer's adapter: four channels and back, half of which is added."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(width, _LOW_RANK), nn.Linear(_LOW_RANK, width)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, x + _LOW_RANK_SHARE * self.up(functional.gelu(self.down(x))))


class SideTuned(nn.Module):
    """A vision transformer and a branch beside it, which begins as its tokens and takes in what each block gives.

    With `scales` an adapter of their sum is added to the branch (SelaVPR++), with `low_rank` it replaces it (EDTformer).
    """

    num_prefix_tokens = 1

    def __init__(self, vit: nn.Module, kind: Literal["scales", "low_rank"]) -> None:
        super().__init__()
        self.vit, self.added = vit, kind == "scales"
        blocks, width = len(cast(Any, vit).blocks), cast(Any, vit).embed_dim
        count = min(blocks, _SCALES_BLOCKS) if self.added else blocks
        self.adapters = nn.ModuleList(Scales(width) if self.added else LowRankSide(width) for _ in range(count))

    @property
    def patch_embed(self) -> nn.Module:
        """The transformer's own, which knows the size of a patch."""
        return cast(nn.Module, self.vit.patch_embed)

    def forward_features(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) → the branch's tokens after the final norm (B, 1 + patches, C)."""
        vit = cast(Any, self.vit)
        rows, columns = (side // size for side, size in zip(x.shape[-2:], vit.patch_embed.patch_size, strict=True))
        branch = x = embed_originally(vit, x, (rows, columns))
        without = len(vit.blocks) - len(self.adapters)
        for index, block in enumerate(vit.blocks):
            x = block(x)
            if index < without:
                branch = x
            else:
                side = self.adapters[index - without](branch + x)
                branch = branch + side if self.added else side
        return cast(Tensor, vit.norm(branch))
