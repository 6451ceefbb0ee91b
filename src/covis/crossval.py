"""Cross-validation over walks: photos of one walk are right or wrong together, so a fold holds whole walks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from covis.core.arrays import Bools, Ids


@dataclass(frozen=True, eq=False)
class WalkCrossValidation:
    """Photos in folds of whole walks; what is fitted to the other folds is applied to each."""

    fold: Ids
    """(N,) the fold of each photo, from 0 on."""

    @classmethod
    def of(cls, walk: Ids, folds: int, rng: np.random.Generator | None = None) -> WalkCrossValidation:
        """Deals the walks (N,) out to as many folds at random, so that each gets as many walks."""
        rng = np.random.default_rng(0) if rng is None else rng
        return cls(rng.permutation(int(walk.max(initial=0)) + 1)[walk] % folds)

    def splits(self) -> Iterator[tuple[Bools, Bools]]:
        """For each fold, which photos (N,) a fit may see and which are in the fold."""
        for part in range(int(self.fold.max(initial=-1)) + 1):
            inside = self.fold == part
            if inside.any():
                yield ~inside, inside
