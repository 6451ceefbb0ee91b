"""A model as one ONNX file, and place recognition through ONNX Runtime, the fastest on a CPU.

The file takes (batch, 3, H, W) uint8 RGB pixels of the model's size and gives unit descriptors: normalisation is
inside, so that whoever runs it cannot get that wrong. What else a reader needs travels in its metadata.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import logging
import tempfile
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from covis.core.artifacts import fingerprint, open_manifest
from covis.core.errors import Damaged, InputError
from covis.core.files import first_line, replacing
from covis.core.machine import cache_folder, device
from covis.core.progress import say
from covis.models.config import MODEL_KIND, ORIGIN, Preprocessing, write_without_weights
from covis.models.place_model import PlaceModel
from covis.runtime import INPUT, INSTALL, METADATA, OUTPUT, OnnxSession, checked_content, signed

PARITY_TOLERANCE = 1e-4
"""Largest difference of a descriptor's entries from torch's that an export may show."""
LEAST_PHOTOS = 16
"""Half of them give the ranges of an 8-bit export, half judge it."""
_FLOAT_CONVOLUTIONS = 3
"""Convolutions next to the pixels that an 8-bit export leaves in single precision: few weights, and the most is lost there."""
_BESIDE_BYTES = 1 << 10
"""Smaller weights stay in the ONNX file itself."""
_OWN_OPSET = 23
"""The first in which attention is one operator."""
_WORTH_EXPORTING = {10_000_000: 800, 0: 2000}
"""Weights → images from which on an export pays; it takes 15 to 30 CPU seconds (ViT-S and ResNets; MobileNets)."""


class _FromPixels(nn.Module):
    def __init__(self, model: PlaceModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> Tensor:
        descriptors: Tensor = self.model(self.model.normalise(pixels))
        return descriptors


def export_onnx(model: PlaceModel, path: Path | str, weights: str = "", *, portable: bool = True) -> float:
    """Writes `model` as one ONNX file; returns the largest difference from torch, seen on three random images.

    It is traced with two images, so that a graph fixed to that number fails the comparison.
    portable: use operators that most runtimes know; else newer ones, faster in the ONNX Runtime that covis requires.
    weights: the name of a file beside it for the weights, so that they can be mapped into memory; a manifest must then
    vouch for both files.
    """
    path = Path(path)
    training = model.training
    pixels = torch.randint(0, 256, (3, 3, *model.preprocessing.image_size), dtype=torch.uint8)
    try:
        with replacing(path) as partial:
            program = _program(_FromPixels(model.eval()), pixels[:2], None if portable else _OWN_OPSET)
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


@dataclass(frozen=True)
class EightBitLoss:
    """What 8 bits cost a model, measured on photos that the ranges were not taken from."""

    photos: int
    mean_cosine: float
    """Between the descriptors that the 8-bit model and the floating-point model give a photo."""
    least_cosine: float
    same_nearest: float
    """Percent of the photos whose nearest other photo stays the same."""
    bytes: int
    bytes_before: int


def copy_onnx(model: OnnxPlaceModel, path: Path | str) -> None:
    """Copies the ONNX file of a model to `path`, after checking it against the checksum that it carries."""
    content = checked_content(model.path)
    with replacing(Path(path)) as partial:
        partial.write_bytes(content)


def export_int8(model: Embedder, path: Path | str, photos: Tensor) -> EightBitLoss:
    """Writes `model` as an ONNX file whose convolutions and matrices are 8-bit, and measures what that costs.

    photos (N, 3, H, W) uint8 of the model's size: even ones give the ranges of values, odd ones measure the
    loss. The descriptors have a fingerprint of their own: they are close to the model's, but not interchangeable.
    """
    try:
        from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    except ImportError:
        raise InputError(f"8-bit export needs the packages onnx and onnxruntime; {INSTALL}") from None
    import onnx

    facts = _metadata(model)
    if "precision" in facts:
        raise InputError(f"{facts['backbone']} is in 8 bits already; give the model that it was exported from")
    if len(photos) < LEAST_PHOTOS:
        raise InputError(f"{len(photos)} photos are too few to export in 8 bits; give {LEAST_PHOTOS} or more")

    class Ranges(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left = iter(photos[::2])

        def get_next(self) -> dict[str, Any] | None:
            photo = next(self._left, None)
            return None if photo is None else {INPUT: photo[None].numpy()}

    path = Path(path)
    with tempfile.TemporaryDirectory(prefix="covis-int8-") as folder, replacing(path) as partial:
        whole, small = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        if isinstance(model, OnnxPlaceModel):
            copy_onnx(model, whole)
        else:
            export_onnx(model, whole)
        first = [node.name for node in onnx.load(whole).graph.node if node.op_type == "Conv"][:_FLOAT_CONVOLUTIONS]
        with _quiet():
            quantize_static(
                whole, small, Ranges(), quant_format=QuantFormat.QDQ, per_channel=True,
                weight_type=QuantType.QInt8, op_types_to_quantize=["Conv", "MatMul", "Gemm"], nodes_to_exclude=first,
                reduce_range=True,  # weights of 7 bits: sums of two products fit the 16 bits of processors without VNNI
                extra_options={"CalibMovingAverage": True},
            )  # fmt: skip
        proto = onnx.load(small)
        facts |= {"precision": "int8", "fingerprint": fingerprint("int8", model.fingerprint())}
        del proto.metadata_props[:]
        proto.metadata_props.add(key=METADATA, value=json.dumps(facts))
        partial.write_bytes(signed(proto.SerializeToString()))
        before, after = (
            torch.cat([session(part) for part in torch.split(photos[1::2], 8)]).numpy()
            for session in (OnnxPlaceModel.open(whole), OnnxPlaceModel.open(partial))
        )
        sizes = partial.stat().st_size, whole.stat().st_size
    cosine = (before * after).sum(axis=1)
    nearest = [(v @ v.T - 2 * np.eye(len(v))).argmax(axis=1) for v in (before, after)]
    same = 100 * float((nearest[0] == nearest[1]).mean())
    return EightBitLoss(len(before), float(cosine.mean()), float(cosine.min()), same, *sizes)


def _program(module: nn.Module, pixels: Tensor, opset: int | None) -> Any:
    try:
        import onnxscript  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: F401
    except ImportError:
        raise InputError(f"export to ONNX needs the packages onnx and onnxscript; {INSTALL}") from None
    with _quiet():
        return torch.onnx.export(
            module,
            (pixels,),
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes={"pixels": {0: torch.export.Dim("batch", min=1, max=1 << 20)}},
            opset_version=opset,
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


def _metadata(model: Embedder) -> dict[str, Any]:
    """What a reader of the ONNX file needs; the checksum is filled in later."""
    if isinstance(model, OnnxPlaceModel):
        return {**model.facts, "sha256": "0" * 64}
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


class OnnxPlaceModel:
    """An exported model in ONNX Runtime, called like a `PlaceModel`: `model(model.normalise(uint8 batch))`."""

    def __init__(self, session: OnnxSession, path: Path, threads: int = 1) -> None:
        """`session` uses one core; this many `threads` describe photos in parallel."""
        self._session, self.path = session, path
        self._map = ThreadPoolExecutor(threads).map if threads > 1 else map
        self.dim, self.facts = session.dim, session.facts
        self.signed = "sha256" in session.facts
        self.preprocessing = Preprocessing(**session.facts["preprocessing"])

    @classmethod
    def open(cls, path: Path | str, threads: int | None = None) -> OnnxPlaceModel:
        """Opens a file that `export_onnx` wrote; by default with as many `threads` as torch uses."""
        return cls(OnnxSession.open(path, 1), Path(path), threads or torch.get_num_threads())

    def preprocess(self, image: Any) -> Tensor:
        """A photo (path, Pillow image or (H, W, 3) uint8 RGB array) → (3, H, W), ready for the model."""
        return self.preprocessing.pixels(image)

    def normalise(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) uint8 as it is: normalisation is part of the exported file."""
        return images

    def __call__(self, pixels: Tensor) -> Tensor:
        """(B, 3, H, W) uint8 → (B, dim), unit norm."""
        parts = self._map(self._session.describe, pixels.numpy()[:, None])
        return torch.from_numpy(np.concatenate([np.zeros((0, self.dim), np.float32), *parts]))

    def to(self, device: torch.device | str) -> OnnxPlaceModel:
        """Stays on the CPU; any other device is an error."""
        if torch.device(device).type != "cpu":
            raise InputError(f"an ONNX model runs on the CPU here, not on {device}; load the model directory instead")
        return self

    def eval(self) -> OnnxPlaceModel:
        """For symmetry: an exported model never trains."""
        return self

    def fingerprint(self) -> str:
        """That of the model it was exported from: their descriptors are interchangeable."""
        return self._session.fingerprint

    def origin(self) -> dict[str, Any]:
        """Architecture, whitening, and where the weights came from, as far as the file says."""
        return dict(self.facts.get("origin", {}))

    def save(self, path: Path | str, *, replace: bool = False) -> None:
        """Writes a model folder that holds the ONNX file instead of weights."""
        origin = self.origin()
        known = {key: origin[key] for key in ORIGIN if key in origin}
        card = {"backbone": self.facts["backbone"], "pool": self.facts["pool"], **known}
        card |= {"whitening": origin.get("model_whitening"), "training": self.facts.get("training")}
        write_without_weights(
            Path(path), self.fingerprint(), self.dim, card,
            preprocessing=self.preprocessing, network=self.path, replace=replace,
        )  # fmt: skip


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
            if kept.fingerprint() == manifest["fingerprint"] and kept.signed:
                return kept
            say(f"{file} is not of {path}, or of an earlier covis; made again")
        except Damaged as error:
            say(f"{error}; made again")
    model = model or PlaceModel.load(path)
    if images is not None and images < _worth_exporting(model):
        return model
    say(f"preparing {path} for ONNX Runtime, once")
    try:
        export_onnx(model, file, portable=False)
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:  # bases of the exporter's own errors
        say(f"{model.config.backbone} runs in torch instead: {first_line(error)}")
        return model
    return OnnxPlaceModel.open(file, threads)


def _worth_exporting(model: PlaceModel) -> int:
    """The number of images from which on an export saves time."""
    size = sum(weight.numel() for weight in model.parameters())
    return next(images for least, images in _WORTH_EXPORTING.items() if size >= least)
