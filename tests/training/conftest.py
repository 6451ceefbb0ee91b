"""A recipe that takes seconds."""

from dataclasses import replace

import pytest

from covis import experiments
from covis.models import ModelConfig
from covis.training.recipe import Recipe


@pytest.fixture
def quick() -> Recipe:
    """Twelve steps of eight pairs on images of 32×32."""
    base = experiments.get("town_quick")
    model = ModelConfig("tiny", "gem", image_size=(32, 32), trainable="all")
    return replace(base, model=model, batches=replace(base.batches, size=8), steps=12, validations=2, cache_gb=0.5)
