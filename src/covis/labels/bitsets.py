"""Compiled loops over points and bits: who sees what, what hides what, what is shared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from covis.compiling import kernel

Floats = NDArray[np.float64]
Words = NDArray[np.uint64]


class Cloud(NamedTuple):
    """Points along a space-filling curve, 64 a word; coordinates around `middle`; NaN fills the last block up."""

    x: Floats
    y: Floats
    z: Floats
    middle: Floats
    centre_x: Floats
    centre_y: Floats
    centre_z: Floats
    """(words,) of the sphere that encloses a word's points."""
    reach: Floats
    """(words,) its radius."""
    full: Words
    """(words,) the word with all its points."""


class Seen(NamedTuple):
    """Which points each of N images sees."""

    words: NDArray[np.uint64]
    """(N, words) one bit a point, in the cloud's order."""
    blocks: NDArray[np.uint64]
    """(N, blocks / 64) one bit a block that is not empty."""
    number: NDArray[np.int64]
    """(N,) points seen."""


class ZBuffer(NamedTuple):
    """A coarse depth image: coarse enough that a surface of points has no holes."""

    columns: int = 40
    """Cells across the image; as many a pixel downwards."""
    tolerance: float = 0.1
    """A point is hidden when it lies this share of its cell's least depth behind it."""


def _popcount(_context: Any, _word: Any) -> Any:
    return types.int64(types.uint64), lambda _c, builder, _s, args: builder.ctpop(args[0])


popcount: Callable[[Any], int] = intrinsic(_popcount)
"""How many bits of a word are set."""


@kernel()
def see(cloud: Cloud, planes: Floats, out: Words) -> None:
    """Sets the bits of the points inside all five planes of each image."""
    margin, inside = np.empty(len(cloud.full)), np.empty(64, np.uint64)
    for i in range(len(planes)):
        _margins(cloud, planes[i], margin)
        for w in range(len(margin)):
            reach = cloud.reach[w] * (1.0 + 1e-12) + 1e-12
            if margin[w] > reach:
                out[i, w] = cloud.full[w]
            elif margin[w] > -reach:
                out[i, w] = _word(cloud, planes[i], w, inside)


@kernel(fastmath={"contract", "nsz", "nnan"})
def _margins(cloud: Cloud, p: Floats, out: Floats) -> None:
    """How far inside the nearest plane the middle of each word lies."""
    for w in range(len(out)):
        x, y, z = cloud.centre_x[w], cloud.centre_y[w], cloud.centre_z[w]
        low = min(p[0, 0] * x + p[0, 1] * y + p[0, 2] * z + p[0, 3], p[1, 0] * x + p[1, 1] * y + p[1, 2] * z + p[1, 3])
        low = min(low, p[2, 0] * x + p[2, 1] * y + p[2, 2] * z + p[2, 3])
        low = min(low, p[3, 0] * x + p[3, 1] * y + p[3, 2] * z + p[3, 3])
        out[w] = min(low, p[4, 0] * x + p[4, 1] * y + p[4, 2] * z + p[4, 3])


@kernel()
def _word(cloud: Cloud, p: Floats, w: int, inside: NDArray[np.uint64]) -> int:
    """The points of one word that lie inside."""
    x, y, z = cloud.x[64 * w : 64 * w + 64], cloud.y[64 * w : 64 * w + 64], cloud.z[64 * w : 64 * w + 64]
    for k in range(64):
        ahead = p[0, 0] * x[k] + p[0, 1] * y[k] + p[0, 2] * z[k] + p[0, 3] > 0.0
        left = p[1, 0] * x[k] + p[1, 1] * y[k] + p[1, 2] * z[k] + p[1, 3] >= 0.0
        right = p[2, 0] * x[k] + p[2, 1] * y[k] + p[2, 2] * z[k] + p[2, 3] > 0.0
        top = p[3, 0] * x[k] + p[3, 1] * y[k] + p[3, 2] * z[k] + p[3, 3] >= 0.0
        bottom = p[4, 0] * x[k] + p[4, 1] * y[k] + p[4, 2] * z[k] + p[4, 3] > 0.0
        inside[k] = ahead & left & right & top & bottom
    word = np.uint64(0)
    for k in range(64):
        word |= inside[k] << np.uint64(k)
    return word  # type: ignore[return-value]


@kernel()
def hide(cloud: Cloud, turn: Floats, centre: Floats, intrinsics: Floats, buffer: ZBuffer, words: Words) -> None:
    """Clears the bits of points behind nearer ones; `turn` is world-to-camera (N, 3, 3)."""
    for i in range(len(words)):
        fx, fy, cx, cy, width, height = intrinsics[i]
        size = width / buffer.columns
        rows = int(np.ceil(height / size)) + 1
        near = np.full((rows, buffer.columns + 1), np.inf)
        for collect in (True, False):
            for w in range(words.shape[1]):
                for k in range(64 if words[i, w] else 0):
                    bit = np.uint64(1) << np.uint64(k)
                    if not words[i, w] & bit:
                        continue
                    n = 64 * w + k
                    px, py, pz = cloud.x[n] - centre[i, 0], cloud.y[n] - centre[i, 1], cloud.z[n] - centre[i, 2]
                    x = turn[i, 0, 0] * px + turn[i, 0, 1] * py + turn[i, 0, 2] * pz
                    y = turn[i, 1, 0] * px + turn[i, 1, 1] * py + turn[i, 1, 2] * pz
                    z = turn[i, 2, 0] * px + turn[i, 2, 1] * py + turn[i, 2, 2] * pz
                    column = min(buffer.columns, max(0, int((fx * x / z + cx) / size)))
                    row = min(rows - 1, max(0, int((fy * y / z + cy) / size)))
                    if collect:
                        near[row, column] = min(near[row, column], z)
                    elif z > near[row, column] * (1.0 + buffer.tolerance):
                        words[i, w] &= ~bit


@kernel()
def bit_counts(words: Words) -> NDArray[np.int64]:
    """(N,) bits set in each row."""
    out = np.zeros(len(words), np.int64)
    for i in range(len(words)):
        for w in range(words.shape[1]):
            out[i] += popcount(words[i, w])
    return out


@kernel()
def share(
    a: Seen,
    b: Seen,
    ids: NDArray[np.int64],
    measure: int,
    zero_below: float,
    upper: bool,
    columns: NDArray[np.int32],
    psi: NDArray[np.float32],
    counts: NDArray[np.int64],
) -> int:
    """Writes ψ by `fov.MEASURES[measure]` of images `ids` of a with all of b (`upper`: j > i); returns how many."""
    written = 0
    for row in range(len(ids)):
        i, start = ids[row], written
        for j in range(i + 1 if upper else 0, len(b.number)):
            common = _common(a.words[i], a.blocks[i], b.words[j], b.blocks[j])
            whole = min(a.number[i], b.number[j]) if measure == 0 else a.number[i]
            whole = a.number[i] + b.number[j] - common if measure == 2 else whole
            value = common / whole if common else 0.0
            columns[written], psi[written] = j, value
            written += common > 0 and value >= zero_below
        counts[row] = written - start
    return written


@kernel()
def _common(a: Words, blocks_a: Words, b: Words, blocks_b: Words) -> int:
    """How many bits two images share, over the blocks that both have."""
    total = 0
    for s in range(len(blocks_a)):
        both = blocks_a[s] & blocks_b[s]
        while both:
            low = both & (~both + np.uint64(1))
            first = 8 * (64 * s + popcount(low - np.uint64(1)))
            for k in range(first, first + 8):
                total += popcount(a[k] & b[k])
            both ^= low
    return total
