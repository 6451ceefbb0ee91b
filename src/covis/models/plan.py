"""The chain of blocks that a network is run as, read off its structure.

VGG           conv1_x … conv5_x, each with the pooling layer behind it
ResNet        layer1 … layer4 (ResNeXt and the other relatives alike)
DenseNet      denseblock1 + transition1 … denseblock4 + norm5
others        the items of the network's `blocks`, `stages` or `layers` (MobileNet, EfficientNet, ConvNeXt, Swin)
transformers  each transformer block; the final norm belongs to the last
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from covis.core.errors import InputError

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

    def depth(self, parameter: str) -> int:
        """How many blocks come after the one that a model's parameter (`backbone.net.…`) belongs to."""
        inside = [k for k, step in enumerate(self.steps) if f"{parameter}.".startswith(f"backbone.net.{step}.")]
        return len(self.block_starts) - sum(start <= max(inside, default=0) for start in self.block_starts)

    def cut(self, trainable: str) -> int:
        """The first step that learns."""
        if trainable == "all":
            return 0
        if trainable == "none":
            return len(self.steps)
        count = int(trainable.removeprefix("last"))
        if len(self.block_starts) < count:
            raise InputError(
                f'trainable="{trainable}": of this backbone {len(self.block_starts)} blocks are known; use fewer, "all" or "none"'
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
