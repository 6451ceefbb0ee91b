"""One adapter for every backbone of timm: its chain of blocks, the cut after a frozen part, the trainable last ones.

VGG           conv1_x … conv5_x, each with the pooling layer behind it
ResNet        layer1 … layer4 (ResNeXt and the other relatives alike)
DenseNet      denseblock1 + transition1 … denseblock4 + norm5
others        the items of the network's `blocks`, `stages` or `layers` (MobileNet, EfficientNet, ConvNeXt, Swin)
transformers  each transformer block; the final norm belongs to the last

The chain reproduces the network's own `forward_features`; that is checked when a backbone is made, so that a network
whose structure is not understood is run whole instead of wrongly.
"""

from __future__ import annotations

import functools
import importlib
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from covis.core.errors import InputError, unknown_name
from covis.models.config import IMAGENET_MEAN, IMAGENET_STD, Facet, Positions, StrideOn, Trainable
from covis.models.networks import (
    FacetOfBlock,
    TransVpr,
    adapt_as_cricavpr,
    adapt_as_selavpr,
    end_before_pooling,
)


@functools.cache
def import_torchvision() -> Any:
    """Imports torchvision, which timm needs, also where it was built for another torch than the installed one.

    A CUDA build beside a CPU torch registers no operators and then fails on its own `nms`; declaring the two that it
    asks for lets everything else work. Returns what holds the declarations, which the cache keeps alive.
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    for name in [n for n in sys.modules if n == "torchvision" or n.startswith("torchvision.")]:
        del sys.modules[name]  # the half-imported package
    library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    importlib.import_module("torchvision")
    return library


def import_timm() -> Any:
    """The package timm, with torchvision in working order."""
    import_torchvision()
    return importlib.import_module("timm")


EMBED = "embed"
"""The first step of a transformer: patches, positions, class and register tokens."""
WHOLE = "whole"
"""The only step of a network that cannot be cut."""

_CONTAINERS = ("blocks", "stages", "layers")
_HEADS = ("head", "fc", "classifier", "global_pool", "head_drop", "fc_norm", "attn_pool", "pre_logits")


@dataclass(frozen=True)
class Plan:
    """The chain of a network: names of its steps, and at which of them each block starts."""

    steps: tuple[str, ...]
    block_starts: tuple[int, ...]

    def first(self, blocks: int) -> Plan:
        """The chain up to the end of its first `blocks` blocks."""
        if not 1 <= blocks <= len(self.block_starts):
            raise InputError(f"blocks={blocks}: this backbone has {len(self.block_starts)} blocks; 0 keeps all")
        if blocks == len(self.block_starts):
            return self
        return Plan(self.steps[: self.block_starts[blocks]], self.block_starts[:blocks])

    def ends(self, blocks: tuple[int, ...]) -> tuple[int, ...]:
        """The last step of each of these blocks, counted from 1."""
        behind = (*self.block_starts, len(self.steps))
        return tuple(behind[block] - 1 for block in blocks)

    def cut(self, trainable: Trainable) -> int:
        """The first step that learns."""
        if trainable == "all":
            return 0
        if trainable == "none":
            return len(self.steps)
        count = int(trainable.removeprefix("last"))
        if len(self.block_starts) < count:
            raise InputError(
                f'trainable="{trainable}" needs a backbone whose blocks are known; use trainable="all" or "none"'
            )
        return self.block_starts[-count]


def is_transformer(net: nn.Module) -> bool:
    """Whether `net` is a plain vision transformer: patches in, one chain of blocks over tokens."""
    return all(hasattr(net, part) for part in ("patch_embed", "_pos_embed", "blocks", "norm_pre", "norm"))


def plan_of(net: nn.Module) -> Plan:
    """The chain that the structure of `net` suggests; the adapter checks whether it is right."""
    if is_transformer(net):
        blocks = [f"blocks.{name}" for name, _ in cast(Any, net).blocks.named_children()]
        return Plan((EMBED, *blocks, "norm"), tuple(range(1, 1 + len(blocks))))
    if type(net).__name__ in ("VGG", "DenseNet"):
        return _features_plan(cast(nn.Module, net.features))
    steps: list[str] = []
    starts: list[int] = []
    stages = _stage_names(net)
    for name, child in net.named_children():
        if name in _HEADS:
            break
        if name in _CONTAINERS:
            for item, _ in child.named_children():
                starts.append(len(steps))
                steps.append(f"{name}.{item}")
        else:
            if name in stages:
                starts.append(len(steps))
            steps.append(name)
    return Plan(tuple(steps), tuple(starts))


def _stage_names(net: nn.Module) -> set[str]:
    """Children that the library lists as stages and that have children of their own (layer1, s2 …)."""
    children = dict(net.named_children())
    if any(name in children for name in _CONTAINERS):
        return set()
    listed = {str(entry["module"]) for entry in cast(Any, getattr(net, "feature_info", None)) or []}
    return {name for name in listed & set(children) if any(children[name].children()) and name != "stem"}


def _features_plan(features: nn.Module) -> Plan:
    """VGG: a block ends with its pooling layer. DenseNet: a block starts with its dense block."""
    steps, starts = [], []
    dense = any(name.startswith("denseblock") for name, _ in features.named_children())
    after_pool = not dense
    for index, (name, child) in enumerate(features.named_children()):
        if after_pool or name.startswith("denseblock"):
            starts.append(index)
        steps.append(f"features.{name}")
        after_pool = not dense and isinstance(child, nn.MaxPool2d)
    return Plan(tuple(steps), tuple(s for s in starts if s < len(steps)))


_CHECK_PIXELS = 64
_SMALL_HEAD = 1 / 4096
"""Size of a VGG's head relative to the usual one, whose 120 M parameters would be drawn only to be dropped."""


