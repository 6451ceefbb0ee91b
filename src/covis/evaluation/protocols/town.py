"""The simulated town: streets that training never sees."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from covis import datasets
from covis.evaluation.benchmark import Benchmark, register
from covis.evaluation.relevance import same_place_benchmark


def town(path: Path | None, split: str, name: str) -> Benchmark:
    """Streets of the simulated town that training never sees, under other weather, light and season than its map."""
    sides = datasets.load("town", path, split)
    return same_place_benchmark(
        name,
        sides,
        breakdown={"condition": np.char.decode(sides.queries.columns["condition"])},
        training=lambda: datasets.load("town", path, "train").database,
        notes=("simulated images: compare models here, not with figures of real photographs",),
    )


register("town", "town", "test")(partial(town, split="test", name="town"))
register("town_val", "town", "val")(partial(town, split="val", name="town_val"))
