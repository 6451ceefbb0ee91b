"""Export of a model as one ONNX file, and the fastest runtime of a model folder.

The file takes (batch, 3, H, W) uint8 RGB pixels of the model's size and gives unit descriptors: normalisation is
inside, so that whoever runs it cannot get that wrong. What else a reader needs travels in its metadata.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from covis.core.artifacts import open_manifest
from covis.core.errors import Damaged, InputError
from covis.core.files import replacing
from covis.core.foreign import first_line
from covis.core.machine import cache_folder, device
from covis.core.progress import say
from covis.models.config import MODEL_KIND
from covis.models.onnx_model import OnnxPlaceModel
from covis.models.place_model import PlaceModel
from covis.runtime import INPUT, MAX_BYTES, METADATA, OUTPUT, OnnxSession, checked_content, signed

PARITY_TOLERANCE = 1e-4
"""Largest difference of a descriptor's entries from torch's that an export may show."""
_BESIDE_BYTES = 1 << 10
"""Smaller weights stay in the ONNX file itself."""
_WORTH_SHARING = 1 << 20
"""Fewer bytes are not worth a second file to look after."""
_WORTH_EXPORTING = 1000
"""Images from which on an export pays: it takes 15 to 30 CPU seconds."""


class _FromPixels(nn.Module):
    def __init__(self, model: PlaceModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> Tensor:
        descriptors: Tensor = self.model(self.model.normalise(pixels))
        return descriptors


def export_onnx(model: PlaceModel, path: Path | str, weights: str = "") -> float:
    """Writes `model` as one ONNX file; returns the largest difference from torch, seen on three random images.

    It is traced with two images, so that a graph fixed to that number fails the comparison.
    weights: the name of a file beside it for the weights, so that they can be mapped into memory; a manifest must then
    vouch for both files.
    """
    path = Path(path)
    training = model.training
    pixels = torch.randint(0, 256, (3, 3, *model.preprocessing.image_size), dtype=torch.uint8)
    try:
        with replacing(path) as partial:
            program = _program(_FromPixels(model.eval()), pixels[:2])
            program.model.metadata_props[METADATA] = json.dumps(_metadata(model))
            _save(program, partial, weights)
            partial.write_bytes(signed(partial.read_bytes()))
            with torch.inference_mode():
                expected = model(model.normalise(pixels))
            exported = OnnxSession.open(partial, torch.get_num_threads(), verified=bool(weights))
            (batch,) = exported.session.run([OUTPUT], {INPUT: pixels.numpy()})
            difference = float((torch.from_numpy(batch) - expected).abs().max())
            if not difference <= PARITY_TOLERANCE:
                raise RuntimeError(f"the exported {model.config.backbone} differs from torch by {difference:.2g}")
    finally:
        model.train(training)
    return difference


def share_weights(path: Path, folder: Path) -> bool:
    """Makes an exported file use the weights in the .safetensors files of `folder`, where those are most of its own.

    The few others move into the file, so that the weights beside it are not needed. It is opened with `weights=folder`.
    """
    import onnx_ir as ir  # type: ignore[import-not-found,import-untyped,unused-ignore]

    stored = {digest: place for file in sorted(folder.glob("*.safetensors")) for digest, place in _tensors(file)}
    program: Any = ir.load(path)
    values = {name: v for name, v in program.graph.initializers.items() if v.const_value is not None}
    found = {name: same for name, v in values.items() if (same := _same(v.const_value.numpy(), stored))}
    shared = sum(values[name].const_value.nbytes for name in found)
    if shared < _WORTH_SHARING or 2 * shared < sum(v.const_value.nbytes for v in values.values()):
        return False
    for name, value in values.items():
        tensor = value.const_value
        if name not in found:
            value.const_value = ir.Tensor(tensor.numpy().copy(), dtype=tensor.dtype, name=name)
            continue
        (file, offset, length), turned = found[name]
        value.shape = ir.Shape(reversed(tensor.shape) if turned else tensor.shape)
        value.const_value = ir.ExternalTensor(
            file, offset, length, tensor.dtype, shape=value.shape, name=name, base_dir=folder
        )
        if turned:  # ONNX Runtime does it once, when it opens the file
            users = list(value.uses())
            program.graph.insert_before(program.graph[0], back := ir.node("Transpose", [value], {"perm": [1, 0]}))
            for user, index in users:
                user.replace_input_with(index, back.outputs[0])
    facts = json.loads(program.metadata_props[METADATA])
    program.metadata_props[METADATA] = json.dumps({**facts, "sha256": "0" * 64})
    ir.save(program, path)
    path.write_bytes(signed(path.read_bytes()))
    return True


_Place = tuple[str, int, int]
"""A file's name, where a tensor begins in it, and its length in bytes."""


