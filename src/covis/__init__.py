"""Visual place recognition: where a photo was taken, learned from how much two views share.

    import covis

    town = covis.Map.open("town.map")
    town.locate("photo.jpg")

Names below and the packages (`covis.labels`, `covis.losses`, …) are imported when they are first used: `import covis`
itself takes a few milliseconds, and torch is loaded only by what needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from covis import datasets, evaluation, experiments, graph, labels, losses, maps, models, sampling, search, town
    from covis.core.errors import InputError
    from covis.describing.describers import evaluate_model as evaluate
    from covis.describing.describers import open_describer
    from covis.describing.embedding import embed
    from covis.descriptors import DescriptorStore
    from covis.evaluation.benchmark import Benchmark, load_benchmark
    from covis.evaluation.result import Evaluation
    from covis.evaluation.retrieval import recall
    from covis.experiments import get as recipe
    from covis.geotagging import geotag
    from covis.graph import SimilarityGraph
    from covis.images import ImageSet
    from covis.maps.map import Map
    from covis.models import PlaceModel
    from covis.poses import Poses
    from covis.ranking import Ranking
    from covis.reading.sources import open_images
    from covis.training.recipe import Recipe
    from covis.training.run import train

_NAMES = {
    "Benchmark": "evaluation.benchmark",
    "DescriptorStore": "descriptors",
    "Evaluation": "evaluation.result",
    "ImageSet": "images",
    "InputError": "core.errors",
    "Map": "maps.map",
    "PlaceModel": "models",
    "Poses": "poses",
    "Ranking": "ranking",
    "Recipe": "training.recipe",
    "SimilarityGraph": "graph",
    "embed": "describing.embedding",
    "evaluate": "describing.describers:evaluate_model",
    "geotag": "geotagging",
    "load_benchmark": "evaluation.benchmark",
    "open_describer": "describing.describers",
    "open_images": "reading.sources",
    "recall": "evaluation.retrieval",
    "recipe": "experiments:get",
    "train": "training.run",
}
"""Name → the module that defines it, and its name there if that is another."""
_PACKAGES = (
    "datasets", "evaluation", "experiments", "graph", "labels", "losses", "maps", "models", "sampling", "search", "town",
)  # fmt: skip

__all__ = [
    "Benchmark", "DescriptorStore", "Evaluation", "ImageSet", "InputError", "Map", "PlaceModel", "Poses", "Ranking",
    "Recipe", "SimilarityGraph", "datasets", "embed", "evaluate", "evaluation", "experiments", "geotag", "graph", "labels",
    "load_benchmark", "losses", "maps", "models", "open_describer", "open_images", "recall", "recipe", "sampling", "search",
    "town",
    "train",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"covis.{name}")
    if name not in _NAMES:
        raise AttributeError(f"module 'covis' has no attribute {name!r}")
    module, _, inside = _NAMES[name].partition(":")
    value = getattr(importlib.import_module(f"covis.{module}"), inside or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
