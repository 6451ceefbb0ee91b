"""What gives descriptors of images: a model through the cache, a store, another tool's matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis import artifacts
from covis.arrays import Descriptors
from covis.describing.embedding import BATCH_SIZE, embed
from covis.descriptors import KIND as STORE_KIND
from covis.descriptors import Describer, DescriptorStore
from covis.errors import InputError
from covis.evaluation import Benchmark, Evaluation, load_benchmark
from covis.evaluation.retrieval import read_descriptors
from covis.evaluation.run import evaluations
from covis.files import sha256
from covis.images import ImageSet
from covis.machine import cache_folder
from covis.models import PlaceModel

ORIGIN = ("recipe", "seed", "data", "weights")
"""What a model's card says of where it came from, for comparisons."""


@dataclass(frozen=True, eq=False)
class ModelDescriber:
    """A model that embeds what is asked for, through the cache."""

    model: PlaceModel
    label: str = "model"
    batch_size: int = BATCH_SIZE
    workers: int | None = None
    cache: Path | None = None
    folder: Path | None = None
    """Where the model lies, so that a report can open it again."""

    @property
    def facts(self) -> dict[str, Any]:
        """Architecture, preprocessing, weights and where they came from."""
        whitening = self.model.whitening
        return {
            "label": self.label,
            "fingerprint": self.model.fingerprint(),
            "config": self.model.config.to_dict(),
            "preprocessing": asdict(self.model.preprocessing),
            "model_whitening": None if whitening is None else {"dim": whitening.dim, **whitening.facts},
            **{key: self.model.card[key] for key in ORIGIN if key in self.model.card},
            **({} if self.folder is None else {"folder": str(self.folder)}),
        }

    def describe(self, images: ImageSet) -> tuple[Descriptors, NDArray[np.bool_]]:
        """Embeds, or opens what was embedded before from the same files."""
        folder = (self.cache or cache_folder()) / "descriptors"
        key = artifacts.fingerprint(self.model.fingerprint(), str(images.root.resolve()), *_files(images))
        store = embed(self.model, images, folder / key, batch_size=self.batch_size, workers=self.workers)
        return _rows(store, images)


@dataclass(frozen=True, eq=False)
class StoreDescriber:
    """Descriptors that `covis embed` wrote."""

    store: DescriptorStore

    @property
    def facts(self) -> dict[str, Any]:
        """The store and the model that made it."""
        return {"label": self.store.path.name, "fingerprint": self.store.model, "store": self.store.fingerprint()}

    def describe(self, images: ImageSet) -> tuple[Descriptors, NDArray[np.bool_]]:
        """Looks the images up by name."""
        found, lost = _rows(self.store, images)
        if lost.mean() > 0.01:
            at = int(np.flatnonzero(lost)[0])
            raise InputError(
                f"{self.store.path} lacks {int(lost.sum())} of {len(images)} images, such as {images.name(at)!r}; embed them"
            )
        return found, lost


@dataclass(frozen=True, eq=False)
class MatrixDescriber:
    """Another tool's matrix: FILE.npy, with the names of its rows in FILE.txt."""

    path: Path

    @property
    def facts(self) -> dict[str, Any]:
        """The file and its content's fingerprint."""
        digests = [sha256(p) for p in (self.path, self.path.with_suffix(".txt")) if p.is_file()]
        return {"label": self.path.stem, "fingerprint": artifacts.fingerprint(*digests), "descriptors": self.path.name}

    def describe(self, images: ImageSet) -> tuple[Descriptors, NDArray[np.bool_]]:
        """Rows by name, scaled to unit length."""
        return read_descriptors(self.path, images), np.zeros(len(images), bool)


def open_describer(
    path: Path | str, batch_size: int = BATCH_SIZE, workers: int | None = None, cache: Path | None = None
) -> Describer:
    """What lies at `path`: a model folder, a run (its model), a descriptor store, or a .npy matrix."""
    path = Path(path)
    if path.suffix == ".npy":
        return MatrixDescriber(path)
    if not path.is_dir():
        raise InputError(f"{path} is not there; give a model folder, a descriptor store or a .npy file")
    record = path / artifacts.MANIFEST
    if record.is_file() and artifacts.read_json(record).get("kind") == STORE_KIND:
        return StoreDescriber(DescriptorStore.open(path))
    folder = path / "model" if not record.is_file() and (path / "model" / artifacts.MANIFEST).is_file() else path
    label = folder.resolve().parent.name if folder.name == "model" else folder.name
    return ModelDescriber(PlaceModel.load(folder), label, batch_size, workers, cache, folder.resolve())


def evaluate_model(
    model: PlaceModel | Describer | Path | str,
    benchmark: Benchmark | str,
    label: str = "model",
    *,
    data: Path | str | None = None,
) -> Evaluation:
    """The evaluation of a model as it is.

    model: the model, or what `open_describer` opens. benchmark: a protocol, or the name of one over the files at `data`.
    """
    if isinstance(model, Path | str):
        model = open_describer(model)
    source = ModelDescriber(model, label) if isinstance(model, PlaceModel) else model
    return next(evaluations(source, load_benchmark(benchmark, data) if isinstance(benchmark, str) else benchmark))


def _rows(store: DescriptorStore, images: ImageSet) -> tuple[Descriptors, NDArray[np.bool_]]:
    rows = store.rows(images.names)
    lost = rows < 0
    return np.asarray(store[rows[~lost]], np.float32), lost


def _files(images: ImageSet) -> Sequence[Any]:
    """Names, sizes and times of the image files, so that changed photos are embedded again."""
    stats = []
    for i in range(len(images)):
        try:
            found = images.path(i).stat()
            stats.append((found.st_size, found.st_mtime_ns))
        except OSError:
            stats.append((-1, -1))
    width = max(1, int(np.char.str_len(images.names).max(initial=1)))
    return images.names.astype(f"S{width}"), np.array(stats, np.int64).reshape(-1, 2)