def _same(array: NDArray[Any], stored: dict[bytes, _Place]) -> tuple[_Place, bool] | None:
    """Where a large array is stored, and whether as its transpose: an exported layer is that of torch's."""
    if array.nbytes <= _BESIDE_BYTES:
        return None
    for turned in (False, True) if array.ndim == 2 else (False,):
        place = stored.get(hashlib.sha256(np.ascontiguousarray(array.T if turned else array).data).digest())
        if place is not None:
            return place, turned
    return None


def _tensors(file: Path) -> Iterator[tuple[bytes, _Place]]:
    """Of each tensor in a .safetensors file: its digest, and where it is stored."""
    content = memoryview(file.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    for name, entry in json.loads(bytes(content[8:start])).items():
        if name != "__metadata__":
            first, last = (start + offset for offset in entry["data_offsets"])
            yield hashlib.sha256(content[first:last]).digest(), (file.name, first, last - first)


def copy_onnx(model: OnnxPlaceModel, path: Path | str) -> None:
    """Copies the ONNX file of a model to `path`, after checking it against the checksum that it carries."""
    content = checked_content(model.path)
    with replacing(Path(path)) as partial:
        partial.write_bytes(content)


def _program(module: nn.Module, pixels: Tensor) -> Any:
    try:
        import onnxscript  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: F401
    except ImportError:
        raise InputError("export to ONNX needs onnx and onnxscript: pip install 'covis[onnx]'") from None
    with _quiet():
        return torch.onnx.export(
            module,
            (pixels,),
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes={"pixels": {0: torch.export.Dim("batch", min=1, max=1 << 20)}},
            dynamo=True,
            verbose=False,
        )


def _save(program: Any, path: Path, weights: str) -> None:
    """Writes the exported graph; if `weights` is given, large weights go into that file beside it."""
    if not weights:
        program.save(str(path), external_data=False)
        return
    import onnx_ir  # type: ignore[import-not-found,import-untyped,unused-ignore]

    onnx_ir.save(program.model, path, external_data=weights, size_threshold_bytes=_BESIDE_BYTES)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Discards the exporter's messages: stdout is for results only, and its warnings concern its own internals."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _metadata(model: PlaceModel) -> dict[str, Any]:
    """What a reader of the ONNX file needs; the checksum is filled in later."""
    return {
        "sha256": "0" * 64,  # first: a reader takes the first one that it finds, and weights may name their own
        "fingerprint": model.fingerprint(),
        "dim": model.dim,
        "backbone": model.config.backbone,
        "pool": model.config.pool,
        "preprocessing": asdict(model.preprocessing),
        "origin": model.origin(),
        "training": model.card.get("training"),
    }


Embedder = PlaceModel | OnnxPlaceModel
"""Any model that turns a batch into descriptors: `model(model.normalise(uint8 batch))`."""


def load_fast(
    path: Path | str,
    images: int | None = None,
    threads: int | None = None,
    *,
    model: PlaceModel | None = None,
    keep: Path | None = None,
) -> Embedder:
    """The model directory at `path` in the fastest runtime: ONNX Runtime on a CPU (benchmarks/bench_inference.py), else torch.

    The ONNX file is made once and kept in the folder `keep`, by default in the cache; it is not made for so few
    `images` that the export would take longer than it saves. A network that cannot be exported, or whose export differs
    from torch by more than `PARITY_TOLERANCE`, stays in torch. `model`: the model at `path`, if it is already loaded.
    """
    if device() != "cpu" or not all(map(importlib.util.find_spec, ("onnxruntime", "onnxscript", "onnx"))):
        return model or PlaceModel.load(path)
    manifest = open_manifest(path, MODEL_KIND)
    file = (keep or cache_folder() / "onnx") / f"{manifest['fingerprint']}.onnx"
    if file.is_file():
        try:
            kept = OnnxPlaceModel.open(file, threads)
            if kept.fingerprint() == manifest["fingerprint"]:
                return kept
            say(f"{file} is not of {path}; made again")
        except Damaged as error:
            say(f"{error}; made again")
    model = model or PlaceModel.load(path)
    if (images is not None and images < _WORTH_EXPORTING) or _byte_count(model) > MAX_BYTES:
        return model
    say(f"preparing {path} for ONNX Runtime, once")
    try:
        export_onnx(model, file)
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:  # bases of the exporter's own errors
        say(f"{model.config.backbone} runs in torch instead: {first_line(error)}")
        return model
    return OnnxPlaceModel.open(file, threads)


def _byte_count(model: PlaceModel) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
