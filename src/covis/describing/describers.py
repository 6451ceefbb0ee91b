"""Sources of image descriptors, and the one function by which every verb opens them.

A describer is a model folder, a run folder (its model), an ONNX file, a descriptor store, another tool's matrix
(`FILE.npy` beside `FILE.txt`), or the name of a published model. Finding out which one lies at a path imports nothing
heavy; a name is fetched where it is not in the cache.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from covis.core import artifacts
from covis.core.arrays import Descriptors, Ids
from covis.core.errors import InputError, near_path
from covis.core.files import sha256
from covis.core.machine import cache_folder
from covis.describing.named import named_model
from covis.descriptors import STORE_KIND, Describer, DescriptorStore
from covis.images import ImageSet
from covis.models.config import MODEL_KIND
from covis.models.onnx_model import OnnxPlaceModel
from covis.reading.decoding import Rejected
from covis.runtime import ONNX_FILE, WEIGHTS_FILE, Described

if TYPE_CHECKING:
    from covis.evaluation import Benchmark, Evaluation
    from covis.models import Embedder, PlaceModel

_KINDS = "a model folder, a run folder, an ONNX file, a descriptor store, FILE.npy with FILE.txt, or a name (covis list models)"
"""What can be given as MODEL, in words."""


@dataclass(frozen=True)
class GivenModel:
    """A resolved model path: kind, label, folder."""

    kind: Literal["model", "onnx", "store", "matrix"]
    path: Path
    """The file, or the folder that holds the model itself (RUN/model of a run)."""
    label: str
    """The run's or the model's own name."""


def find_describer(path: Path | str) -> GivenModel:
    """Resolves a path, or a name of `covis list models`; an error of one line if it cannot give descriptors."""
    path = named_model(path)
    if path.suffix in (".npy", ".onnx"):
        if not path.is_file():
            raise InputError(f"{path} does not exist{near_path(path)}; give {_KINDS}")
        return GivenModel("matrix" if path.suffix == ".npy" else "onnx", path, path.stem)
    if not path.is_dir():
        what = "does not exist" if not path.exists() else "is not a model"
        raise InputError(f"{path} {what}{near_path(path)}; give {_KINDS}")
    kind = str(_manifest(path).get("kind", ""))
    if kind == STORE_KIND or (not kind and (path / "embedding.json").is_file()):
        return GivenModel("store", path, path.name)
    if kind == MODEL_KIND:
        return _resolve_folder(path, _label(path.resolve().parent if path.name == "model" else path.resolve()))
    if kind:
        raise InputError(f"{path} is a covis {kind}, which gives no descriptors of images; give {_KINDS}")
    if _manifest(path / "model").get("kind") == MODEL_KIND:
        return _resolve_folder(path / "model", _label(path.resolve()))
    if (path / "run.json").is_file():
        raise InputError(f"{path} is a run without a finished model; re-run its covis train command to resume it")
    raise InputError(f"{path} holds no model (no {artifacts.MANIFEST}); give {_KINDS}")


def _resolve_folder(folder: Path, label: str) -> GivenModel:
    """A model folder, by the form in which it holds its network."""
    parts = _manifest(folder).get("files", {})
    if ONNX_FILE in parts:
        return GivenModel("onnx", folder / ONNX_FILE, label)
    if WEIGHTS_FILE not in parts:
        raise InputError(
            f"{folder} holds no network: its descriptors were computed elsewhere; give those of the photos by "
            "--descriptors STORE or FILE.npy"
        )
    return GivenModel("model", folder, label)


def _label(folder: Path) -> str:
    """The folder's name, with that of the folder above it if the name is only a seed."""
    return f"{folder.parent.name}/{folder.name}" if re.fullmatch(r"seed[-_]?\d+", folder.name) else folder.name


