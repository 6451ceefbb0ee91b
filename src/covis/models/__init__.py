"""Place models: one adapter for every backbone, poolings, whitening, weights in and out."""

from covis.models import aggregators as _aggregators  # noqa: F401 - fills POOLS
from covis.models.backbones import names as backbone_names
from covis.models.config import ModelConfig
from covis.models.export import Describer, OnnxPlaceModel, export_onnx, load_fast
from covis.models.place_model import PlaceModel
from covis.models.pooling import POOLS
from covis.models.preprocessing import Preprocessing
from covis.models.whitening import Whitening

__all__ = [
    "POOLS",
    "Describer",
    "ModelConfig",
    "OnnxPlaceModel",
    "PlaceModel",
    "Preprocessing",
    "Whitening",
    "backbone_names",
    "export_onnx",
    "load_fast",
]
