"""Re-rankers by name, for `covis evaluate --rerank NAME`: the one place to add one.

A re-ranker is a frozen value with `name`, `depth`, `facts()` and `prepare(describer, queries, database)`, which gives a
function `Ranking -> Ranking`. A name with an argument is written `NAME:ARGUMENT`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from covis.core.errors import InputError
from covis.core.machine import cpu_seconds
from covis.core.progress import Meter
from covis.core.registry import Registry
from covis.describing.embedding import BATCH_SIZE, Runner, decoders, image_batches
from covis.descriptors import Describer
from covis.evaluation.run import Reranker
from covis.images import ImageSet
from covis.models import PlaceModel
from covis.poses import PLACE_TURN_DEG
from covis.ranking import Ranking
from covis.search import rerank
from covis.search.rerank import RERANK_DEPTH, SpatialRerank, windows
from covis.whitening import Whitening

_SIDE = 2
"""Cells of the map along each side of a patch."""
DIM = 128
_FIT_IMAGES = 200


@dataclass(frozen=True, eq=False)
class Patches:
    """Unit vectors of the patches of some images, on disk."""

    ids: NDArray[np.int64]
    """(n,) images, ascending."""
    vectors: NDArray[np.float16]
    """(n, P, D), memory-mapped."""
    places: NDArray[np.float32]
    """(P, 2) middles of the patches in cells of the map."""

    def __call__(self, ids: NDArray[np.int64]) -> NDArray[np.float16]:
        """Patches (len(ids), P, D) of these images."""
        return np.asarray(self.vectors[np.searchsorted(self.ids, ids)])


@dataclass(eq=False)
class PatchReranking:
    """Re-ranks the first `depth` results by patches of the model's own map; whitening is fitted on map images.

    Patches are written below `folder` (a temporary one, removed afterwards, if None): about P · dim · 2 bytes per image.
    """

    model: PlaceModel
    queries: ImageSet
    database: ImageSet
    depth: int = RERANK_DEPTH
    folder: Path | None = None
    side: int = _SIDE
    dim: int = DIM
    workers: int | None = None
    device: str | None = None
    cost: dict[str, float] = field(default_factory=dict)
    """After a call: CPU milliseconds and bytes on disk per image that was cut into patches."""

    def __call__(self, ranking: Ranking) -> Ranking:
        """The ranking with its head in a new order."""
        if self.folder is not None:
            return self.spatial(ranking, self.folder)(ranking)
        with tempfile.TemporaryDirectory(prefix="covis-patches-") as folder:
            return self.spatial(ranking, Path(folder))(ranking)

    def spatial(self, ranking: Ranking, folder: Path) -> SpatialRerank:
        """The re-ranking of the results that `ranking` names, its patches in `folder`."""
        started = cpu_seconds()
        head = ranking.ids[:, : self.depth]
        wanted = np.unique(head[head >= 0])
        cutter = _Cutter.fitted(
            self.model, self.database, wanted, side=self.side, dim=self.dim, runner=Runner.choose(self.device),
            workers=self.workers,
        )  # fmt: skip
        of_map = cutter.cut(self.database, wanted, folder / "map.npy")
        of_queries, images = of_map, len(wanted)
        everyone = np.arange(len(self.queries))
        if self.queries is not self.database or len(np.setdiff1d(everyone, wanted)):
            of_queries = cutter.cut(self.queries, everyone, folder / "queries.npy")
            images += len(everyone)
        self.cost |= {
            "cpu_ms_per_image": 1000 * (cpu_seconds() - started) / max(1, images),
            "bytes_per_image": of_map.vectors.nbytes // max(1, len(of_map.vectors)),
        }
        return SpatialRerank(of_queries, of_map, of_map.places, self.depth)


@dataclass(frozen=True, eq=False)
class _Cutter:
    """Images → patches, all cut in the same way."""

    model: PlaceModel
    side: int
    runner: Runner
    workers: int | None
    whitening: Whitening | None = None

    @classmethod
    def fitted(
        cls,
        model: PlaceModel,
        images: ImageSet,
        ids: NDArray[np.int64],
        *,
        side: int,
        dim: int,
        runner: Runner,
        workers: int | None,
    ) -> _Cutter:
        model.to(runner.device).eval()
        plain = cls(model, side, runner, workers)
        sample = ids[np.linspace(0, len(ids) - 1, min(_FIT_IMAGES, len(ids))).astype(int)]
        local = np.concatenate([raw.reshape(-1, raw.shape[-1]) for raw, _ in plain._raw(images, sample)])
        rank = min(dim, local.shape[1], len(local) - 1)
        return cls(model, side, runner, workers, Whitening.fit(local, rank, shrinkage=1e-3))

    def cut(self, images: ImageSet, ids: NDArray[np.int64], path: Path) -> Patches:
        """Patches of the images at `ids` (ascending), written to `path`."""
        assert self.whitening is not None
        target: NDArray[np.float16] | None = None
        done = 0
        with Meter("patches", len(ids), "images") as meter:
            for raw, shape in self._raw(images, ids):
                count, patches, channels = raw.shape
                if target is None:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    size = (len(ids), patches, self.whitening.dim)
                    target = np.lib.format.open_memmap(path, "w+", np.float16, size)
                    places = windows(*shape, self.side)
                target[done : done + count] = self.whitening(raw.reshape(-1, channels)).reshape(count, patches, -1)
                done += count
                meter.advance(count)
        if target is None:
            return Patches(ids, np.zeros((0, 0, self.whitening.dim), np.float16), np.zeros((0, 2), np.float32))
        return Patches(ids, target, places)

    def _raw(self, images: ImageSet, ids: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.float32], tuple[int, int]]]:
        """The mean of each window (B, P, C) and (rows, columns) of the map, a batch at a time."""
        size, workers = self.model.preprocessing.image_size, decoders(self.workers, len(ids))
        for loaded in image_batches(images, ids, size, BATCH_SIZE, workers, on_reject="raise"):
            with torch.inference_mode():
                features = self.model.local_features(self.model.normalise(loaded.images.to(self.runner.device)))
                rows, columns = features.shape[-2:]
                if min(rows, columns) < self.side:
                    raise InputError(
                        f"a map of {rows} × {columns} cells holds no patch of {self.side} × {self.side}: "
                        f"use a model with images larger than {size[0]} × {size[1]}"
                    )
                means = functional.avg_pool2d(features.float(), self.side, stride=1)
            yield means.flatten(2).transpose(1, 2).cpu().numpy(), (int(rows), int(columns))


# Re-rankers by name, for `covis evaluate --rerank NAME`: the one place to add one.
#
# A re-ranker is a frozen value with `name`, `depth`, `facts()` and `prepare(describer, queries, database)`, which gives a
# function `Ranking -> Ranking`. A name with an argument is written `NAME:ARGUMENT`.


RERANKERS: Registry[MakeReranker] = Registry("re-ranker")
"""Name → function from the text after the colon and the depth (None = its own) to the re-ranker."""


class MakeReranker(Protocol):
    """The function that is registered."""

    def __call__(self, argument: str, depth: int | None) -> Reranker: ...


def open_reranker(name: str, depth: int | None = None) -> Reranker:
    """The re-ranker `NAME` or `NAME:ARGUMENT`, of the first `depth` results."""
    kind, _, argument = name.partition(":")
    return RERANKERS[kind](argument, depth)


@dataclass(frozen=True)
class ByConsensus:
    """Puts first the result whose place the other results agree with; needs only the map's positions."""

    depth: int = rerank.HEARD_DEPTH
    name: ClassVar[str] = "consensus"

    def facts(self) -> dict[str, Any]:
        """Depth and angle; radius and sharpness are chosen for the map."""
        return {"depth": self.depth, "angle_deg": PLACE_TURN_DEG}

    def prepare(self, describer: Describer, queries: ImageSet, database: ImageSet) -> Callable[[Ranking], Ranking]:
        """Needs only the map's poses."""
        return rerank.Consensus(database.poses, self.depth)


