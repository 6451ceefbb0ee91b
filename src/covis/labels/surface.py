"""Surface overlap: which points of a cloud every image sees, as bits, and how many any two images share.

Points lie along a space-filling curve, so that 64 of them, one word of bits, are close together: a word whose
enclosing sphere is wholly inside or outside a view needs no test of its points. Shared points are counted by AND and
population count over the blocks of words that neither image has empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.core.compiling import kernel
from covis.core.errors import InputError
from covis.core.progress import warn
from covis.graph import SimilarityGraph
from covis.images import ImageSet
from covis.labels.assembly import Advance, LabelRows, Members, build_graph
from covis.labels.clouds import PointCloud, fuse_depth
from covis.labels.fov import MEASURES

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
    """(N, words) one bit per point, in the cloud's order."""
    blocks: NDArray[np.uint64]
    """(N, blocks / 64) one bit a block that is not empty."""
    number: NDArray[np.int64]
    """(N,) points seen."""


@kernel(forceinline=True)
def popcount(word: Any) -> int:
    """How many bits of a word are set."""
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))  # type: ignore[return-value]


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
            whole = min(a.number[i], b.number[j]) if measure == 0 else a.number[i] + b.number[j] - common
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


WORD, _BLOCK = 64, 512
"""Points a word, points a block of eight words."""
_QUERIES_A_CHUNK = 256


def surface_graph(
    queries: ImageSet, database: ImageSet, cloud: PointCloud | None, *, facts: dict[str, Any], advance: Advance
) -> SimilarityGraph:
    """ψ by shared points, as the rule's `facts` say."""
    clouds: list[dict[str, object]] = []
    counts: list[NDArray[np.int64]] = []
    one_set = queries is database

    def label(i: Members, j: Members) -> Iterator[LabelRows]:
        a = queries if i is None else queries.subset(i)
        b = a if one_set else database if j is None else database.subset(j)
        scene = cloud or fuse_depth([a] if one_set else [a, b])
        clouds.append(scene.describe())
        points = arrange(scene)
        seen_a = seen_points(points, a)
        seen_b = seen_a if one_set else seen_points(points, b)
        counts.extend([seen_a.number] if one_set else [seen_a.number, seen_b.number])
        yield from surface_rows(seen_a, seen_b, MEASURES.index(facts["measure"]), facts["zero_below"], one_set)

    graph = build_graph(queries, database, label, facts=facts, mirror=one_set, advance=advance)
    _check_sight(np.concatenate(counts or [np.zeros(0, np.int64)]), cloud)
    return replace(graph, facts={**graph.facts, "cloud": clouds[0] if len(clouds) == 1 else clouds})


def arrange(cloud: PointCloud) -> Cloud:
    """Points along the space-filling curve, around their middle, filled up to whole blocks with NaN."""
    middle = cloud.xyz.mean(axis=0)
    xyz = cloud.xyz.T - middle[:, None]
    xyz = xyz[:, np.argsort(_curve(xyz))]
    empty = -len(cloud) % _BLOCK
    words = np.concatenate([xyz, np.broadcast_to(xyz[:, -1:], (3, empty))], axis=1).reshape(3, -1, WORD)
    centre = 0.5 * (words.min(axis=2) + words.max(axis=2))
    reach = np.sqrt(((words - centre[:, :, None]) ** 2).sum(axis=0).max(axis=1))
    is_point = np.arange(len(cloud) + empty).reshape(-1, WORD) < len(cloud)
    full = (is_point.astype(np.uint64) << np.arange(WORD, dtype=np.uint64)).sum(axis=1, dtype=np.uint64)
    points = np.concatenate([xyz, np.full((3, empty), np.nan)], axis=1)
    x, y, z = points
    return Cloud(x, y, z, middle, centre[0], centre[1], centre[2], reach, full)


