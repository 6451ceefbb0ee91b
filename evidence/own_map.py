"""What the benchmarks of own maps share: maps of some walks of a table, queried with photos of the other walks.

A model is fitted as `covis index` fits it. Clusters are placed by photos of the whole table, without labels, and each
photo passes through the network once; what is learned from poses, the choice of whitening and the calibration are
fitted separately for each map, to its own walks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from covis.images import ImageSet
    from covis.models import Embedder
    from covis.training.recipe import Recipe
    from covis.whitening import Whitening

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
WEIGHTS = tuple(
    SHARED / "weights" / name for name in ("dinov2_vits14_reg_fp16.safetensors", "mobilenetv2_100_imagenet.safetensors")
)
TABLES = tuple(SHARED / "campus" / f"{name}.csv" for name in ("train", "west"))
_PROBE = 32


@dataclass(frozen=True)
class Photos:
    """A table's photos, described once by a network whose clusters were fitted to them."""

    name: str
    backbone: str
    images: ImageSet
    raw: NDArray[np.float32]
    recipe: Recipe
    model: Embedder

    def embedding_s(self) -> float:
        """CPU seconds to describe all photos, extrapolated from a few."""
        from covis.describing.embedding import embed

        few = self.images.subset(np.arange(_PROBE))
        embed(self.model, few)
        start = time.process_time()
        embed(self.model, few)
        return (time.process_time() - start) * len(self.images) / _PROBE


def whiten(whitening: Whitening, raw: NDArray[np.float32]) -> NDArray[np.float32]:
    """(N, dim) descriptors by a `Whitening`, in single precision, which saves much time if they are long."""
    white = (raw - whitening.mean.astype(np.float32)) @ whitening.projection.astype(np.float32)
    return white / np.maximum(np.linalg.norm(white, axis=1, keepdims=True), 1e-12)


def described(table: Path, weights: Path, keep: Path) -> Photos:
    """Photos as `covis index TABLE --weights WEIGHTS` describes them, kept in a folder for the next run."""
    from covis.descriptors import DescriptorStore
    from covis.maps.fitting import choose_recipe, fit_model
    from covis.models import load_fast
    from covis.reading.table import read_table

    images, recipe = read_table(table), choose_recipe("", str(weights))
    run = keep / f"{table.stem}-{weights.stem}"
    fit_model(images, recipe, run)
    store = DescriptorStore.open(run / "raw")
    rows = store.rows(images.names)
    images = images.subset(rows >= 0)
    raw = np.asarray(store[rows[rows >= 0]], np.float32)
    model = load_fast(run / "clusters", len(images), keep=run)  # as the fit describes them
    return Photos(table.stem, recipe.model.backbone, images, raw, recipe, model)


def finished(keep: Path, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of `make`, kept as JSON for the next run of the same sources, since tables are measured one by one."""
    import covis.maps as maps
    from covis import whitening
    from covis.core import artifacts
    from covis.search import rerank

    modules = sorted(Path(maps.__file__).parent.glob("*.py"))
    sources = [
        *modules,
        Path(whitening.__file__),
        Path(rerank.__file__),
        *sorted(Path(__file__).parent.glob("*own*.py")),
    ]
    key = artifacts.fingerprint(*(path.read_text(encoding="utf-8") for path in sources))
    file = keep / f"{name}-{key}.json"
    if not file.is_file():
        artifacts.write_json(file, make())
    return artifacts.read_json(file)


def folds(images: ImageSet, count: int, seed: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Positions of a map's photos and of its queries; walks stay whole, and every photo is a query once."""
    walk = np.asarray(images.group, np.int64)
    part = np.random.default_rng(seed).permutation(walk.max() + 1)[walk] % count
    for number in range(count):
        yield np.flatnonzero(part != number), np.flatnonzero(part == number)


def as_map(images: ImageSet, known: NDArray[np.int64]) -> ImageSet:
    """The photos of a map, in the order of their descriptors."""
    return replace(images.subset(known), columns={"row": np.arange(len(known))})
