"""Photos → descriptors through any runtime; ONNX Runtime is defined here, since it starts at once and without torch.

A map that carries an ONNX file of its model answers without importing torch, which takes some seconds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from covis.core.errors import Damaged, InputError
from covis.core.foreign import first_line, read_foreign
from covis.core.machine import chosen_device, cpu_count, silence_telemetry
from covis.core.progress import Meter, say
from covis.reading.decoding import REASONS, Pixels, Reject, Size
from covis.reading.inputs import Photo

INPUT, OUTPUT, METADATA = "pixels", "descriptor", "covis"
"""Names inside an exported file: its input, its output, and the metadata that says what a reader needs."""
WEIGHTS_FILE, ONNX_FILE = "weights.safetensors", "model.onnx"
"""The network's file in a model folder; a folder with neither names a model whose descriptors come from elsewhere."""
MAX_BYTES = 1 << 31
"""ONNX files cannot be larger."""
_BATCH = 4
_WORTH_METER = 4


class Runtime(Protocol):
    """A model that is ready to run."""

    @property
    def dim(self) -> int:
        """Numbers per descriptor."""
        ...

    @property
    def image_size(self) -> Size:
        """(height, width) of the images that it takes."""
        ...

    @property
    def one_core(self) -> bool:
        """Whether a call keeps one core busy, so that one call per core can run at the same time."""
        ...

    def describe(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """(B, 3, H, W) RGB → (B, dim) of unit norm."""
        ...


CHECKSUM = b'"sha256": "'
"""Where an exported file carries the SHA-256 of itself, which was computed with zeros in its place."""


def signed(content: bytes) -> bytes:
    """The content of an exported file with its checksum filled in."""
    at = content.find(CHECKSUM + b"0" * 64) + len(CHECKSUM)
    return content[:at] + hashlib.sha256(content).hexdigest().encode("ascii") + content[at + 64 :]


def checked_content(path: Path | str) -> bytes:
    """The content of an exported file; one that differs from the checksum that it carries is refused."""
    content = read_foreign(path, MAX_BYTES)
    at = content.find(CHECKSUM) + len(CHECKSUM)
    if at >= len(CHECKSUM):
        bare = hashlib.sha256(content[:at] + b"0" * 64 + content[at + 64 :]).hexdigest()
        if bare.encode("ascii") != content[at : at + 64]:
            raise Damaged(f"{path} is damaged (SHA-256 differs from what it carries); export it again")
    return content


DEVICES = {
    "cuda": "CUDAExecutionProvider",
    "directml": "DmlExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "coreml": "CoreMLExecutionProvider",
}
"""Device → ONNX Runtime's provider. Only OpenVINO on a CPU was tried by the authors of covis."""
_ON_REQUEST = ("tensorrt", "coreml")
"""These take longer to prepare a network than most tasks take to run it, so that --device must name them."""


def _import_onnxruntime(path: Path | str) -> Any:
    silence_telemetry()
    try:
        import onnxruntime
    except ImportError:
        raise InputError(f"{path} needs the package onnxruntime; install it with: pip install onnxruntime") from None
    return onnxruntime


def open_session(
    path: Path | str,
    threads: int | None = None,
    remedy: str = "export it again",
    *,
    verified: bool = False,
    repack: bool = False,
    device: str = "cpu",
    weights: Path | None = None,
) -> Any:
    """ONNX Runtime's session of a file; `threads`: all cores unless given; `device`: `cpu` or one of `DEVICES`.

    weights: the folder of the weights that it shares (`covis.models.onnx.share_weights`).

    verified: the file, and the weights beside it, were compared with a manifest already. Weights are then mapped into
    memory and used in place, without repacking, unless `repack`: for ViT-S repacking takes half as long as describing a
    photo, and makes each photo a tenth quicker.
    """
    onnxruntime = _import_onnxruntime(path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or cpu_count()
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # waiting threads would burn a core
    if verified and not repack:
        options.add_session_config_entry("session.disable_prepacking", "1")
    providers: list[Any] = ["CPUExecutionProvider"]
    if device != "cpu":
        kind, _, number = device.partition(":")
        providers.insert(0, (DEVICES[kind], {"device_id": number} if number else {}))
    if weights is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(weights))
    try:
        source: Any = checked_content(path) if weights is not None or not verified else str(path)
        return onnxruntime.InferenceSession(source, options, providers=providers)
    except Damaged:
        raise
    except Exception as error:  # onnxruntime has an exception class for each status, without a common base
        reason = " ".join(str(error).split())[:160]
        raise Damaged(f"{path} cannot be opened by ONNX Runtime ({reason}); {remedy}") from None


def onnx_device() -> str:
    """Where ONNX models run: on the device of --device, else on the first that this ONNX Runtime is built for."""
    there = _import_onnxruntime("an ONNX model").get_available_providers()
    chosen = chosen_device()
    if chosen is None:
        return next((name for name in DEVICES if DEVICES[name] in there and name not in _ON_REQUEST), "cpu")
    kind = chosen.partition(":")[0]
    if DEVICES.get(kind) in there:
        return chosen
    if kind in ("cpu", "cuda", "mps"):  # the latter are of torch, too; what runs in ONNX Runtime beside it uses the CPU
        return "cpu"
    raise InputError(
        f"--device {kind} needs a build of ONNX Runtime with {DEVICES[kind]}; this one has {', '.join(there)}"
    )


class OnnxSession:
    """An exported model in ONNX Runtime."""

    def __init__(self, session: Any, facts: dict[str, Any]) -> None:
        self.session, self.facts = session, facts
        self.one_core = session.get_session_options().intra_op_num_threads == 1
        self.fingerprint = str(facts["fingerprint"])
        self.dim = int(facts["dim"])
        height, width = facts["preprocessing"]["image_size"]
        self.image_size: Size = (int(height), int(width))

    @classmethod
    def open(
        cls,
        path: Path | str,
        threads: int | None = None,
        *,
        verified: bool = False,
        repack: bool = False,
        weights: Path | None = None,
    ) -> OnnxSession:
        """Opens a file that `covis.models.export_onnx` wrote; `threads` and the rest as in `open_session`.

        On another device than the CPU if there is one (`onnx_device`) and it gives the same descriptors.
        """
        if not Path(path).is_file():
            raise InputError(f"{path} does not exist; write it with: covis export MODEL --onnx {path}")
        on_cpu = cls._of(open_session(path, threads, verified=verified, repack=repack, weights=weights), path)
        device = onnx_device()
        if device == "cpu":
            return on_cpu
        provider = DEVICES[device.partition(":")[0]]
        try:
            moved = cls._of(open_session(path, threads, verified=verified, device=device, weights=weights), path)
            same = moved.session.get_providers()[0] == provider and is_known(moved, known_descriptor(on_cpu))
        except Exception as error:  # of a driver
            say(f"{provider}: {first_line(error)}")
            same = False
        tried = "" if device == "openvino" else "; the authors of covis had no such device to try"
        say(f"{path} runs in {provider}, which describes a picture as the CPU does{tried}" if same else
            f"{path} runs on the CPU: {provider} cannot run it, or describes a picture differently")  # fmt: skip
        return moved if same else on_cpu

    @classmethod
    def _of(cls, session: Any, path: Path | str) -> OnnxSession:
        facts = session.get_modelmeta().custom_metadata_map.get(METADATA)
        if facts is None:
            raise InputError(f"{path} was not written by covis; export it with: covis export MODEL --onnx {path}")
        try:
            content = json.loads(facts)
            if "sha256" not in content:
                raise ValueError("its checksum is gone")
            return cls(session, content)
        except (ValueError, KeyError, TypeError) as error:
            raise Damaged(f"{path} has damaged metadata ({first_line(error)}); export it again") from None

    def describe(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """(B, 3, H, W) RGB → (B, dim) of unit norm.

        Photos run one by one: what a transformer computes for one fits the processor's cache, which makes it a fifth
        faster than in batches of 8, and a descriptor does not depend on the other photos of its batch.
        """
        rows = [np.zeros((0, self.dim), np.float32), *map(self._describe_one, pixels)]
        return np.concatenate(rows)

    def _describe_one(self, photo: NDArray[np.uint8]) -> NDArray[np.float32]:
        return np.asarray(self.session.run([OUTPUT], {INPUT: np.ascontiguousarray(photo[None])})[0], np.float32)


_KNOWN = 64
"""Numbers that are kept of a descriptor to recognise damage: any change of a network changes all of them."""
_SAME = 0.02
"""Relative difference up to which two processors may differ."""


def known_descriptor(model: Runtime) -> list[float]:
    """Some numbers of the descriptor of one fixed picture, which tell whether a network is still what it was."""
    row, column = np.indices(model.image_size)
    picture = np.stack([5 * row ^ 3 * column, 7 * row, row + 11 * column]).astype(np.uint8)
    values = model.describe(picture[None])[0]
    return [round(float(v), 7) for v in values[:: -(-len(values) // _KNOWN)]]


def is_known(model: Runtime, known: Sequence[float]) -> bool:
    """Whether the network still describes that picture as it did."""
    before, now = np.array(known), np.array(known_descriptor(model))
    return before.shape == now.shape and bool(np.linalg.norm(now - before) <= _SAME * np.linalg.norm(before))


class Described(NamedTuple):
    """The outcome of describing photos."""

    vectors: NDArray[np.float32]
    """(Q, dim) descriptors of the photos that can be used."""
    unusable: dict[int, str]
    """Photo → why it cannot be used."""


def describe_photos(model: Runtime, photos: Sequence[Photo], norm_tolerance: float) -> Described:
    """Decodes and describes photos: a few at once, or one on each core where a call keeps just one core busy."""
    unusable: dict[int, str] = {}
    rows: list[NDArray[np.float32]] = [np.zeros((0, model.dim), np.float32)]
    shown = Meter("locating", len(photos), "photos") if len(photos) >= _WORTH_METER else nullcontext()

    def describe(pixels: Pixels) -> NDArray[np.float32]:
        return model.describe(pixels.transpose(0, 3, 1, 2))

    with ThreadPoolExecutor(min(cpu_count(), max(1, len(photos)))) as pool, shown as meter:
        batches = _batches(pool, photos, model.image_size, unusable, describe if model.one_core else None)
        for ids, done in batches:
            vectors = done if model.one_core else describe(done)
            sound = np.abs(np.linalg.norm(vectors.astype(np.float64), axis=1) - 1) <= norm_tolerance
            unusable |= {
                i: "it has no descriptor (is it blank?)" for i, good in zip(ids, sound, strict=True) if not good
            }
            rows.append(vectors[sound])
            if meter is not None:
                meter.advance(len(ids))
    return Described(np.concatenate(rows), unusable)


def _batches(
    pool: ThreadPoolExecutor,
    photos: Sequence[Photo],
    size: Size,
    unusable: dict[int, str],
    then: Callable[[Pixels], NDArray[np.float32]] | None,
) -> Iterator[tuple[list[int], NDArray[Any]]]:
    """Ids and pixels (B, H, W, 3) of photos that can be decoded, or `then` of the pixels, from the same thread."""

    def read(photo: Photo) -> NDArray[Any] | str:
        try:
            pixels = photo.pixels(size)[None]
        except Reject as reject:
            return f"{reject.reason} ({reject.detail or REASONS[reject.reason]})"
        return pixels if then is None else then(pixels)

    ahead = [pool.submit(read, photo) for photo in photos[: 2 * _BATCH]]
    for start in range(0, len(photos), _BATCH):
        answers = [future.result() for future in ahead[:_BATCH]]
        more = photos[start + 2 * _BATCH : start + 3 * _BATCH]
        ahead = [*ahead[_BATCH:], *(pool.submit(read, photo) for photo in more)]
        sound = [(start + i, done) for i, done in enumerate(answers) if not isinstance(done, str)]
        unusable |= {start + i: why for i, why in enumerate(answers) if isinstance(why, str)}
        if sound:
            yield [i for i, _ in sound], np.concatenate([done for _, done in sound])