def _manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a folder; empty where it has none."""
    record = folder / artifacts.MANIFEST
    manifest = artifacts.read_json(record) if record.is_file() else None
    return manifest if isinstance(manifest, dict) else {}


def open_describer(path: Path | str, workers: int | None = None, cache: Path | None = None) -> Describer:
    """The describer at `path`: a model or run folder, an ONNX file, a store, a matrix with names, or a model's name.

    >>> import covis
    >>> path = covis.PlaceModel.build(covis.models.ModelConfig("tiny", image_size=(32, 32))).save("small")
    >>> covis.open_describer("small").label
    'small'
    """
    given = find_describer(path)
    if given.kind in ("store", "matrix"):
        return open_descriptors(given.path)
    place = given.path.resolve()
    return ModelDescriber(open_model(given.path), given.label, workers=workers, cache=cache, folder=place)


def open_descriptors(path: Path | str) -> StoreDescriber | MatrixDescriber:
    """Descriptors that exist already: a store, or a matrix with names."""
    given = find_describer(path)
    if given.kind == "store":
        return StoreDescriber(DescriptorStore.open(given.path))
    if given.kind == "matrix":
        return MatrixDescriber(given.path)
    raise InputError(f"{path} is a network, not descriptors; give a store (covis embed) or FILE.npy with FILE.txt")


def open_model(path: Path | str, images: int | None = None) -> Embedder:
    """The network at `path`: of a model or run folder, or of an ONNX file, which always runs in ONNX Runtime.

    images: how many it will describe; a model folder then runs in what is fastest for so many.
    """
    given = find_describer(path)
    if given.kind == "onnx":
        return OnnxPlaceModel.open(given.path)
    if given.kind != "model":
        raise InputError(f"{path} holds descriptors, not a model; give a model folder, a run folder or an ONNX file")
    from covis.models import PlaceModel, load_fast

    return PlaceModel.load(given.path) if images is None else load_fast(given.path, images)


def open_place_model(path: Path | str) -> PlaceModel:
    """The model with its weights, where an ONNX file or descriptors will not do."""
    from covis.models import PlaceModel

    given = find_describer(path)
    if given.kind != "model":
        raise InputError(f"{path} has no weights of its own to work on; give a model folder or a run folder")
    return PlaceModel.load(given.path)


@dataclass(frozen=True, eq=False)
class ModelDescriber:
    """A model that embeds images on request, through the cache."""

    model: Embedder
    label: str = "model"
    workers: int | None = None
    cache: Path | None = None
    folder: Path | None = None
    """Where the model lies, a folder or an ONNX file, so that a leaderboard can open it again."""

    @property
    def facts(self) -> dict[str, Any]:
        """Architecture, preprocessing, weights and where they came from, as far as the model knows them."""
        return {
            "label": self.label,
            "fingerprint": self.model.fingerprint(),
            "preprocessing": asdict(self.model.preprocessing),
            **self.model.origin(),
            **({} if self.folder is None else {"folder": str(self.folder)}),
        }

    def describe(self, images: ImageSet) -> tuple[Descriptors, NDArray[np.bool_]]:
        """Embeds, or opens what was embedded before from the same files."""
        from covis.describing.embedding import embed

        folder = (self.cache or cache_folder()) / "descriptors"
        key = artifacts.fingerprint(self.model.fingerprint(), str(images.root.resolve()), *_file_states(images))
        store = embed(self._runtime(len(images)), images, folder / key, workers=self.workers)
        return _rows_by_name(store, images)

    def _runtime(self, images: int) -> Embedder:
        """What runs the model fastest for this number of images; the descriptors are the same to `PARITY_TOLERANCE`."""
        if self.folder is None or isinstance(self.model, OnnxPlaceModel):
            return self.model
        from covis.models import load_fast

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
        vectors, lost = _rows_by_name(self.store, images)
        if lost.mean() > 0.01:
            at = int(np.flatnonzero(lost)[0])
            raise InputError(
                f"{self.store.path} lacks {int(lost.sum())} of {len(images)} images, such as {images.name(at)!r}; embed them"
            )
        return vectors, lost

    @property
    def names(self) -> NDArray[np.bytes_]:
        """(N,) of the images that have descriptors."""
        return self.store.names

    def rows(self, ids: Ids) -> Descriptors:
        """Descriptors at these places of `names`."""
        return np.asarray(self.store[ids], np.float32)

    def require(self, model: str, dim: int, of: Path | str) -> None:
        """Refuses descriptors of a model other than `model`, the one that `of` uses."""
        if self.store.model != model:
            raise InputError(
                f"{of} holds descriptors of model {model}, {self.store.path} of model {self.store.model}; embed with one model"
            )


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
        from covis.evaluation.matrices import read_descriptors

        return read_descriptors(self.path, images), np.zeros(len(images), bool)

    @cached_property
    def _content(self) -> tuple[Descriptors, NDArray[np.bytes_]]:
        from covis.evaluation.matrices import open_matrix

        return open_matrix(self.path)

    @property
    def names(self) -> NDArray[np.bytes_]:
        """(N,) of the images that have descriptors."""
        return self._content[1]

    def rows(self, ids: Ids) -> Descriptors:
        """Descriptors at these places of `names`, scaled to unit length."""
        from covis.evaluation.matrices import unit_rows

        return unit_rows(self.path, self._content[0][ids], lambda i: os.fsdecode(self.names[ids[i]]))

    def require(self, model: str, dim: int, of: Path | str) -> None:
        """Refuses descriptors of another length; a matrix does not say which model made it."""
        length = self._content[0].shape[1]
        if length != dim:
            raise InputError(f"{of} holds descriptors of {dim} dimensions, {self.path} of {length}; use one model")


Computed = StoreDescriber | MatrixDescriber
"""Descriptors that exist already."""


def known_descriptors(path: Path | str, images: ImageSet) -> tuple[ImageSet, DescriptorStore, list[Rejected]]:
    """The images that have descriptors at `path`, those descriptors in the same order, and the few images without."""
    computed = open_descriptors(path)
    vectors, lost = computed.describe(images)
    kept, label = images.subset(~lost), str(computed.facts["label"])
    store = DescriptorStore.in_memory(kept.names, vectors, str(computed.facts["fingerprint"]), label)
    rejects = [Rejected(images.name(int(i)), "no-descriptor", f"{label} has none") for i in np.flatnonzero(lost)]
    return kept, store, rejects


def look_up(descriptors: Computed, photos: Sequence[Path]) -> Described:
    """Descriptors of photos by the longest name that ends their path."""
    at = {bytes(name): i for i, name in enumerate(descriptors.names)}
    rows = [next((at[name] for name in _endings(photo) if name in at), -1) for photo in photos]
    missing = f"{descriptors.facts['label']} has no descriptor of it"
    return Described(
        descriptors.rows(np.array([row for row in rows if row >= 0], np.int64)),
        {i: missing for i, row in enumerate(rows) if row < 0},
    )


def _endings(photo: Path) -> Iterator[bytes]:
    """A photo's whole path and what follows each of its folders, the longest first."""
    path = os.fsencode(photo.absolute())
    yield path
    for i, byte in enumerate(path):
        if byte == ord("/"):
            yield path[i + 1 :]


