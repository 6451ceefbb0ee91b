"""Re-rankers by name, for `covis evaluate --rerank NAME`: the one place to add one.

A re-ranker is a value as `covis.search.rerank.Reranker` describes it. A name with an argument is written `NAME:ARGUMENT`.
"""

from __future__ import annotations

from typing import Protocol

from covis.core.errors import InputError
from covis.core.registry import Registry
from covis.search import Consensus
from covis.search.rerank import Reranker


class MakeReranker(Protocol):
    """The function that is registered."""

    def __call__(self, argument: str, depth: int | None) -> Reranker: ...


RERANKERS: Registry[MakeReranker] = Registry("re-ranker")
"""Name → function from the text after the colon and the depth (None = its own) to the re-ranker."""


def open_reranker(name: str, depth: int | None = None) -> Reranker:
    """The re-ranker `NAME` or `NAME:ARGUMENT`, of the first `depth` results."""
    kind, _, argument = name.partition(":")
    return RERANKERS[kind](argument, depth)


@RERANKERS.register("consensus")
def _consensus(argument: str, depth: int | None) -> Reranker:
    """Puts first the result whose place the other results agree with; no image is read again."""
    _refuse("consensus", argument)
    return Consensus() if depth is None else Consensus(depth=depth)


@RERANKERS.register("patches")
def _patches(argument: str, depth: int | None) -> Reranker:
    """Patches of the map that the model pools, by the matches that move together."""
    from covis.describing.patches import PatchReranker

    _refuse("patches", argument)
    return PatchReranker() if depth is None else PatchReranker(depth)


@RERANKERS.register("local")
def _local(argument: str, depth: int | None) -> Reranker:
    """Local features (local:sift, local:h5=FILE), by the matches that one homography explains."""
    from covis.search.local import LocalReranker

    return LocalReranker.parse(argument, depth)


def _refuse(name: str, argument: str) -> None:
    if argument:
        raise InputError(f"re-ranker {name!r} takes no argument, but got {argument!r}; write --rerank {name}")
