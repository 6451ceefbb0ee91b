"""Re-ranking by patches of the map that the model pools into its descriptor: matches that move together count.

Patches need no weights of their own. Matching costs far more than the search before it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from covis.core import machine
from covis.core.errors import InputError
from covis.core.progress import Meter
from covis.describing.decoded import decoders
from covis.describing.describers import ModelDescriber
from covis.describing.embedding import BATCH_SIZE
from covis.describing.loading import image_batches
from covis.descriptors import Describer
from covis.images import ImageSet
from covis.models import PlaceModel
from covis.ranking import Ranking
from covis.search.rerank import RERANK_DEPTH, reordered
from covis.whitening import Whitening

REACH = 0.25
"""How far a match may stray from the common movement and still count, as a share of the image's diagonal."""
_FIT_IMAGES = 200


@dataclass(frozen=True, eq=False)
class PatchVectors:
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


@dataclass(frozen=True)
class PatchReranker:
    """Orders the first `depth` results by how well patches of the model's own map match and agree on one movement."""

    depth: int = RERANK_DEPTH
    side: int = 2
    """Cells of the map along each side of a patch."""
    dim: int = 128
    """Length of a patch's vector, whitened on map images."""
    distance_weight: float = 0.5
    """How much the descriptors' own similarity counts beside the patches; 0 leaves it out."""
    name: ClassVar[str] = "patches"

    def facts(self) -> dict[str, Any]:
        """Depth, side of a patch and dimensions."""
        return {"depth": self.depth, "side": self.side, "dim": self.dim}

    def prepare(self, describer: Describer, queries: ImageSet, database: ImageSet) -> Callable[[Ranking], Ranking]:
        """Needs a model, to read the images again; patches wait in a temporary folder, P · dim · 2 bytes per image."""
        if not isinstance(describer, ModelDescriber) or not isinstance(describer.model, PlaceModel):
            label = describer.facts["label"]
            raise InputError(
                f"--rerank patches needs a model or run folder to read the images; {label} has only descriptors"
            )
        model, workers = describer.model, describer.workers

        def rerank(ranking: Ranking) -> Ranking:
            with tempfile.TemporaryDirectory(prefix="covis-patches-") as folder:
                own, others = self.cut(model, queries, database, ranking, Path(folder), workers)
                return self.by_patches(own, others, ranking)

        return rerank

    def cut(
        self,
        model: PlaceModel,
        queries: ImageSet,
        database: ImageSet,
        ranking: Ranking,
        folder: Path,
        workers: int | None = None,
    ) -> tuple[PatchVectors, PatchVectors]:
        """Patches of the queries and of the map images in the head of `ranking`, in files below `folder`."""
        head = ranking.ids[:, : self.depth]
        ids = np.unique(head[head >= 0])
        cutter = _Cutter.fitted(model, database, ids, side=self.side, dim=self.dim, workers=workers)
        of_map = cutter.cut(database, ids, folder / "map.npy")
        everyone = np.arange(len(queries))
        if queries is database and not len(np.setdiff1d(everyone, ids)):
            return of_map, of_map
        return cutter.cut(queries, everyone, folder / "queries.npy"), of_map

    def by_patches(self, queries: PatchVectors, database: PatchVectors, ranking: Ranking) -> Ranking:
        """The ranking with its head in a new order; distances stay those of the descriptors, so they may not ascend."""

        def scores(query: int, ids: NDArray[np.int64], distances: NDArray[np.floating]) -> NDArray[np.float64]:
            own = np.asarray(queries(np.array([query]))[0], np.float32)
            agreed = agreement(own, np.asarray(database(ids), np.float32), database.places)
            return agreed - self.distance_weight * distances**2 / 2

        return reordered(ranking, self.depth, scores)


def agreement(
    query: NDArray[np.float32], candidates: NDArray[np.float32], places: NDArray[np.float32]
) -> NDArray[np.float64]:
    """(n,) spatial agreement of patches (P, D) with the patches (n, P, D) of each candidate.

    Two patches match if each is the other's nearest. A match counts its cosine, less the farther its movement is from
    the median movement of all matches. Divided by P, so that an image has 1 with itself.
    """
    if candidates.ndim != 3 or candidates.shape[1:] != query.shape or places.shape != (len(query), 2):
        raise InputError(
            f"patches {query.shape}, {candidates.shape} and places {places.shape} do not fit together; use one model"
        )
    count, patches, dim = candidates.shape
    cosine = (candidates.reshape(-1, dim) @ query.T).reshape(count, patches, patches)
    limit = REACH * float(np.linalg.norm(places.max(0) - places.min(0))) or 1.0
    return np.array([_agree(one.T, places, limit) for one in cosine])


def _agree(cosine: NDArray[np.float32], places: NDArray[np.float32], limit: float) -> float:
    """Agreement from the cosines (P, P) of the query's patches (rows) with the candidate's (columns)."""
    forward, backward = cosine.argmax(1), cosine.argmax(0)
    mutual = np.flatnonzero(backward[forward] == np.arange(len(forward)))
    movement = places[forward[mutual]] - places[mutual]
    stray = np.linalg.norm(movement - np.median(movement, axis=0), axis=1)
    weight = np.maximum(0, 1 - stray / limit)
    return float((np.maximum(cosine[mutual, forward[mutual]], 0) * weight).sum() / len(forward))


def windows(rows: int, columns: int, side: int) -> NDArray[np.float32]:
    """(P, 2) middles (column, row) of all windows of side × side cells, row by row."""
    y, x = np.mgrid[: rows - side + 1, : columns - side + 1]
    return (np.column_stack([x.ravel(), y.ravel()]) + (side - 1) / 2).astype(np.float32)


@dataclass(frozen=True, eq=False)
class _Cutter:
    """Images → patches, all cut in the same way."""

    model: PlaceModel
    side: int
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
        workers: int | None,
    ) -> _Cutter:
        model.to(machine.device()).eval()
        plain = cls(model, side, workers)
        sample = ids[np.linspace(0, len(ids) - 1, min(_FIT_IMAGES, len(ids))).astype(int)]
        local = np.concatenate([raw.reshape(-1, raw.shape[-1]) for raw, _ in plain._raw(images, sample)])
        rank = min(dim, local.shape[1], len(local) - 1)
        return cls(model, side, workers, Whitening.fit(local, rank, shrinkage=1e-3))

    def cut(self, images: ImageSet, ids: NDArray[np.int64], path: Path) -> PatchVectors:
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
            return PatchVectors(ids, np.zeros((0, 0, self.whitening.dim), np.float16), np.zeros((0, 2), np.float32))
        return PatchVectors(ids, target, places)

    def _raw(self, images: ImageSet, ids: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.float32], tuple[int, int]]]:
        """The mean of each window (B, P, C) and (rows, columns) of the map, a batch at a time."""
        size, workers = self.model.preprocessing.image_size, decoders(self.workers, len(ids))
        for loaded in image_batches(images, ids, size, BATCH_SIZE, workers, on_reject="raise"):
            with torch.inference_mode():
                features = self.model.local_features(self.model.normalise(loaded.images.to(machine.device())))
                rows, columns = features.shape[-2:]
                if min(rows, columns) < self.side:
                    raise InputError(
                        f"a map of {rows} × {columns} cells holds no patch of {self.side} × {self.side}: "
                        f"use a model with images larger than {size[0]} × {size[1]}"
                    )
                means = functional.avg_pool2d(features.float(), self.side, stride=1)
            yield means.flatten(2).transpose(1, 2).cpu().numpy(), (int(rows), int(columns))