def evaluate_model(
    model: PlaceModel | Describer | Path | str,
    benchmark: Benchmark | str,
    label: str = "model",
    *,
    data: Path | str | None = None,
) -> Evaluation:
    """The evaluation of a model as it is.

    model: the model, or what `open_describer` opens. benchmark: a protocol, or the name of one over the files at `data`.

    >>> import covis
    >>> model = covis.PlaceModel.build(covis.models.ModelConfig("tiny", image_size=(32, 32)))
    >>> found = covis.evaluate(model, "town")
    >>> sorted(found.recall)
    [1, 5, 10, 20]
    """
    from covis.evaluation import load_benchmark
    from covis.evaluation.run import evaluations

    if isinstance(model, Path | str):
        model = open_describer(model)
    network = hasattr(model, "preprocessing")  # models know their input; asking for the class would import torch
    source = ModelDescriber(cast("Embedder", model), label) if network else cast(Describer, model)
    return next(evaluations(source, load_benchmark(benchmark, data) if isinstance(benchmark, str) else benchmark))


def _rows_by_name(store: DescriptorStore, images: ImageSet) -> tuple[Descriptors, NDArray[np.bool_]]:
    rows = store.rows(images.names)
    lost = rows < 0
    return np.asarray(store[rows[~lost]], np.float32), lost


def _file_states(images: ImageSet) -> Sequence[Any]:
    """Names, sizes and times of the image files, so that changed photos are embedded again."""
    stats = []
    for i in range(len(images)):
        try:
            stat = images.path(i).stat()
            stats.append((stat.st_size, stat.st_mtime_ns))
        except OSError:
            stats.append((-1, -1))
    width = max(1, int(np.char.str_len(images.names).max(initial=1)))
    return images.names.astype(f"S{width}"), np.array(stats, np.int64).reshape(-1, 2)
