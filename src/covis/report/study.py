"""What reports and figures are made from: evaluations by name, runs, and the models that can still be opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from covis import datasets
from covis.core import artifacts
from covis.core.errors import InputError
from covis.evaluation import Benchmark, Evaluation, load_benchmark
from covis.graph import SimilarityGraph
from covis.images import ImageSet
from covis.models import PlaceModel
from covis.report.style import palette

MOST_MODELS = 4
"""Most columns of figures that show models side by side."""


class NotInStudy(InputError):  # noqa: N818 - a state of affairs, read as one
    """A figure that these evaluations and runs cannot have, such as batches without runs."""


@dataclass(frozen=True, eq=False)
class Study:
    """Evaluations of one protocol, and the runs behind them."""

    evaluations: Mapping[str, Sequence[Evaluation]]
    """By name; those under one name are seeds of one configuration."""
    runs: Mapping[str, Sequence[Path]] = field(default_factory=dict)
    """Folders of `covis train`, by the same names."""
    data: Path | None = None
    """Where the dataset of the benchmark and of the runs lies."""
    loaded: Benchmark | None = None

    @cached_property
    def benchmark(self) -> Benchmark:
        """The protocol of the evaluations, with its images."""
        frame = self.first.protocol.get("frame", "")
        return self.loaded or load_benchmark(self.first.benchmark, self.data, frame=frame)

    @property
    def first(self) -> Evaluation:
        """The first evaluation."""
        return next(iter(self.evaluations.values()))[0]

    @property
    def colours(self) -> dict[str, str]:
        """The colour of each name, the same in every figure."""
        return palette([*self.evaluations, *self.runs])

    @property
    def samples(self) -> dict[str, Mapping[str, NDArray[Any]]]:
        """The sampled pairs (`pair_*`) of the first evaluation of each name that has some."""
        firsts = {name: group[0].arrays for name, group in self.evaluations.items() if "pair_psi" in group[0].arrays}
        if not firsts:
            raise NotInStudy("these evaluations hold no sampled pairs with graded similarity")
        return firsts

    @property
    def sample(self) -> Mapping[str, NDArray[Any]]:
        """The first of `samples`, whose ids are those of the benchmark's images."""
        name, arrays = next(iter(self.samples.items()))
        if self.evaluations[name][0].fingerprint != self.benchmark.fingerprint:
            raise InputError(f"the evaluation's {self.benchmark.name!r} differs from that in the data; evaluate again")
        return arrays

    @property
    def model_folders(self) -> dict[str, Path]:
        """The first models that can be opened: those of runs, else evaluated folders that still hold the same model.

        A model that was evaluated several times (whitened to several sizes) counts once.
        """
        folders = {name: paths[0] / "model" for name, paths in self.runs.items()}
        seen = {_model_fingerprint(folder) for folder in folders.values()}
        for name, group in self.evaluations.items():
            folder = Path(str(group[0].subject.get("folder", "")))
            fingerprint = group[0].subject.get("fingerprint")
            if name not in folders and fingerprint not in seen and fingerprint == _model_fingerprint(folder):
                folders[name] = folder
                seen.add(fingerprint)
        order = [name for name in dict.fromkeys((*self.evaluations, *folders)) if name in folders]
        return {name: folders[name] for name in order[:MOST_MODELS]}

    @cached_property
    def models(self) -> dict[str, PlaceModel]:
        """The models at `model_folders`."""
        if not self.model_folders:
            raise NotInStudy("this figure needs models; give run folders, or evaluations whose model is still there")
        return {name: PlaceModel.load(folder) for name, folder in self.model_folders.items()}

    @cached_property
    def labels(self) -> tuple[SimilarityGraph, ImageSet, ImageSet]:
        """The labels of the last name's first run with their images; without runs, the benchmark's graded similarity."""
        if not self.runs:
            return self.benchmark.graded, self.benchmark.queries, self.benchmark.database
        run = list(self.runs.values())[-1][0]
        recipe = run_recipe(run)
        split = datasets.load(recipe["dataset"], self.data, recipe["split"])
        return SimilarityGraph.open(run / "labels"), split.queries, split.database


def _model_fingerprint(folder: Path) -> object:
    record = folder / artifacts.MANIFEST
    return artifacts.read_json(record).get("fingerprint") if record.is_file() else None


def run_recipe(run: Path) -> dict[str, Any]:
    """The recipe of a run as JSON."""
    recipe: dict[str, Any] = artifacts.read_json(run / "run.json")["config"]["recipe"]
    return recipe
