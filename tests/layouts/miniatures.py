"""Dataset → what writes a miniature of its layout. A new dataset's goes into any module of this folder."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_made: dict[str, Miniature] = {}


@dataclass(frozen=True)
class Miniature:
    """Writes a dataset's layout below a folder, and returns the path that a user would give."""

    build: Callable[[Path], Path]
    without: tuple[str, ...] = ()
    """Splits that it leaves out."""


def miniature(
    dataset: str, without: tuple[str, ...] = ()
) -> Callable[[Callable[[Path], Path]], Callable[[Path], Path]]:
    """Decorator of a function `(root) -> path` that writes the miniature of a dataset."""

    def bind(build: Callable[[Path], Path]) -> Callable[[Path], Path]:
        if dataset in _made:
            raise ValueError(f"dataset {dataset!r} has two miniatures")
        _made[dataset] = Miniature(build, without)
        return build

    return bind


@cache
def miniatures() -> dict[str, Miniature]:
    """Every dataset's miniature, from all modules of this folder."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        importlib.import_module(f"layouts.{module.name}")
    return dict(_made)


class Written:
    """Dataset → path of its miniature, written below `root` when first asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._paths: dict[str, Path] = {}

    def __getitem__(self, dataset: str) -> Path:
        if dataset not in self._paths:
            missing = f"dataset {dataset} has no miniature; write one in tests/layouts/{dataset}.py under @miniature"
            assert dataset in miniatures(), missing
            self._paths[dataset] = miniatures()[dataset].build(self.root / dataset)
        return self._paths[dataset]
