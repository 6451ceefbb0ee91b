"""Maps of some walks of a table, asked by the others: what the benchmarks of own maps share.

A model is fitted as `covis index` fits it. Clusters are placed by photos of the whole table, without labels, and each
photo passes the network once; what poses teach, the choice between whitenings and the calibration are fitted anew to each
map's own walks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
WEIGHTS = tuple(
    SHARED / "weights" / name for name in ("dinov2_vits14_reg_fp16.safetensors", "mobilenetv2_100_imagenet.safetensors")
)
TABLES = tuple(SHARED / "campus" / f"{name}.csv" for name in ("train", "west"))
_PROBE = 32


@dataclass(frozen=True)
class Photos:
    """A table's photos, described once by a network whose clusters they placed."""

    name: str
    backbone: str
    images: object
    raw: np.ndarray
    recipe: object
    model: object

    def embedding_s(self) -> float:
        """CPU seconds to describe all of them, by a few."""
        from covis.describing.embedding import embed

        few = self.images.subset(np.arange(_PROBE))
        embed(self.model, few)
        start = time.process_time()
        embed(self.model, few)
        return (time.process_time() - start) * len(self.images) / _PROBE


def whiten(whitening, raw: np.ndarray) -> np.ndarray:
    """(N, dim) descriptors by a `Whitening`, in single precision: of long ones that saves much time."""
    white = (raw - whitening.mean.astype(np.float32)) @ whitening.projection.astype(np.float32)
    return white / np.maximum(np.linalg.norm(white, axis=1, keepdims=True), 1e-12)


def described(table: Path, weights: Path, keep: Path) -> Photos:
    """What `covis index TABLE --weights WEIGHTS` describes, kept in a folder for the next run."""
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


def finished(keep: Path, name: str, make: Callable[[], dict]) -> dict:
    """What `make` found, kept as JSON for the next run of the same sources: tables are measured one by one."""
    import covis.maps as maps
    from covis import artifacts, whitening
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


def folds(images, count: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Positions of the photos of a map and of those asked, whole walks together; every photo is asked once."""
    walk = np.asarray(images.group, np.int64)
    part = np.random.default_rng(seed).permutation(walk.max() + 1)[walk] % count
    for number in range(count):
        yield np.flatnonzero(part != number), np.flatnonzero(part == number)


def as_map(images, known: np.ndarray):
    """The photos of a map, in the order of their descriptors."""
    return replace(images.subset(known), columns={"row": np.arange(len(known))})
