"""A model taken apart, as the folders that hold models keep it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from covis.models.config import ModelConfig, Preprocessing
from covis.whitening import Whitening


@dataclass(frozen=True)
class ModelParts:
    """All that a place model is made from."""

    config: ModelConfig
    preprocessing: Preprocessing
    state: dict[str, Tensor]
    whitening: Whitening | None
    card: dict[str, Any]
