"""A hamlet to train on, and a recipe that takes seconds."""

from dataclasses import replace
from pathlib import Path

import pytest

from covis import recipes
from covis.datasets.town import TownConfig
from covis.datasets.town.dataset import load
from covis.models import ModelConfig
from covis.training.recipe import Recipe


@pytest.fixture(scope="session")
def hamlet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A rendered town of the smallest size."""
    folder = tmp_path_factory.mktemp("town") / "hamlet"
    for split in ("train", "val"):
        load(folder, split, TownConfig.small())
    return folder


@pytest.fixture
def quick() -> Recipe:
    """Twelve steps of eight pairs on images of 32×32."""
    base = recipes.get("town_quick")
    model = ModelConfig("tiny", "gem", image_size=(32, 32), trainable="all")
    return replace(base, model=model, batches=replace(base.batches, size=8), steps=12, validations=2, cache_gb=0.5)
