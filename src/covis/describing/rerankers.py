"""Re-rankers by name, for `covis evaluate --rerank NAME`: the one place to add one.

A re-ranker is a frozen value with `name`, `depth`, `facts()` and `prepare(describer, queries, database)`, which gives a
function `Ranking -> Ranking`. A name with an argument is written `NAME:ARGUMENT`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from covis.descriptors import Describer
from covis.errors import InputError
from covis.evaluation.run import Reranker
from covis.images import ImageSet
from covis.ranking import Ranking
from covis.registry import Registry
from covis.search import consensus, rerank

RERANKERS: Registry[MakeReranker] = Registry("re-ranker")
"""Name → function from what stands behind the colon and the depth (None = its own) to the re-ranker."""


class MakeReranker(Protocol):
    """What is registered."""

    def __call__(self, argument: str, depth: int | None) -> Reranker: ...


def open_reranker(name: str, depth: int | None = None) -> Reranker:
    """The re-ranker `NAME` or `NAME:ARGUMENT`, of the first `depth` results."""
    kind, _, argument = name.partition(":")
    return RERANKERS[kind](argument, depth)


@dataclass(frozen=True)
class ByConsensus:
    """Puts the result first whose place the other results agree with; needs the map's positions only."""

    depth: int = consensus.DEPTH
    name: ClassVar[str] = "consensus"

    def facts(self) -> dict[str, Any]:
        """Depth and angle; radius and sharpness are chosen for the map."""
        return {"depth": self.depth, "angle_deg": consensus.ANGLE_DEG}

    def prepare(self, describer: Describer, queries: ImageSet, database: ImageSet) -> Callable[[Ranking], Ranking]:
        """Asks the map's poses."""
        return consensus.Consensus(database.poses, self.depth)


@dataclass(frozen=True)
class ByPatches:
    """Matches patches of the map that the model pools, and counts the matches that move together."""

    depth: int = rerank.DEPTH
    name: ClassVar[str] = "patches"

    def facts(self) -> dict[str, Any]:
        """Depth, side of a patch and dimensions."""
        from covis.describing.patches import DIM, SIDE

        return {"depth": self.depth, "side": SIDE, "dim": DIM}

    def prepare(self, describer: Describer, queries: ImageSet, database: ImageSet) -> Callable[[Ranking], Ranking]:
        """Needs a model, to look at the images again."""
        from covis.describing.describers import ModelDescriber
        from covis.describing.patches import PatchReranking
        from covis.models import PlaceModel

        if not isinstance(describer, ModelDescriber) or not isinstance(describer.model, PlaceModel):
            label = describer.facts["label"]
            raise InputError(
                f"--rerank patches looks at the images again: it needs a model or run folder, and {label} is none"
            )
        return PatchReranking(describer.model, queries, database, self.depth, workers=describer.workers)


@RERANKERS.register("consensus")
def _consensus(argument: str, depth: int | None) -> Reranker:
    _refuse("consensus", argument)
    return ByConsensus() if depth is None else ByConsensus(depth)


@RERANKERS.register("patches")
def _patches(argument: str, depth: int | None) -> Reranker:
    _refuse("patches", argument)
    return ByPatches() if depth is None else ByPatches(depth)


@RERANKERS.register("local")
def _local(argument: str, depth: int | None) -> Reranker:
    from covis.describing.local import ByLocal

    return ByLocal.parse(argument, depth)


def _refuse(name: str, argument: str) -> None:
    if argument:
        raise InputError(f"re-ranker {name!r} takes nothing behind a colon, not {argument!r}; write --rerank {name}")
