"""Backbones by name: those of timm, variants of them, and networks of our own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from torch import nn

from covis.core.errors import InputError, unknown_name
from covis.models.backbone import Backbone
from covis.models.config import IMAGENET_MEAN, IMAGENET_STD, Facet, Positions, StrideOn
from covis.models.library import import_timm
from covis.models.networks import (
    FacetOfBlock,
    TransVpr,
    adapt_as_cricavpr,
    adapt_as_selavpr,
    end_before_pooling,
    recalibrate_as_sage,
)
from covis.models.plan import WHOLE, is_transformer
from covis.models.side_branches import SideTuned

_SMALL_HEAD = 1 / 4096
"""Size of a VGG's head relative to the usual one, whose 120 M parameters would be drawn only to be dropped."""


@dataclass(frozen=True)
class Variant:
    """A backbone that timm does not have: a library network with other options or changed, or a network of our own."""

    library_name: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    change: Callable[[nn.Module], nn.Module | None] | None = None
    """Changes the network in place, or returns another around it."""
    make: Callable[[], nn.Module] | None = None
    mean_255: tuple[float, float, float] | None = None
    """The mean colour in [0, 255] that alone is subtracted from images, as Caffe's networks were fed."""


VARIANTS = {
    "tiny": Variant("resnet10t", {"channels": (32, 64, 128, 256), "stem_width": 16, "stem_type": "deep_tiered"}),
    "vgg16_cirtorch": Variant("vgg16", change=end_before_pooling),
    "vgg16_caffe": Variant("vgg16", mean_255=(123.68, 116.779, 103.939)),
    "transvpr": Variant(make=TransVpr),
    **{f"vit_{size}_patch14_selavpr": Variant(f"vit_{size}_patch14_dinov2", change=adapt_as_selavpr)
       for size in ("small", "base", "large")},
    **{f"vit_{size}_patch14_cricavpr": Variant(f"vit_{size}_patch14_dinov2", change=adapt_as_cricavpr)
       for size in ("small", "base")},
    **{f"vit_{size}_patch14_selavprpp": Variant(f"vit_{size}_patch14_dinov2", change=partial(SideTuned, kind="scales"))
       for size in ("small", "base", "large")},
    **{f"vit_{size}_patch14_edtformer": Variant(f"vit_{size}_patch14_dinov2", change=partial(SideTuned, kind="low_rank"))
       for size in ("small", "base")},
    **{f"vit_{size}_patch14_sage": Variant(f"vit_{size}_patch14_dinov2", change=recalibrate_as_sage)
       for size in ("small", "base", "large")},
}  # fmt: skip
"""Names that timm lacks. `tiny`: 1.2 M parameters, trains from scratch on a processor; others: published systems."""

RECOMMENDED_BACKBONES = (
    "tiny", "vgg16", "resnet18", "resnet34", "resnet50", "resnet152", "resnext101_32x8d", "densenet161",
    "mobilenetv2_100", "mobilenetv3_small_100", "efficientnet_b0", "convnext_atto",
    "vit_small_patch14_reg4_dinov2", "vit_small_patch14_dinov2", "vit_tiny_patch16_224", "vit_small_patch16_dinov3",
)  # fmt: skip
"""Backbones whose blocks are known to be right: tests check each of them against the model contract."""


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
    """Takes away what follows: a transformer's layer norm, a VGG's last ReLU and pooling, the ReLU of a DenseNet's norm."""
    if is_transformer(net):
        cast(Any, net).norm = nn.Identity()
    elif type(net).__name__ == "VGG":
        features = cast(nn.Sequential, net.features)
        features[-1] = features[-2] = nn.Identity()
    elif type(net).__name__ == "DenseNet":
        cast(Any, net).features.norm5.act = nn.Identity()
    else:
        raise InputError(f"final_norm is a setting of transformers, VGG and DenseNet networks, which {name} is not")


def backbone_names() -> list[str]:
    """Every backbone there is: our own and timm's."""
    timm = import_timm()

    return sorted([*VARIANTS, *timm.list_models()])


def normalisation(name: str) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Mean and standard deviation of RGB in [0, 1] that the weights of this name were trained with."""
    timm = import_timm()

    variant = VARIANTS.get(name)
    if variant and variant.mean_255:
        red, green, blue = (value / 255 for value in variant.mean_255)
        return (red, green, blue), (1 / 255, 1 / 255, 1 / 255)
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
                changed = variant.change(net) if variant.change is not None else None
                return changed or net  # some networks accept the option but keep their size
    raise AssertionError("unreachable")


def _move_stride(name: str, net: nn.Module) -> None:
    for stage in ("layer2", "layer3", "layer4"):
        block = cast(Any, getattr(net, stage, None))
        if block is None or not hasattr(block[0], "conv3"):
            raise InputError(f'stride_on="conv1" is for ResNets of bottleneck blocks, not for {name}')
        block[0].conv1.stride, block[0].conv2.stride = (2, 2), (1, 1)
