"""Networks that timm does not have: TransVPR's, and what SelaVPR, CricaVPR, SAGE and AnyLoc change in a transformer.

Also the last block of a transformer, computed for the class token alone.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from covis.core.errors import InputError
from covis.models.config import Facet

ADAPTER_SHARE = 0.2
"""Weight of an adapter beside an MLP (SelaVPR, CricaVPR)."""
_RECALIBRATED = 4
"""SAGE changes what this many last blocks give."""
_FACETS = ("query", "key", "value")


class TransVpr(nn.Module):
    """TransVPR (Wang et al., CVPR 2022): four convolutions, tokens from each of their maps, six transformer blocks.

    Parameters are named as in the published files. Image sides are multiples of 16.
    """

    width, levels = 256, (1, 3, 5)

    def __init__(self) -> None:
        super().__init__()
        channels = (3, 64, 128, 256, 512)
        for stage in range(1, 5):
            self.add_module(f"conv{stage}", _halving(channels[stage - 1], channels[stage]))
            patch = 2 ** (4 - stage)
            tokens = nn.Conv2d(channels[stage], self.width // 4, patch, stride=patch)
            self.add_module(f"tokenizer{stage}", nn.Sequential(OrderedDict(conv_layer=tokens)))
        self.transformer = nn.Module()
        self.transformer.class_emb = nn.Parameter(torch.zeros(1, 1, self.width))
        self.transformer.blocks = nn.ModuleList(_TransVprBlock(self.width, 4, 2 * self.width) for _ in range(6))
        self.transformer.norm = nn.LayerNorm(self.width)

    def forward_features(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) → the tokens of the second, fourth and sixth block as maps side by side, (B, 768, H/16, W/16)."""
        parts = []
        for stage in range(1, 5):
            x = self.get_submodule(f"conv{stage}")(x)
            parts.append(self.get_submodule(f"tokenizer{stage}")(x))
        grid = parts[0].shape[-2:]
        own = torch.cat(parts, 1).flatten(2).transpose(1, 2)
        inner = cast(Any, self.transformer)
        tokens = torch.cat([inner.class_emb.expand(len(own), -1, -1), own], 1)
        kept = []
        for index, block in enumerate(inner.blocks):
            tokens = block(tokens)
            if index in self.levels:
                kept.append(inner.norm(tokens)[:, 1:])
        return torch.cat(kept, -1).transpose(1, 2).reshape(len(own), -1, *grid)

    def forward(self, x: Tensor) -> Tensor:
        """As `forward_features`."""
        return self.forward_features(x)


def _halving(before: int, now: int) -> nn.Sequential:
    convolution = nn.Conv2d(before, now, 3, padding=1)
    return nn.Sequential(convolution, nn.BatchNorm2d(now), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1))


