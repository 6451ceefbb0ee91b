"""Random numbers as hashes of (seed, epoch, position, stream).

There is no generator state to carry along, so any worker can draw any batch by itself, at any time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covis.core.arrays import Floats, Ids

Bits = NDArray[np.uint64]
RandomKey = np.uint64
_U = np.uint64
_GAMMA = _U(0x9E3779B97F4A7C15)
_ROUNDS = 6


def _mix(x: Any) -> Any:
    """A 64-bit finaliser: each input bit flips each output bit with probability one half."""
    x = (x ^ (x >> _U(30))) * _U(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> _U(27))) * _U(0x94D049BB133111EB)
    return x ^ (x >> _U(31))


@np.errstate(over="ignore")
def draw(key: RandomKey, position: ArrayLike, stream: ArrayLike) -> Bits:
    """64 random bits for each position and stream (which broadcast) under a key."""
    at, of = (np.asarray(x, np.int64).astype(_U) + _U(1) for x in (position, stream))
    return np.asarray(_mix(_mix(key + _GAMMA * at) + _GAMMA * of))


def shares(key: RandomKey, position: ArrayLike, stream: ArrayLike) -> Floats:
    """Random numbers in [0, 1)."""
    return np.asarray((draw(key, position, stream) >> _U(11)) * 2.0**-53)


def below(key: RandomKey, position: ArrayLike, stream: ArrayLike, n: ArrayLike) -> Ids:
    """Random integers in [0, n), uniform to within n / 2⁵³."""
    return np.asarray((shares(key, position, stream) * np.asarray(n)).astype(np.int64))


def epoch_key(seed: int, epoch: int, purpose: int = 0) -> RandomKey:
    """The key of one epoch of one seed; `purpose` separates samplers that share a seed."""
    with np.errstate(over="ignore"):
        start = _mix(np.int64(seed).astype(_U) + _GAMMA)
    return _U(draw(_U(draw(start, epoch, 0)), purpose, 1))


@np.errstate(over="ignore")
def permute(key: RandomKey, positions: Ids, n: int) -> Ids:
    """Where a random permutation of [0, n) sends each of `positions` (K,), in memory that does not depend on n.

    A Feistel network permutes the next even power of two; positions that fall outside [0, n) are permuted again.
    """
    half = max(1, -(-(n - 1).bit_length() // 2))
    mask = _U((1 << half) - 1)
    out = positions.astype(_U)
    left_to_do = np.arange(len(out))
    while len(left_to_do):
        x = out[left_to_do]
        left, right = x >> _U(half), x & mask
        for k in range(_ROUNDS):
            left, right = right, left ^ (_mix(key + _GAMMA * (right + _U((k + 1) << 40))) & mask)
        out[left_to_do] = (left << _U(half)) | right
        left_to_do = left_to_do[out[left_to_do] >= _U(n)]
    return out.astype(np.int64)
