"""What reports are made from: evaluations by name, runs, and the models that can still be opened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from covis.core import artifacts
from covis.core.errors import InputError
from covis.evaluation import Benchmark, Evaluation
from covis.models import PlaceModel
from covis.report.style import palette

EvaluationGroups = Mapping[str, Sequence[Evaluation]]
"""Evaluations by name; those under one name are seeds of one configuration."""
Runs = Mapping[str, Sequence[Path]]
"""Folders of `covis train` by name."""
Models = Mapping[str, Path]
"""Model folders by name."""
MOST_MODELS = 4
"""Most columns of figures that show models side by side."""


def openable_models(evaluations: EvaluationGroups, runs: Runs) -> dict[str, Path]:
    """The first models that can be opened: those of runs, else evaluated folders that still hold the same model.

    A model that was evaluated several times (whitened to several sizes) counts once.
    """
    models = {name: paths[0] / "model" for name, paths in runs.items()}
    seen = {_model_fingerprint(folder) for folder in models.values()}
    for name, group in evaluations.items():
        folder = Path(str(group[0].subject.get("folder", "")))
        fingerprint = group[0].subject.get("fingerprint")
        if name not in models and fingerprint not in seen and fingerprint == _model_fingerprint(folder):
            models[name] = folder
            seen.add(fingerprint)
    order = [name for name in (*evaluations, *models) if name in models]
    return {name: models[name] for name in list(dict.fromkeys(order))[:MOST_MODELS]}


def _model_fingerprint(folder: Path) -> object:
    record = folder / artifacts.MANIFEST
    return artifacts.read_json(record).get("fingerprint") if record.is_file() else None


def colours(evaluations: EvaluationGroups, further: Iterable[str] = ()) -> dict[str, str]:
    """The colour of each name, the same in every figure of a report."""
    return palette([*evaluations, *further])


def graded_samples(evaluations: EvaluationGroups) -> dict[str, Mapping[str, NDArray[Any]]]:
    """The arrays of the first evaluation of each name, where it has sampled pairs of graded similarity."""
    return {name: group[0].arrays for name, group in evaluations.items() if "pair_psi" in group[0].arrays}


def needed_sample(evaluations: EvaluationGroups) -> dict[str, Mapping[str, NDArray[Any]]]:
    """`graded_samples`, or an error where there are none."""
    samples = graded_samples(evaluations)
    if not samples:
        raise InputError("these evaluations hold no sampled pairs with graded similarity")
    return samples


def sampled_pairs(evaluations: EvaluationGroups, benchmark: Benchmark) -> Mapping[str, NDArray[Any]]:
    """The sampled pairs of the first evaluation that has some; ids are those of the benchmark's images."""
    name, arrays = next(iter(needed_sample(evaluations).items()))
    if evaluations[name][0].fingerprint != benchmark.fingerprint:
        raise InputError(f"the evaluation's {benchmark.name!r} differs from the one in the data; evaluate again")
    return arrays


def open_models(models: Models) -> dict[str, PlaceModel]:
    if not models:
        raise InputError("this figure needs models; give run folders, or evaluations whose model is still there")
    return {name: PlaceModel.load(folder) for name, folder in models.items()}


def run_recipe(run: Path) -> dict[str, Any]:
    """The recipe of a run as JSON."""
    recipe: dict[str, Any] = artifacts.read_json(run / "run.json")["config"]["recipe"]
    return recipe
