"""Place models: one adapter for every backbone, poolings, whitening, weights in and out."""

from covis.models import aggregators as _aggregators  # noqa: F401 - fills POOLS
from covis.models.backbones import names as backbone_names
from covis.models.config import ModelConfig, Preprocessing
from covis.models.place_model import PlaceModel
from covis.models.pooling import POOLS

__all__ = ["POOLS", "ModelConfig", "PlaceModel", "Preprocessing", "backbone_names"]
