"""Random numbers as hashes of (seed, epoch, position, stream), compiled.

No generator has to be carried along, so that any batch can be drawn by itself, by any worker, at any time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.compiling import kernel

Int = int | np.integer[Any]
Float = float | np.floating[Any]
Key = np.uint64

_U = np.uint64
_GAMMA = _U(0x9E3779B97F4A7C15)
_ROUNDS = 6


@kernel(inline="always")
def mix(x: Key) -> Key:
    """A 64-bit finaliser: each input bit flips each output bit with probability one half."""
    x = (x ^ (x >> _U(30))) * _U(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> _U(27))) * _U(0x94D049BB133111EB)
    return x ^ (x >> _U(31))


@kernel()
def draw(key: Key, position: Int, stream: Int) -> Key:
    """64 random bits for one position and stream under a key."""
    return mix(mix(key + _GAMMA * _U(position + 1)) + _GAMMA * _U(stream + 1))


@kernel()
def below(key: Key, position: Int, stream: Int, n: Int) -> Int:
    """A random integer in [0, n), uniform to within n / 2⁵³."""
    return np.int64((draw(key, position, stream) >> _U(11)) * 2.0**-53 * n)


@kernel()
def many_below(key: Key, positions: NDArray[np.int64], stream: Int, n: NDArray[np.int64]) -> NDArray[np.int64]:
    """(K,) random integers in [0, n[k]), one a position."""
    out = np.empty(len(positions), np.int64)
    for k in range(len(positions)):
        out[k] = below(key, positions[k], stream, n[k])
    return out


@kernel()
def _epoch_key(seed: Int, epoch: Int, purpose: Int) -> Key:
    return draw(draw(mix(_U(seed) + _GAMMA), epoch, 0), purpose, 1)


def epoch_key(seed: int, epoch: int, purpose: int = 0) -> Key:
    """The key of one epoch of one seed; `purpose` separates samplers that share a seed."""
    return _U(_epoch_key(seed, epoch, purpose))


@kernel()
def permute(key: Key, position: Int, n: Int) -> Int:
    """Where a random permutation of [0, n) sends `position`, in constant time and memory.

    A Feistel network permutes the next even power of two; positions that fall outside [0, n) walk on.
    """
    half = 1
    while (1 << (2 * half)) < n:
        half += 1
    shift, mask = _U(half), _U((1 << half) - 1)
    x = _U(position)
    while True:
        left, right = x >> shift, x & mask
        for k in range(_ROUNDS):
            left, right = right, left ^ (mix(key + _GAMMA * (right + _U((k + 1) << 40))) & mask)
        x = (left << shift) | right
        if x < _U(n):
            return np.int64(x)


@kernel()
def permute_many(key: Key, count: Int, n: Int) -> NDArray[np.int64]:
    """(count,) where the permutation of [0, n) sends 0, 1, …: as many distinct numbers below n."""
    out = np.empty(count, np.int64)
    for k in range(count):
        out[k] = permute(key, k, n)
    return out
