"""Place models: one adapter for every backbone, poolings, whitening, weights in and out.

What a model is made of (`ModelConfig`) is known without torch; everything else is loaded when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from covis.models.config import ModelConfig, Preprocessing
from covis.whitening import Whitening

if TYPE_CHECKING:
    from covis.models.backbones import backbone_names
    from covis.models.onnx import Embedder, export_onnx, load_fast
    from covis.models.onnx_model import OnnxPlaceModel
    from covis.models.place_model import PlaceModel
    from covis.models.pooling import POOLS

_NAMES = {
    "POOLS": "pooling",
    "Embedder": "onnx",
    "OnnxPlaceModel": "onnx_model",
    "PlaceModel": "place_model",
    "backbone_names": "backbones",
    "export_onnx": "onnx",
    "load_fast": "onnx",
}
"""Name → the module that defines it."""


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'covis.models' has no attribute {name!r}")
    member = getattr(importlib.import_module(f"covis.models.{_NAMES[name]}"), name)
    globals()[name] = member
    return member


__all__ = [
    "POOLS",
    "Embedder",
    "ModelConfig",
    "OnnxPlaceModel",
    "PlaceModel",
    "Preprocessing",
    "Whitening",
    "backbone_names",
    "export_onnx",
    "load_fast",
]
