"""Compiled loops over points and bits: who sees what, what hides what, what is shared."""

from __future__ import annotations

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
    """A coarse depth image into which points are drawn as patches, so that a surface of points has no holes."""

    spacing: float
    """Metres between points of the cloud; a patch reaches this far around its point."""
    columns: int = 40
    """Cells across the image; as many a pixel downwards."""
    slack: float = 3.0
    """Spacings that a point may lie behind its cell's least depth: patches do not tilt with their surface."""
    tolerance: float = 0.05
    """Share of the depth that it may lie behind as well."""


def _popcount(_context: Any, _word: Any) -> Any:
    return types.int64(types.uint64), lambda _c, builder, _s, args: builder.ctpop(args[0])


popcount: Any = intrinsic(_popcount)
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
        size = intrinsics[i, 4] / buffer.columns
        near = np.full((int(np.ceil(intrinsics[i, 5] / size)), buffer.columns), np.inf)
        for w in range(words.shape[1]):
            for k in range(64 if words[i, w] else 0):
                if words[i, w] >> np.uint64(k) & np.uint64(1):
                    u, v, z = _pixel(cloud, 64 * w + k, turn[i], centre[i], intrinsics[i])
                    _draw(near, u / size, v / size, z, buffer.spacing * intrinsics[i, 0] / (z * size))
        for w in range(words.shape[1]):
            for k in range(64 if words[i, w] else 0):
                bit = np.uint64(1) << np.uint64(k)
                if words[i, w] & bit:
                    u, v, z = _pixel(cloud, 64 * w + k, turn[i], centre[i], intrinsics[i])
                    row, column = (
                        min(len(near) - 1, max(0, int(v / size))),
                        min(near.shape[1] - 1, max(0, int(u / size))),
                    )
                    if z > near[row, column] * (1.0 + buffer.tolerance) + buffer.slack * buffer.spacing:
                        words[i, w] &= ~bit


@kernel(forceinline=True)
def _pixel(cloud: Cloud, n: int, turn: Floats, centre: Floats, intrinsics: Floats) -> tuple[float, float, float]:
    """Column, row and depth of point n."""
    px, py, pz = cloud.x[n] - centre[0], cloud.y[n] - centre[1], cloud.z[n] - centre[2]
    x = turn[0, 0] * px + turn[0, 1] * py + turn[0, 2] * pz
    y = turn[1, 0] * px + turn[1, 1] * py + turn[1, 2] * pz
    z = turn[2, 0] * px + turn[2, 1] * py + turn[2, 2] * pz
    return intrinsics[0] * x / z + intrinsics[2], intrinsics[1] * y / z + intrinsics[3], z


@kernel()
def _draw(near: Floats, x: float, y: float, z: float, reach: float) -> None:
    """Draws a patch at (x, y) cells: its own cell, and those whose middle it reaches."""
    rows, columns = near.shape
    top, bottom = min(int(y), int(np.ceil(y - reach - 0.5))), max(int(y), int(np.floor(y + reach - 0.5)))
    left, right = min(int(x), int(np.ceil(x - reach - 0.5))), max(int(x), int(np.floor(x + reach - 0.5)))
    for row in range(max(0, top), min(rows - 1, bottom) + 1):
        for column in range(max(0, left), min(columns - 1, right) + 1):
            near[row, column] = min(near[row, column], z)


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
