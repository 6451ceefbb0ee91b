"""Interfaces of batches, samplers and a recipe's `batches`, and the registry of the latter.

A recipe states its batches as one frozen value, such as `Pairs(strategy="A", size=32)`. It makes a sampler, the
sampler draws batches, and a batch knows which images it needs and how a loss is called on their descriptors. A new
kind is a subclass of `Batches` with `@BATCHES.register("name")` above it; the training loop knows none by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Ids
from covis.core.errors import InputError
from covis.core.registry import Registry
from covis.graph import SimilarityGraph
from covis.images import Split
from covis.labels.rules import LabelRule

if TYPE_CHECKING:
    from torch import Tensor

    from covis.sampling.tuples import TupleMiner


def check_index(index: int, batches: int) -> None:
    """Refuses an index outside an epoch of `batches` batches."""
    if not 0 <= index < batches:
        raise InputError(f"batch {index} is not one of the epoch's {batches}")


class Batch(Protocol):
    """Index pairs, tuples or lists of one training step."""

    @property
    def psi(self) -> NDArray[np.float32]:
        """Similarities of the batch's pairs, in the shape of the columns of `images`."""
        ...

    @property
    def redrawn(self) -> int:
        """How many slots got another query because theirs had no candidate."""
        ...

    @property
    def total_weight(self) -> float:
        """What the sum of the batch's losses is divided by."""
        ...

    def __len__(self) -> int:
        """How many pairs, tuples or lists."""
        ...

    def images(self) -> tuple[Ids, Ids]:
        """Rows and columns of the graph whose images are described, in the shapes that `loss` expects."""
        ...

    def loss(self, loss: Any, za: Tensor, zb: Tensor) -> Tensor:
        """The sum of the weighted losses; za, zb: descriptors in the shapes of `images`, and a last axis."""
        ...

    def relabelled(self, queries: Ids, database: Ids, labels: SimilarityGraph) -> Batch:
        """The same batch after bad files were replaced by other images (in the shapes of `images`)."""
        ...


class Sampler(Protocol):
    """Batches by epoch and index; nothing is remembered between calls."""

    def __len__(self) -> int:
        """Batches an epoch."""
        ...

    def batch(self, epoch: int, index: int) -> Batch:
        """Batch `index` of `epoch`."""
        ...


@runtime_checkable
class Batches(Protocol):
    """How a recipe's batches are put together."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    losses: ClassVar[tuple[str, ...]]
    """Shapes of the losses that can be called on such batches: pairs, tuples, lists."""
    size: int
    """How large a batch is: pairs, images, tuples."""
    mined: bool = False
    """Whether batches need the model as it is after the step before them."""

    def rules(self) -> Mapping[str, LabelRule]:
        """Further graphs that the sampler needs: name of each → its rule."""
        return {}

    def sampler(
        self, labels: SimilarityGraph, split: Split, seed: int, *, loss: Any, graphs: Mapping[str, SimilarityGraph]
    ) -> Sampler:
        """The sampler of `split`, whose pairs `labels` grades; `graphs` are those that `rules` asked for."""
        ...

    def miner(self, sampler: Any) -> TupleMiner | None:
        """What replaces random negatives by hard ones, if anything."""
        return None


BATCHES: Registry[type[Batches]] = Registry("kind of batches")
"""Name in recipes and on the command line → class."""
