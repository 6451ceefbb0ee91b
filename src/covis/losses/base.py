"""What every loss is: a frozen value with a shape, registered by name; and the distances that losses are made of.

A new loss is a frozen dataclass with defaults for all its fields and `@LOSSES.register("name")` above it, in any module of
this package that `covis.losses` imports.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from covis.registry import Registry

if TYPE_CHECKING:  # a recipe names its loss; torch is loaded when it is called
    import torch
    from torch import Tensor, nn


class Loss(ABC):
    """A loss; its base class says what it is called on."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    shape: ClassVar[str]
    """What it is called on: pairs, tuples, …; batches say which shapes they offer."""

    def head(self, sampler: Any, dim: int) -> nn.Module | None:
        """What learns beside the model and is thrown away after training, such as descriptors of classes; mostly nothing."""
        return None

    def bound(self, head: nn.Module | None) -> Callable[..., Tensor]:
        """What a batch calls: the loss with its head."""
        return self  # type: ignore[return-value]


LOSSES: Registry[type[Loss]] = Registry("loss")
"""Names of losses in recipes and on the command line; every one has defaults for all its fields."""


def common_dtype(a: Tensor, b: Tensor) -> torch.dtype:
    """What both fit into, at least float32."""
    import torch

    return torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32)


def difference(za: Tensor, zb: Tensor) -> Tensor:
    """za − zb, at least in float32."""
    dtype = common_dtype(za, zb)
    return za.to(dtype) - zb.to(dtype)


def distance(za: Tensor, zb: Tensor) -> Tensor:
    """(…,) Euclidean distance over the last axis, at least in float32; its gradient is 0, not infinite, at equal ones."""
    import torch

    norm: Tensor = torch.linalg.vector_norm(difference(za, zb), dim=-1)
    return norm


def squared_distance(za: Tensor, zb: Tensor) -> Tensor:
    """(…,) squared Euclidean distance over the last axis, at least in float32."""
    return difference(za, zb).square().sum(-1)


def cosine(za: Tensor, zb: Tensor) -> Tensor:
    """(…,) similarity of unit descriptors over the last axis, at least in float32."""
    dtype = common_dtype(za, zb)
    return (za.to(dtype) * zb.to(dtype)).sum(-1)
