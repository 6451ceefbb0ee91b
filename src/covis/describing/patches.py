"""Patches of images, for re-ranking: windows of the map that the model pools, whitened and shortened.

They are made once for the images that a ranking names and kept in a memory-mapped file, so that memory stays bounded
however many there are.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from covis.describing.describers import ModelDescriber
from covis.describing.embedding import BATCH_SIZE, Runner, decoders
from covis.describing.loading import image_batches
from covis.evaluation.benchmark import Benchmark
from covis.evaluation.result import Evaluation
from covis.evaluation.scoring import evaluate
from covis.images import ImageSet
from covis.models import PlaceModel
from covis.progress import Meter
from covis.ranking import Ranking
from covis.search import rank
from covis.search.rerank import DEPTH, SpatialRerank, windows
from covis.whitening import Whitening

SIDE = 2
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


@dataclass(frozen=True, eq=False)
class PatchRerank(SpatialRerank):
    """A re-ranking that knows the files its patches lie in."""

    @property
    def sources(self) -> tuple[Patches, ...]:
        """The map's patches and, where they are others, the queries'."""
        assert isinstance(self.map_patches, Patches)
        assert isinstance(self.query_patches, Patches)
        one = self.map_patches is self.query_patches
        return (self.map_patches,) if one else (self.map_patches, self.query_patches)


def spatial_reranking(
    model: PlaceModel,
    queries: ImageSet,
    database: ImageSet,
    ranking: Ranking,
    folder: Path | str | None = None,
    *,
    depth: int = DEPTH,
    side: int = SIDE,
    dim: int = DIM,
    workers: int | None = None,
    device: str | None = None,
) -> PatchRerank:
    """A re-ranking of the first `depth` results of `ranking`; whitening is fitted on map images, without labels.

    Patches are written below `folder` (a temporary one if None): about P · dim · 2 bytes an image.
    """
    folder = Path(tempfile.mkdtemp(prefix="covis-patches-") if folder is None else folder)
    found = ranking.ids[:, :depth]
    wanted = np.unique(found[found >= 0])
    cutter = _Cutter.fitted(model, database, wanted, side, dim, Runner.choose(device), workers)
    theirs = cutter.cut(database, wanted, folder / "map.npy")
    mine = theirs
    if queries is not database or len(np.setdiff1d(np.arange(len(queries)), wanted)):
        mine = cutter.cut(queries, np.arange(len(queries)), folder / "queries.npy")
    return PatchRerank(mine, theirs, mine.places, depth)


def evaluate_reranked(
    source: ModelDescriber, benchmark: Benchmark, folder: Path | str | None = None, *, depth: int = DEPTH
) -> tuple[Evaluation, Evaluation]:
    """A model on a benchmark without and with re-ranking; the second says what it cost, in CPU time and disk."""
    queries, lost = source.describe(benchmark.queries)
    database, gone = (queries, lost) if benchmark.one_set else source.describe(benchmark.database)
    benchmark = benchmark.without(lost, gone, "their files cannot be read")
    mine, theirs = benchmark.group_codes
    itself = np.arange(len(queries)) if benchmark.one_set else None
    k = max(depth, benchmark.depth)
    plain = rank(queries, database, k, mine, theirs, benchmark.groups, exclude=itself)
    start = _cpu_seconds()
    reranking = spatial_reranking(
        source.model, benchmark.queries, benchmark.database, plain, folder, depth=depth, workers=source.workers
    )
    cut = _cpu_seconds()
    better = reranking(plain)
    images = sum(len(p.ids) for p in reranking.sources)
    vectors = reranking.sources[0].vectors
    cost = {
        "depth": depth,
        "cpu_ms_an_image": 1000 * (cut - start) / max(1, images),
        "cpu_ms_a_query": 1000 * (_cpu_seconds() - cut) / max(1, len(plain)),
        "bytes_an_image": vectors.nbytes // max(1, len(vectors)),
    }
    label = source.facts["label"]
    return (
        evaluate(plain, benchmark, subject=source.facts),
        evaluate(
            better,
            benchmark,
            subject={**source.facts, "label": f"{label}, re-ranked {depth}", "rerank": cost},
            further={"rerank": cost},
        ),
    )


def _cpu_seconds() -> float:
    """CPU time of this process and of its finished workers."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@dataclass(frozen=True, eq=False)
class _Cutter:
    """Images → patches, all in one manner."""

    model: PlaceModel
    side: int
    runner: Runner
    workers: int | None
    whitening: Whitening | None = None

    @classmethod
    def fitted(
        cls, model: PlaceModel, images: ImageSet, ids: NDArray[np.int64], side: int, dim: int, runner: Runner,
        workers: int | None,
    ) -> _Cutter:  # fmt: skip
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
                means = functional.avg_pool2d(features.float(), self.side, stride=1)
            rows, columns = features.shape[-2:]
            yield means.flatten(2).transpose(1, 2).cpu().numpy(), (int(rows), int(columns))
