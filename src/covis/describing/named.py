"""Models by the names of `covis list models`: fetched once, kept in the cache as a model folder and as an ONNX file."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from covis.core.artifacts import MANIFEST, open_manifest
from covis.core.errors import InputError
from covis.core.files import sha256
from covis.core.machine import cache_folder
from covis.models.config import MODEL_KIND
from covis.models.published import is_published, published_folder


def named_model(given: Path | str, weights: Path | str | None = None) -> Path:
    """The model folder of a published model's name, which is fetched if it is not in the cache; any path as it is.

    weights: the model's checkpoint as a file, for machines without a network. Where torch is not installed, the ONNX
    file of the model if one is in the cache.
    """
    if not is_published(given):
        if weights:
            raise InputError(f"--weights is the checkpoint of a name of covis list models, which {given} is not")
        return Path(given)
    name, file = str(given), Path(weights) if weights else None
    folder = published_folder(name) if file is None else _folder_of_file(name, file)
    ready = (folder / MANIFEST).is_file()
    if ready and importlib.util.find_spec("torch") is None:
        onnx = cache_folder() / "onnx" / f"{open_manifest(folder, MODEL_KIND)['fingerprint']}.onnx"
        return onnx if onnx.is_file() else folder
    if not ready:
        _make(name, file, folder)
    return folder


def _folder_of_file(name: str, file: Path) -> Path:
    if not file.is_file():
        raise InputError(f"--weights {file} does not exist; give the checkpoint of {name}")
    return cache_folder() / "models" / sha256(file)[:12] / name.partition(":")[0]


def _make(name: str, file: Path | None, folder: Path) -> None:
    """Fetches the model, and writes its model folder and its ONNX file."""
    from covis.models import PlaceModel, load_fast

    model = PlaceModel.from_pretrained(name, file)
    if not (folder / MANIFEST).is_file():
        model.save(folder, replace=True)
    load_fast(folder, model=model)
