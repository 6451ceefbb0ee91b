"""How a batch is composed: bands of ψ, their shares, and the named strategies."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from covis.graph import POSITIVE

_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Band:
    """Pairs with low ≤ ψ < high (a high of 1 includes 1) and their share of a batch.

    Stored pairs have ψ > 0, so that a low of 0 excludes ψ = 0 unless `zero` says that those pairs belong to it.
    """

    low: float
    high: float
    share: Fraction
    zero: bool = False

    def __str__(self) -> str:
        if self.high == 0:
            return "{0}"
        return f"{'[' if self.zero or self.low > 0 else '('}{self.low:g}, {self.high:g}{']' if self.high == 1 else ')'}"


@dataclass(frozen=True)
class Strategy:
    """A named composition: bands that do not overlap and whose shares add up to one."""

    name: str
    bands: tuple[Band, ...]

    def without_zeros(self) -> Strategy:
        """The composition where all images overlap: the share of ψ = 0 goes to the band of the least other ψ."""
        zeros = [b for b in self.bands if b.high == 0]
        others = [b for b in self.bands if b.high > 0]
        least = min(others, key=lambda b: b.low)
        grown = replace(least, share=least.share + sum((b.share for b in zeros), Fraction(0)))
        return Strategy(self.name, tuple(grown if b is least else b for b in others)) if zeros else self

    def quota(self, size: int, index: int | NDArray[np.int64]) -> NDArray[np.int64]:
        """(…, bands) how many of `size` pairs come from each band in batch `index` (one, or an array of them).

        Each count is the share rounded down or up; which of the two rotates with the index, so that the shares are
        exact over many batches.
        """
        halves = [divmod(size * b.share.numerator, b.share.denominator) for b in self.bands]
        whole = np.array([count for count, _ in halves])
        rest = np.cumsum([left / b.share.denominator for (_, left), b in zip(halves, self.bands, strict=True)])
        rest[-1] = size - whole.sum()
        turn = (np.asarray(index)[..., None] * _GOLDEN) % 1.0
        reached = np.floor(rest + turn + 1e-12).astype(np.int64)
        reached[..., 1:] -= reached[..., :-1].copy()
        return whole + reached

    def band_of(self, psi: NDArray[np.float32]) -> NDArray[np.int64]:
        """(N,) the band that each ψ lies in, −1 for none."""
        out = np.full(psi.shape, -1, np.int64)
        for k, band in enumerate(self.bands):
            stored = (psi > 0) & (psi >= band.low) & ((psi < band.high) if band.high < 1 else (psi <= 1))
            out[stored | ((psi == 0) & band.zero)] = k
        return out


def count_bands(psi: NDArray[np.float32]) -> dict[str, int]:
    """How many pairs are positive, overlap less, and do not overlap."""
    positive, zero = int((psi >= POSITIVE).sum()), int((psi == 0).sum())
    return {"positive": positive, "less": psi.size - positive - zero, "none": zero}


_QUARTER, _THIRD, _HALF = Fraction(1, 4), Fraction(1, 3), Fraction(1, 2)
_COMPOSITIONS = {
    "A": (Band(POSITIVE, 1, _HALF), Band(0, POSITIVE, _QUARTER), Band(0, 0, _QUARTER, zero=True)),
    "B": (
        Band(0.75, 1, _QUARTER),
        Band(POSITIVE, 0.75, _QUARTER),
        Band(0, POSITIVE, _QUARTER),
        Band(0, 0, _QUARTER, zero=True),
    ),
    "C": (Band(POSITIVE, 1, _THIRD), Band(0, POSITIVE, _THIRD), Band(0, 0, _THIRD, zero=True)),
    "D": (Band(POSITIVE, 1, _HALF), Band(0, POSITIVE, _HALF, zero=True)),
    "binary": (Band(POSITIVE, 1, _HALF), Band(0, POSITIVE, _HALF, zero=True)),
}
STRATEGIES = {name: Strategy(name, bands) for name, bands in _COMPOSITIONS.items()}
"""A is the default. D and binary share their bands; binary is meant for a yes/no graph, such as `Radius` gives."""