@dataclass(frozen=True)
class ByPatches:
    """Matches patches of the map that the model pools, and counts the matches that move together."""

    depth: int = rerank.RERANK_DEPTH
    name: ClassVar[str] = "patches"

    def facts(self) -> dict[str, Any]:
        """Depth, side of a patch and dimensions."""

        return {"depth": self.depth, "side": _SIDE, "dim": DIM}

    def prepare(self, describer: Describer, queries: ImageSet, database: ImageSet) -> Callable[[Ranking], Ranking]:
        """Needs a model, to look at the images again."""
        from covis.describing.describers import ModelDescriber
        from covis.models import PlaceModel

        if not isinstance(describer, ModelDescriber) or not isinstance(describer.model, PlaceModel):
            label = describer.facts["label"]
            raise InputError(
                f"--rerank patches looks at the images again: it needs a model or run folder, and {label} is none"
            )
        return PatchReranking(describer.model, queries, database, self.depth, workers=describer.workers)


@RERANKERS.register("consensus")
def _consensus(argument: str, depth: int | None) -> Reranker:
    """Puts first the result whose place the other results agree with; no image is read again."""
    _refuse("consensus", argument)
    return ByConsensus() if depth is None else ByConsensus(depth)


@RERANKERS.register("patches")
def _patches(argument: str, depth: int | None) -> Reranker:
    """Patches of the map that the model pools, by the matches that move together."""
    _refuse("patches", argument)
    return ByPatches() if depth is None else ByPatches(depth)


@RERANKERS.register("local")
def _local(argument: str, depth: int | None) -> Reranker:
    """Local features (local:sift, local:xfeat, …), by the matches that the geometry of two views explains."""
    from covis.describing.local import ByLocal

    return ByLocal.parse(argument, depth)


def _refuse(name: str, argument: str) -> None:
    if argument:
        raise InputError(f"re-ranker {name!r} takes no argument, but got {argument!r}; write --rerank {name}")
