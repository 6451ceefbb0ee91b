"""What gives descriptors of images, and the one opener of it for every verb.

A describer is a model folder, a run folder (its model), an ONNX file, a descriptor store, or another tool's matrix
(`FILE.npy` beside `FILE.txt`). Finding out which one lies at a path imports nothing heavy.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from covis import artifacts
from covis.arrays import Descriptors
from covis.descriptors import KIND as STORE_KIND
from covis.descriptors import Describer, DescriptorStore
from covis.errors import InputError, near_path
from covis.files import sha256
from covis.images import ImageSet
from covis.machine import cache_folder

if TYPE_CHECKING:
    from covis.evaluation import Benchmark, Evaluation
    from covis.models import Embedder, PlaceModel

ORIGIN = ("recipe", "seed", "data", "weights")
"""What a model's card says of where it came from, for comparisons."""
MODEL_KIND = "model"
RuntimeName = Literal["auto", "torch", "onnx"]
KINDS = "a model folder, a run folder, an ONNX file, a descriptor store, or FILE.npy with FILE.txt"
"""What can be given as MODEL, in words."""


@dataclass(frozen=True)
class GivenModel:
    """What lies at a path that someone gave as a model."""

    kind: Literal["model", "onnx", "store", "matrix"]
    path: Path
    """The file, or the folder that holds the model itself (RUN/model of a run)."""
    label: str
    """What people call it: the run's or the model's own name."""


def find_describer(path: Path | str) -> GivenModel:
    """What lies at `path`; an error in one line where it is nothing that gives descriptors."""
    path = Path(path)
    if path.suffix in (".npy", ".onnx"):
        if not path.is_file():
            raise InputError(f"{path} is not there{near_path(path)}; give {KINDS}")
        return GivenModel("matrix" if path.suffix == ".npy" else "onnx", path, path.stem)
    if not path.is_dir():
        what = "is not there" if not path.exists() else "is no model"
        raise InputError(f"{path} {what}{near_path(path)}; give {KINDS}")
    kind = _kind(path)
    if kind == STORE_KIND or (not kind and (path / "embedding.json").is_file()):
        return GivenModel("store", path, path.name)
    if kind == MODEL_KIND:
        return GivenModel("model", path, _called(path.resolve().parent if path.name == "model" else path.resolve()))
    if kind:
        raise InputError(f"{path} is a covis {kind}, which gives no descriptors of images; give {KINDS}")
    if _kind(path / "model") == MODEL_KIND:
        return GivenModel("model", path / "model", _called(path.resolve()))
    if (path / "run.json").is_file():
        raise InputError(f"{path} is a run without a finished model; re-run its covis train command to resume it")
    raise InputError(f"{path} holds no model (no {artifacts.MANIFEST}); give {KINDS}")


def _called(folder: Path) -> str:
    """The folder's name, with the row above it where the name says no more than the seed."""
    return f"{folder.parent.name}/{folder.name}" if re.fullmatch(r"seed[-_]?\d+", folder.name) else folder.name


def _kind(folder: Path) -> str:
    record = folder / artifacts.MANIFEST
    manifest = artifacts.read_json(record) if record.is_file() else None
    return str(manifest.get("kind", "")) if isinstance(manifest, dict) else ""


def open_describer(
    path: Path | str, batch_size: int | None = None, workers: int | None = None, cache: Path | None = None
) -> Describer:
    """What gives descriptors at `path`."""
    found = find_describer(path)
    if found.kind == "matrix":
        return MatrixDescriber(found.path)
    if found.kind == "store":
        return StoreDescriber(DescriptorStore.open(found.path))
    folder = found.path.resolve() if found.kind == "model" else None
    return ModelDescriber(open_model(found.path), found.label, batch_size, workers=workers, cache=cache, folder=folder)


def open_model(path: Path | str, runtime: RuntimeName = "torch", images: int | None = None) -> Embedder:
    """The network at `path`: of a model or run folder, or of an ONNX file.

    runtime "auto": the fastest for so many `images`; "onnx": ONNX Runtime; an ONNX file always runs there.
    """
    from covis.models import OnnxPlaceModel, PlaceModel, load_fast

    found = find_describer(path)
    if found.kind == "onnx":
        return OnnxPlaceModel.open(found.path)
    if found.kind != "model":
        raise InputError(f"{path} holds descriptors, not a model; give a model folder, a run folder or an ONNX file")
    if runtime == "torch":
        return PlaceModel.load(found.path)
    loaded = load_fast(found.path, images if runtime == "auto" else None)
    if runtime == "onnx" and not isinstance(loaded, OnnxPlaceModel):
        raise InputError(
            "ONNX Runtime is for convolutional networks on a CPU (pip install 'covis[onnx]'); run this one in torch"
        )
    return loaded


def open_place_model(path: Path | str) -> PlaceModel:
    """The model with its weights, where an ONNX file or descriptors will not do."""
    from covis.models import PlaceModel

    found = find_describer(path)
    if found.kind != "model":
        raise InputError(f"{path} has no weights of its own to work on; give a model folder or a run folder")
    return PlaceModel.load(found.path)


@dataclass(frozen=True, eq=False)
class ModelDescriber:
    """A model that embeds what is asked for, through the cache."""

    model: Embedder
    label: str = "model"
    batch_size: int | None = None
    workers: int | None = None
    cache: Path | None = None
    folder: Path | None = None
    """Where the model lies, so that a report can open it again."""

    @property
    def facts(self) -> dict[str, Any]:
        """Architecture, preprocessing, weights and where they came from, as far as the model knows them."""
        from covis.models import PlaceModel

        facts: dict[str, Any] = {
            "label": self.label,
            "fingerprint": self.model.fingerprint(),
            "preprocessing": asdict(self.model.preprocessing),
        }
        if isinstance(self.model, PlaceModel):
            whitening = self.model.whitening
            facts |= {
                "config": self.model.config.to_dict(),
                "model_whitening": None if whitening is None else {"dim": whitening.dim, **whitening.facts},
                **{key: self.model.card[key] for key in ORIGIN if key in self.model.card},
            }
        return facts | ({} if self.folder is None else {"folder": str(self.folder)})

    def describe(self, images: ImageSet) -> tuple[Descriptors, NDArray[np.bool_]]:
        """Embeds, or opens what was embedded before from the same files."""
        from covis.describing.embedding import BATCH_SIZE, embed

        folder = (self.cache or cache_folder()) / "descriptors"
        key = artifacts.fingerprint(self.model.fingerprint(), str(images.root.resolve()), *_files(images))
        size = self.batch_size or BATCH_SIZE
        store = embed(self._runtime(len(images)), images, folder / key, batch_size=size, workers=self.workers)
        return _rows(store, images)

    def _runtime(self, images: int) -> Embedder:
        """What runs the model fastest for so many images; the descriptors are the same to `PARITY_TOLERANCE`."""
        from covis.models import PlaceModel, load_fast

        if self.folder is None or not isinstance(self.model, PlaceModel):
            return self.model
        return load_fast(self.folder, images, model=self.model)


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
        from covis.evaluation.retrieval import read_descriptors

        return read_descriptors(self.path, images), np.zeros(len(images), bool)


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
    from covis.evaluation import load_benchmark
    from covis.evaluation.run import evaluations
    from covis.models import PlaceModel

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
