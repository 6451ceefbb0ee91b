"""One adapter for every network of timm: its chain of blocks, the cut after a frozen part, the trainable last ones.

The chain reproduces the network's own `forward_features`; that is checked when a backbone is made, so that a network
whose structure is not understood is run whole instead of wrongly.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from covis.core.errors import InputError
from covis.models.config import Positions
from covis.models.plan import EMBED, WHOLE, Plan, is_transformer, plan_of

_CHECK_PIXELS = 64


class Backbone(nn.Module):
    """A library network without its head, run step by step; the features of several blocks joined if asked for."""

    def __init__(
        self, name: str, net: nn.Module, image_size: tuple[int, int], blocks: int = 0, levels: tuple[int, ...] = ()
    ) -> None:
        super().__init__()
        self.name = name
        self.net = net
        self.patch = _patch_size(net) if is_transformer(net) else (1, 1)
        self.prefix_tokens = int(getattr(net, "num_prefix_tokens", 0))
        self.taps: tuple[int, ...] = ()
        self.positions: Positions = "library"
        self.plan, channels = _checked_plan(self, image_size)
        self.level_channels: tuple[int, ...] = (channels,)
        if blocks or levels:
            _shorten(self, levels or (blocks,), image_size)
            self.taps = self.plan.ends(levels)
        _drop_unused(net, self.plan)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) → the features of the last step, as the network orders them."""
        return self.run(x, 0, len(self.plan.steps), self.grid(x.shape[-2:]))

    def run(self, x: Tensor, start: int, stop: int, grid: tuple[int, int]) -> Tensor:
        """Steps `start` … `stop` − 1; `grid` is the number of patches (rows, columns) of the image behind `x`."""
        rope, kept = None, []
        for step, name in enumerate(self.plan.steps[start:stop], start):
            if name == WHOLE:
                x = cast(Tensor, cast(Any, self.net).forward_features(x))
            elif name == EMBED:
                x = self._embed(x)
            elif self._rotary() and name.startswith("blocks."):
                rope = cast(Any, self.net).rope.get_embed(shape=list(grid)) if rope is None else rope
                x = cast(Tensor, self.net.get_submodule(name)(x, rope=rope))
            else:
                x = cast(Tensor, self.net.get_submodule(name)(x))
            if step in self.taps:
                kept.append(x)
        return torch.cat(kept, 1 if x.ndim == 4 and not _channels_come_last(self.net) else -1) if kept else x

    def _rotary(self) -> bool:
        return getattr(self.net, "rope", None) is not None

    def _embed(self, x: Tensor) -> Tensor:
        net = cast(Any, self.net)
        if self.positions == "original":
            return cast(Tensor, net.norm_pre(embed_originally(net, x, self.grid(x.shape[-2:]), self.prefix_tokens)))
        tokens = net._pos_embed(net.patch_embed(x))
        if self._rotary():  # such networks return their rotary positions beside the tokens
            tokens = tokens[0]
        elif getattr(net, "patch_drop", None) is not None:
            tokens = net.patch_drop(tokens)
        return cast(Tensor, net.norm_pre(tokens))

    def grid(self, image_size: tuple[int, ...]) -> tuple[int, int]:
        """Patches (rows, columns) of an image of (height, width) pixels."""
        rows, columns = image_size
        if rows % self.patch[0] or columns % self.patch[1]:
            raise InputError(
                f"{self.name} takes images whose sides are multiples of {self.patch[0]} × {self.patch[1]} pixels, "
                f"not {rows} × {columns}; resize them to {self.fit((rows, columns))}"
            )
        return rows // self.patch[0], columns // self.patch[1]

    def fit(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """The nearest size of whole patches."""
        rows, columns = (max(1, round(s / p)) * p for s, p in zip(image_size, self.patch, strict=True))
        return rows, columns

    def to_map(self, features: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Features of the last step → map (B, C, h, w) and summary (B, C): the class token, or the map's mean."""
        if features.ndim == 3:
            patches = features[:, self.prefix_tokens :]
            space = patches.transpose(1, 2).reshape(features.shape[0], -1, *grid)
            return space, features[:, 0] if self.prefix_tokens else patches.mean(1)
        if _channels_come_last(self.net):
            features = features.permute(0, 3, 1, 2)
        return features, features.mean((-2, -1))

    def step_modules(self, start: int, stop: int) -> list[nn.Module]:
        """The modules of steps `start` … `stop` − 1, without those of the embedding step."""
        names = self.plan.steps[start:stop]
        if WHOLE in names:
            return [self.net]
        return [self.net.get_submodule(name) for name in names if name != EMBED]

    @property
    def channels(self) -> int:
        """Channels of the map that is pooled, over all levels."""
        return sum(self.level_channels)

    @property
    def tokens(self) -> bool:
        """Whether the steps pass on (B, N, C) tokens instead of maps."""
        return EMBED in self.plan.steps


def embed_originally(net: Any, x: Tensor, grid: tuple[int, int], prefix_tokens: int = 1) -> Tensor:
    """Images → class token and patches with their positions, as DINOv2's published code has them."""
    patches = net.patch_embed(x).reshape(len(x), grid[0] * grid[1], -1)
    tokens = torch.cat([net.cls_token.expand(len(x), -1, -1), patches], 1)
    return tokens + stretched_positions(net.pos_embed, grid, prefix_tokens)


def stretched_positions(positions: Tensor, grid: tuple[int, int], prefix_tokens: int) -> Tensor:
    """Position embeddings (1, prefix + side², C) for another `grid`, as DINOv2's published code stretches them.

    Bicubic without antialiasing, by a factor that is a tenth of a patch too large, as its networks were run.
    """
    prefix, patches = positions[:, :prefix_tokens], positions[:, prefix_tokens:]
    side = math.isqrt(patches.shape[1])
    if grid == (side, side):
        return positions
    factors = tuple((patch_count + 0.1) / side for patch_count in grid)
    square = patches.reshape(1, side, side, -1).permute(0, 3, 1, 2)
    stretched = functional.interpolate(square, scale_factor=factors, mode="bicubic")
    return torch.cat([prefix, stretched.permute(0, 2, 3, 1).flatten(1, 2)], 1)


def _patch_size(net: nn.Module) -> tuple[int, int]:
    size = getattr(getattr(net, "patch_embed", None), "patch_size", None)
    if size is None:
        return 1, 1
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


def _channels_come_last(net: nn.Module) -> bool:
    return getattr(net, "output_fmt", "NCHW") == "NHWC"


def _checked_plan(backbone: Backbone, image_size: tuple[int, int]) -> tuple[Plan, int]:
    """The plan of a network, or the plan of one step if its steps do not give the network's own features."""
    net = cast(Any, backbone.net).eval()
    probe, expected = _probe(backbone, image_size)
    if expected.ndim == 3:
        backbone.patch = _patch_size(net)
        rows, columns = backbone.grid(probe.shape[-2:])
        if expected.shape[1] != rows * columns + backbone.prefix_tokens:
            raise InputError(f"{backbone.name} gives no map of local features to pool; choose another backbone")
    backbone.plan = plan_of(net)
    try:
        with torch.inference_mode():
            same = torch.allclose(backbone(probe), expected, rtol=1e-4, atol=1e-6)
    except (RuntimeError, TypeError, AttributeError, NotImplementedError):
        same = False
    axis = -1 if expected.ndim == 3 or _channels_come_last(net) else 1
    return (backbone.plan if same else Plan((WHOLE,), ())), int(expected.shape[axis])


def _probe(backbone: Backbone, image_size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """An image and its features: a small one where the network takes it, else one of the model's size."""
    small = backbone.fit((_CHECK_PIXELS, _CHECK_PIXELS))
    for size in (small, backbone.fit(image_size)):
        probe = torch.linspace(-2, 2, 3 * size[0] * size[1]).sin().reshape(1, 3, *size)
        try:
            with torch.inference_mode():
                features = cast(Any, backbone.net).forward_features(probe)
        except (RuntimeError, AssertionError) as error:
            cause = " ".join(str(error).split())
            continue
        if not isinstance(features, Tensor) or features.ndim not in (3, 4):
            raise InputError(f"{backbone.name} gives no map of local features to pool; choose another backbone")
        return probe, features
    raise InputError(f"{backbone.name} does not take images of {image_size[0]} × {image_size[1]} pixels ({cause})")


def _shorten(backbone: Backbone, blocks: tuple[int, ...], image_size: tuple[int, int]) -> None:
    """Ends the chain after the last of `blocks`; the network is run to find the channels of each."""
    whole = backbone.plan
    if list(blocks) != sorted(set(blocks)) or min(blocks) < 1:
        raise InputError(f"levels={blocks}: name blocks from 1 on, each once, in their order")
    backbone.plan = whole.first(blocks[-1])
    for name in whole.steps[len(backbone.plan.steps) :]:
        backbone.net.set_submodule(name, nn.Identity())
    size = backbone.fit(image_size)
    grid, at, maps, features = backbone.grid(size), 0, [], torch.zeros(1, 3, *size)
    with torch.inference_mode():
        for end in backbone.eval().plan.ends(blocks):
            features = backbone.run(features, at, end + 1, grid)
            maps.append(backbone.to_map(features, grid)[0].shape[1:])
            at = end + 1
    if len({shape[1:] for shape in maps}) > 1:
        sizes = ", ".join(f"{rows} × {columns}" for _, rows, columns in maps)
        raise InputError(
            f"levels={blocks}: the maps of these blocks differ in size ({sizes}); choose blocks of one size"
        )
    backbone.level_channels = tuple(int(shape[0]) for shape in maps)


def _drop_unused(net: nn.Module, plan: Plan) -> None:
    """Takes out what no step uses (heads), so that it is neither saved nor trained."""
    if WHOLE in plan.steps:
        return
    used = {name.split(".")[0] for name in plan.steps}
    if EMBED in plan.steps:
        used |= {"patch_embed", "pos_drop", "patch_drop", "norm_pre", "rope"}
    for name, _ in list(net.named_children()):
        if name not in used:
            setattr(net, name, nn.Identity())
