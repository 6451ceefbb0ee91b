"""What describes the photos of a map: the model that made its descriptors, and the ONNX file of it that the map carries."""

from __future__ import annotations

import importlib.util
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covis.core import artifacts
from covis.core.errors import Damaged, InputError
from covis.descriptors import NORM_TOLERANCE
from covis.maps.storage.layout import MODEL, RUNTIME, read_model_manifest, read_runtime
from covis.reading.inputs import expand_photos
from covis.runtime import (
    ONNX_FILE,
    WEIGHTS_FILE,
    Described,
    OnnxSession,
    Runtime,
    describe_photos,
    is_known,
    known_descriptor,
)

if TYPE_CHECKING:
    from covis.models import Embedder, PlaceModel

_BESIDE_FILE = "model.weights"
"""Weights of the map's ONNX file, beside it."""
_WORTH_REPACKING = 8
"""Photos from which on repacking the weights saves time."""


@dataclass(frozen=True, eq=False)
class MapNetwork:
    """The model of the map at `path`; torch is imported only where the model itself is needed."""

    path: Path
    fingerprint: str
    """Of the model of every descriptor."""

    @cached_property
    def backbone(self) -> str:
        """The name of the model's network."""
        return str(artifacts.read_json(self.path / MODEL / "config.json")["backbone"])

    @cached_property
    def model(self) -> Embedder:
        """The model of every descriptor, in torch or, where the map was made with an ONNX file, as that."""
        return self.open_model()

    def open_model(self, images: int | None = None) -> Embedder:
        from covis.describing.describers import open_model

        loaded = open_model(self.path / MODEL, images)
        if loaded.fingerprint() != self.fingerprint:
            raise InputError(
                f"{self.path} holds descriptors of model {self.fingerprint}, its model folder is "
                f"{loaded.fingerprint()}; restore it"
            )
        return loaded

    @cached_property
    def runtime(self) -> Runtime:
        """What describes new photos, many of them: the map's own ONNX file where it has one that can be run, else torch."""
        return self._open_runtime(repack=True)

    @property
    def kind(self) -> str:
        """What describes new photos: `torch`, `onnx`, or empty where the map was made of descriptors alone."""
        model = self.path / MODEL
        if (self.path / RUNTIME).is_dir() or (model / ONNX_FILE).is_file():
            return "onnx"
        return "torch" if (model / WEIGHTS_FILE).is_file() else ""

    def _open_runtime(self, threads: int | None = None, *, repack: bool = False) -> Runtime:
        model = self.path / MODEL
        if (model / ONNX_FILE).is_file():
            read_model_manifest(self.path, verify=False)
            session = OnnxSession.open(model / ONNX_FILE, threads, verified=True, repack=repack)
            if session.fingerprint != self.fingerprint:
                raise Damaged(f"{model / ONNX_FILE} is not the model {self.fingerprint} of this map; restore it")
            return session
        if (self.path / RUNTIME).is_dir() and importlib.util.find_spec("onnxruntime") is not None:
            try:
                facts = read_runtime(self.path)
                if facts["model"] == self.fingerprint:
                    file = self.path / RUNTIME / ONNX_FILE
                    weights = self.path / MODEL if facts.get("shared") else None
                    if weights is not None:
                        read_model_manifest(self.path, verify=False)
                    return OnnxSession.open(file, threads, verified=True, repack=repack, weights=weights)
            except InputError as error:
                cause = str(error).partition(";")[0]
                raise Damaged(f"{cause}; make it again with: covis map repair {self.path}") from None
        from covis.describing.torch_runtime import TorchRuntime

        return TorchRuntime(self._place_model())

    def _place_model(self) -> PlaceModel:
        from covis.models import PlaceModel

        model = self.model
        assert isinstance(model, PlaceModel)  # a map that was made with an ONNX file does not come here
        return model

    def carry_runtime(self) -> bool:
        """Puts an ONNX file of the model into the map, checked against torch; False where onnx is not installed.

        A map that was made with an ONNX file has it already; one of descriptors alone has none (False).
        """
        folder = self.path / RUNTIME
        if (folder / artifacts.MANIFEST).is_file() or (self.path / MODEL / ONNX_FILE).is_file():
            return True
        if not self.kind or not all(map(importlib.util.find_spec, ("onnxruntime", "onnxscript", "onnx"))):
            return False
        from covis.models.onnx import export_onnx, share_weights

        facts = {"model": self.fingerprint}
        with artifacts.lock(self.path), artifacts.create(folder, RUNTIME, facts, replace=True) as draft:
            file = draft.path / ONNX_FILE
            draft.facts["difference"] = export_onnx(self._place_model(), file, _BESIDE_FILE)
            draft.facts["shared"] = share_weights(file, self.path / MODEL)
            weights = self.path / MODEL if draft.facts["shared"] else None
            if weights is not None:
                (draft.path / _BESIDE_FILE).unlink()
            draft.facts["known"] = known_descriptor(OnnxSession.open(file, verified=True, weights=weights))
        return True

    def describe(self, photos: Any) -> Described:
        """Descriptors of photos, given as for `locate`, and why some have none."""
        expanded = expand_photos(photos)
        if "runtime" in self.__dict__:
            return describe_photos(self.runtime, expanded, NORM_TOLERANCE)
        runtime = self.__dict__["runtime"] = self._open_runtime(1, repack=len(expanded) >= _WORTH_REPACKING)
        with ThreadPoolExecutor(1) as beside:  # on a core that a single photo leaves idle
            checked = beside.submit(self._check_network, runtime)
            described = describe_photos(runtime, expanded, NORM_TOLERANCE)
            checked.result()
        return described

    def _check_network(self, runtime: Runtime) -> None:
        """Refuses a network that describes a known picture otherwise than when the map was made: its file has decayed."""
        if not isinstance(runtime, OnnxSession) or not (self.path / RUNTIME).is_dir():
            return
        known = read_runtime(self.path).get("known")
        if known is not None and not is_known(runtime, known):
            raise Damaged(
                f"the network in {self.path / RUNTIME} is damaged (a known picture has another descriptor); make it again "
                f"with: covis map repair {self.path}"
            )
