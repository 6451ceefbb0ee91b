"""Place models: one adapter for every backbone, poolings, whitening, weights in and out."""

from covis.machine import keep_large_blocks
from covis.models.backbones import names as backbone_names
from covis.models.config import ModelConfig, Preprocessing
from covis.models.onnx import Embedder, OnnxPlaceModel, export_onnx, load_fast
from covis.models.place_model import PlaceModel
from covis.models.pooling import POOLS
from covis.whitening import Whitening

keep_large_blocks()  # before the first feature map is allocated

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