def _curve(xyz: Floats) -> NDArray[np.uint32]:
    """Morton code of (3, N) points: the bits of three coordinates in turn, ten each."""
    low, extent = xyz.min(axis=1), max(float(np.ptp(xyz, axis=1).max()), 1e-12)
    code = np.zeros(xyz.shape[1], np.uint32)
    for axis in range(3):
        part = ((xyz[axis] - low[axis]) * (1023.0 / extent)).astype(np.uint32)
        for shift, mask in ((16, 0x030000FF), (8, 0x0300F00F), (4, 0x030C30C3), (2, 0x09249249)):
            part = (part | (part << np.uint32(shift))) & np.uint32(mask)
        code |= part << np.uint32(axis)
    return code


def seen_points(points: Cloud, images: ImageSet) -> Seen:
    """The points that each image sees."""
    words = np.zeros((len(images), len(points.full)), np.uint64)
    see(points, _planes(images, points.middle), words)
    return Seen(words, _occupied(words), bit_counts(words))


def _check_sight(count: NDArray[np.int64], cloud: PointCloud | None) -> None:
    """Warns of images that see no point; a given cloud that none sees is in another frame than the poses."""
    blind = int((count == 0).sum())
    if cloud is not None and blind and blind == len(count):
        raise InputError(
            f"no image sees a point of the cloud {cloud.source}".rstrip()
            + "; it must be in the frame of the poses: check the axis of it that points up (--set cloud_up=-y)"
        )
    if blind:
        warn(f"{blind} of {len(count)} images see no point of the cloud; check poses and axes")


def _cameras(images: ImageSet) -> tuple[Floats, Floats]:
    """Rotations and intrinsics, which surface overlap needs."""
    if images.intrinsics is None or images.poses.rotation is None:
        raise InputError("surface overlap needs images with intrinsics and rotations; these have none")
    unknown = np.flatnonzero(
        ~np.isfinite(images.poses.rotation).all(axis=(1, 2)) | ~np.isfinite(images.poses.centre[:, 2])
    )
    if len(unknown):
        raise InputError(
            f"{len(unknown)} of {len(images)} images have no 6DOF pose (first: {images.name(int(unknown[0]))}); "
            "leave them out with images.subset"
        )
    return images.poses.rotation, images.intrinsics


def _planes(images: ImageSet, middle: Floats) -> Floats:
    """(N, 5, 4) unit normals and offsets of ahead, left, right, top, bottom; inside is positive."""
    rotation, intrinsics = _cameras(images)
    fx, fy, cx, cy, width, height = intrinsics.T
    zero, one = np.zeros_like(fx), np.ones_like(fx)
    sides = [[zero, zero, one], [fx, zero, cx], [-fx, zero, width - cx], [zero, fy, cy], [zero, -fy, height - cy]]
    normal = np.einsum("nij,kjn->nki", rotation, np.array(sides))
    normal /= np.linalg.norm(normal, axis=2, keepdims=True)
    offset = -np.einsum("nki,ni->nk", normal, images.poses.centre - middle)
    return np.ascontiguousarray(np.concatenate([normal, offset[:, :, None]], axis=2))


def _occupied(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    some = words.reshape(len(words), -1, _BLOCK // WORD).any(axis=2)
    padded = np.zeros((len(words), -(-some.shape[1] // WORD) * WORD), bool)
    padded[:, : some.shape[1]] = some
    bits = padded.reshape(len(words), -1, WORD).astype(np.uint64) << np.arange(WORD, dtype=np.uint64)
    result: NDArray[np.uint64] = bits.sum(axis=2, dtype=np.uint64)
    return result


def surface_rows(a: Seen, b: Seen, measure: int, zero_below: float, upper: bool) -> Iterator[LabelRows]:
    """ψ of every pair (i, j) that shares points; `upper` only j > i."""
    for start in range(0, len(a.number), _QUERIES_A_CHUNK):
        ids = np.arange(start, min(start + _QUERIES_A_CHUNK, len(a.number)))
        counts = np.zeros(len(ids), np.int64)
        columns, psi = np.empty(len(ids) * len(b.number), np.int32), np.empty(len(ids) * len(b.number), np.float32)
        n = share(a, b, ids, measure, zero_below, upper, columns, psi, counts)
        yield LabelRows(ids, counts, columns[:n].copy(), psi[:n].copy())