@dataclass(frozen=True)
class Variant:
    """A backbone that timm does not have: a library network with other options or changed, or a network of our own."""

    library_name: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    change: Callable[[nn.Module], None] | None = None
    make: Callable[[], nn.Module] | None = None


VARIANTS = {
    "tiny": Variant("resnet10t", {"channels": (32, 64, 128, 256), "stem_width": 16, "stem_type": "deep_tiered"}),
    "vgg16_cirtorch": Variant("vgg16", change=end_before_pooling),
    "transvpr": Variant(make=TransVpr),
    **{f"vit_{size}_patch14_selavpr": Variant(f"vit_{size}_patch14_dinov2", change=adapt_as_selavpr)
       for size in ("small", "base", "large")},
    **{f"vit_{size}_patch14_cricavpr": Variant(f"vit_{size}_patch14_dinov2", change=adapt_as_cricavpr)
       for size in ("small", "base")},
}  # fmt: skip
"""Names that timm lacks. `tiny`: 1.2 M parameters, trains from scratch on a processor; others: published systems."""

RECOMMENDED_BACKBONES = (
    "tiny", "vgg16", "resnet18", "resnet34", "resnet50", "resnet152", "resnext101_32x8d", "densenet161",
    "mobilenetv2_100", "mobilenetv3_small_100", "efficientnet_b0", "convnext_atto",
    "vit_small_patch14_reg4_dinov2", "vit_small_patch14_dinov2", "vit_tiny_patch16_224", "vit_small_patch16_dinov3",
)  # fmt: skip
"""Backbones whose blocks are known to be right: tests check each of them against the model contract."""


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
            grid = self.grid(x.shape[-2:])
            patches = net.patch_embed(x).reshape(len(x), grid[0] * grid[1], -1)
            tokens = torch.cat([net.cls_token.expand(len(x), -1, -1), patches], 1)
            return cast(Tensor, net.norm_pre(tokens + stretched_positions(net.pos_embed, grid, self.prefix_tokens)))
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


def wrapped_name(module: nn.Module) -> str:
    """What a module of the user's own is called."""
    return f"wrapped {type(module).__name__}"


class Wrapped(Backbone):
    """A module of the user's own that gives vectors: one step, and a map of a single place."""

    def __init__(self, module: nn.Module, image_size: tuple[int, int]) -> None:
        nn.Module.__init__(self)
        self.name, self.net = wrapped_name(module), module.eval()
        self.patch, self.prefix_tokens, self.taps, self.positions = (1, 1), 0, (), "library"
        self.plan = Plan((WHOLE,), ())
        with torch.inference_mode():
            self.level_channels = (int(self.run(torch.zeros(1, 3, *image_size), 0, 1, image_size).shape[1]),)

    def run(self, x: Tensor, start: int, stop: int, grid: tuple[int, int]) -> Tensor:
        """The whole module, if it is among the steps: (B, 3, H, W) → (B, dim, 1, 1)."""
        if start >= stop:
            return x
        vectors = self.net(x)
        vectors = vectors[0] if isinstance(vectors, tuple) else vectors
        if not isinstance(vectors, Tensor) or vectors.ndim != 2:
            raise InputError(
                f"{self.name} must give one vector per image, (B, dim), not {getattr(vectors, 'shape', vectors)}"
            )
        return vectors[:, :, None, None]


