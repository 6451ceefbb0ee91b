"""What a report speaks of: evaluations by name, runs by name, and the models behind both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis import artifacts
from covis.errors import InputError
from covis.evaluation import Evaluation
from covis.report import plots

Groups = Mapping[str, Sequence[Evaluation]]
"""Evaluations by name; several of a name are seeds of one thing."""
Runs = Mapping[str, Sequence[Path]]
"""Folders of `covis train` by name."""
Models = Mapping[str, Path]
"""Model folders by name."""
MOST_MODELS = 4
"""Figures that show a model beside another have so many columns at most."""


def models(evaluations: Groups, runs: Runs) -> dict[str, Path]:
    """The first models that can be opened: of runs, else the folders that were evaluated if they still hold the same.

    A model that was evaluated several times (whitened to several sizes) counts once.
    """
    found = {name: paths[0] / "model" for name, paths in runs.items()}
    seen = {_fingerprint(folder) for folder in found.values()}
    for name, group in evaluations.items():
        folder = Path(str(group[0].subject.get("folder", "")))
        mark = group[0].subject.get("fingerprint")
        if name not in found and mark not in seen and mark == _fingerprint(folder):
            found[name] = folder
            seen.add(mark)
    order = [name for name in (*evaluations, *found) if name in found]
    return {name: found[name] for name in list(dict.fromkeys(order))[:MOST_MODELS]}


def _fingerprint(folder: Path) -> object:
    record = folder / artifacts.MANIFEST
    return artifacts.read_json(record).get("fingerprint") if record.is_file() else None


def colours(evaluations: Groups, further: Iterable[str] = ()) -> dict[str, str]:
    """The colour of each name, the same in every figure of a report."""
    return plots.palette([*evaluations, *further])


def sampled(evaluations: Groups) -> dict[str, Mapping[str, NDArray[Any]]]:
    """The arrays of the first evaluation of each name, where it has sampled pairs of graded similarity."""
    return {name: found[0].arrays for name, found in evaluations.items() if "pair_psi" in found[0].arrays}


def needed_sample(evaluations: Groups) -> dict[str, Mapping[str, NDArray[Any]]]:
    """`sampled`, or an error where there is none."""
    found = sampled(evaluations)
    if not found:
        raise InputError("these evaluations hold no sampled pairs with graded similarity")
    return found


def run_recipe(run: Path) -> dict[str, Any]:
    """The recipe of a run as JSON."""
    recipe: dict[str, Any] = artifacts.read_json(run / "run.json")["config"]["recipe"]
    return recipe


def spread(values: Sequence[float], digits: int = 1) -> str:
    """The mean, and over several the standard deviation."""
    deviation = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{digits}f}{deviation}"