class _TransVprBlock(nn.Module):
    """Attention after a norm; the norm before the MLP is part of the residual path."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.pre_norm, self.norm1 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.self_attn = nn.Module()
        self.self_attn.qkv = nn.Linear(width, 3 * width, bias=False)
        self.self_attn.proj = nn.Linear(width, width)
        self.linear1, self.linear2 = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        attention = cast(Any, self.self_attn)
        query, key, value = attention.qkv(self.pre_norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        x = self.norm1(x + attention.proj(mixed.transpose(1, 2).flatten(2)))
        return cast(Tensor, x + self.linear2(functional.gelu(self.linear1(x))))


class Bottleneck(nn.Module):
    """SelaVPR's adapter: half as many channels and back, added to its input if it is `serial`."""

    def __init__(self, width: int, *, serial: bool) -> None:
        super().__init__()
        self.serial = serial
        self.down, self.up = nn.Linear(width, width // 2), nn.Linear(width // 2, width)

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = self.up(functional.relu(self.down(x)))
        return x + change if self.serial else change


class Scales(nn.Module):
    """CricaVPR's adapter: half as many channels, convolutions 1, 3 and 5 patches wide, and back."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = width // 2
        self.down, self.up = nn.Linear(width, inner), nn.Linear(inner, width)
        self.one = _normed(inner, inner // 2, 1)
        self.three = nn.Sequential(_normed(inner, inner // 16, 1), _normed(inner // 16, inner // 4, 3))
        self.five = nn.Sequential(_normed(inner, inner // 16, 1), _normed(inner // 16, inner // 4, 5))

    def forward(self, x: Tensor) -> Tensor:
        side = math.isqrt(x.shape[1] - 1)
        if side * side != x.shape[1] - 1:
            raise InputError(
                "networks of CricaVPR and SelaVPR++ take square images; set image_size to 224 × 224 or 322 × 322"
            )
        own = functional.relu(self.down(x))
        space = own[:, 1:].transpose(1, 2).reshape(len(x), -1, side, side)
        seen = torch.cat([self.one(space), self.three(space), self.five(space)], 1).flatten(2).transpose(1, 2)
        return cast(Tensor, self.up(own + torch.cat([own[:, :1], seen], 1)))


def _normed(before: int, now: int, side: int) -> nn.Sequential:
    layers = OrderedDict(conv=nn.Conv2d(before, now, side, padding=side // 2), bn=nn.BatchNorm2d(now, eps=1e-3))
    return nn.Sequential(OrderedDict(**layers, relu=nn.ReLU()))


class Beside(nn.Module):
    """A layer plus an adapter of the same input, which has the weight `ADAPTER_SHARE`."""

    def __init__(self, inner: nn.Module, adapter: nn.Module) -> None:
        super().__init__()
        self.inner, self.adapter = inner, adapter

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.inner(x) + ADAPTER_SHARE * self.adapter(x))


def adapt_as_selavpr(net: nn.Module) -> None:
    """An adapter behind each attention and one beside each MLP (Lu et al., ICLR 2024)."""
    for block in cast(Any, net).blocks:
        width = block.norm1.weight.shape[0]
        block.ls1 = nn.Sequential(OrderedDict(adapter=Bottleneck(width, serial=True), scale=block.ls1))
        block.mlp = Beside(block.mlp, Bottleneck(width, serial=False))


def adapt_as_cricavpr(net: nn.Module) -> None:
    """An adapter of several scales beside each MLP (Lu et al., CVPR 2024)."""
    for block in cast(Any, net).blocks:
        block.mlp = Beside(block.mlp, Scales(block.norm1.weight.shape[0]))


class PowerNorm(nn.Module):
    """SAGE's recalibration: values to a power that their mean token decides, with their sign, added to themselves."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.exponent = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 1), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        powers: Tensor = (x.abs() + 1e-6).pow(self.exponent(x.mean(1)).unsqueeze(1))
        return torch.sign(x) * powers + x


def recalibrate_as_sage(net: nn.Module) -> None:
    """What each of the last blocks gives, recalibrated (Chen et al., ICLR 2026)."""
    blocks = cast(Any, net).blocks
    for index in range(len(blocks) - _RECALIBRATED, len(blocks)):
        parts = OrderedDict(block=blocks[index], recalibration=PowerNorm(cast(Any, net).embed_dim, 16))
        blocks[index] = nn.Sequential(parts)


def end_before_pooling(net: nn.Module) -> None:
    """Leaves a VGG's last pooling out, as cirtorch does."""
    features = cast(nn.Sequential, net.features)
    features[-1] = nn.Identity()


class FacetOfBlock(nn.Module):
    """Queries, keys or values of a block's attention, instead of the tokens that it gives (AnyLoc)."""

    def __init__(self, block: nn.Module, facet: Facet) -> None:
        super().__init__()
        self.norm1 = cast(nn.Module, block.norm1)
        self.attn = nn.Module()
        self.attn.qkv = cast(Any, block).attn.qkv
        self.part = _FACETS.index(facet)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, cast(Any, self.attn).qkv(self.norm1(x)).chunk(3, dim=-1)[self.part])