def create_backbone(
    name: str,
    image_size: tuple[int, int],
    stride_on: StrideOn = "conv2",
    *,
    blocks: int = 0,
    levels: tuple[int, ...] = (),
    positions: Positions = "library",
    final_norm: bool = True,
    facet: Facet = "token",
) -> Backbone:
    """The backbone called `name` with random weights; only its first `blocks` blocks unless 0, or those of `levels`."""
    net = _create_net(name, image_size)
    if stride_on == "conv1":
        _move_stride(name, net)
    if positions != "library" and not is_transformer(net):
        raise InputError(f"positions is a setting of transformers, which {name} is not")
    if not final_norm:
        _drop_end(name, net)
    backbone = Backbone(name, net, image_size, blocks, levels)
    backbone.positions = positions
    if facet != "token":
        _take_facet(backbone, facet)
    return backbone


def _take_facet(backbone: Backbone, facet: Facet) -> None:
    """Ends the network inside the attention of its last block."""
    net = cast(Any, backbone.net)
    if not is_transformer(net) or WHOLE in backbone.plan.steps or backbone.taps:
        raise InputError(f"facet is a setting of transformers without levels, which {backbone.name} is not")
    last = int([name for name in backbone.plan.steps if name.startswith("blocks.")][-1].removeprefix("blocks."))
    if not hasattr(net.blocks[last].attn, "qkv"):
        raise InputError(f"{backbone.name} has no {facet} in the attention of its blocks; use facet=token")
    net.blocks[last] = FacetOfBlock(net.blocks[last], facet)
    net.norm = nn.Identity()


def _drop_end(name: str, net: nn.Module) -> None:
    """Takes away what follows the last block: a transformer's layer norm, a VGG's last ReLU and pooling."""
    if is_transformer(net):
        cast(Any, net).norm = nn.Identity()
    elif type(net).__name__ == "VGG":
        features = cast(nn.Sequential, net.features)
        features[-1] = features[-2] = nn.Identity()
    else:
        raise InputError(f"final_norm is a setting of transformers and VGG networks, which {name} is not")


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


def backbone_names() -> list[str]:
    """Every backbone there is: our own and timm's."""
    timm = import_timm()

    return sorted([*VARIANTS, *timm.list_models()])


def normalisation(name: str) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Mean and standard deviation of RGB in [0, 1] that the weights of this name were trained with."""
    timm = import_timm()

    variant = VARIANTS.get(name)
    library_name = variant.library_name if variant else name
    config = timm.get_pretrained_cfg(library_name) if library_name else None
    return (_rgb(config.mean), _rgb(config.std)) if config else (IMAGENET_MEAN, IMAGENET_STD)


def _rgb(values: tuple[float, ...]) -> tuple[float, float, float]:
    red, green, blue = values
    return red, green, blue


def _create_net(name: str, image_size: tuple[int, int]) -> nn.Module:
    timm = import_timm()

    variant = VARIANTS.get(name, Variant(name))
    if variant.make is not None:
        return variant.make()
    library_name, options = variant.library_name, variant.options
    if not timm.is_model(library_name):
        raise unknown_name("backbone", name, backbone_names())
    if library_name.startswith("vgg"):
        options = {**options, "mlp_ratio": _SMALL_HEAD}
    config = timm.get_pretrained_cfg(library_name)
    attempts: list[dict[str, Any]] = [{}]
    if config is not None and config.fixed_input_size:  # transformers: any size at each call, else a size fixed here
        attempts = [{"dynamic_img_size": True}, {"img_size": image_size}, {}]
    for size_options in attempts:
        try:
            net: nn.Module = timm.create_model(library_name, num_classes=0, **options, **size_options)
        except TypeError:
            if size_options is attempts[-1]:
                raise
        else:
            if getattr(net, "dynamic_img_size", False) or "dynamic_img_size" not in size_options:
                if variant.change is not None:
                    variant.change(net)
                return net  # some networks accept the option but keep their size
    raise AssertionError("unreachable")


def _move_stride(name: str, net: nn.Module) -> None:
    for stage in ("layer2", "layer3", "layer4"):
        block = cast(Any, getattr(net, stage, None))
        if block is None or not hasattr(block[0], "conv3"):
            raise InputError(f'stride_on="conv1" is for ResNets of bottleneck blocks, not for {name}')
        block[0].conv1.stride, block[0].conv2.stride = (2, 2), (1, 1)


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
