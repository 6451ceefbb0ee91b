"""Surface overlap: which points of a cloud every image sees, as bits, and how many any two images share.

Points lie along a space-filling curve, so that those of one block are close together, and most blocks of an image are
empty: shared points are counted by AND and population count over the blocks that both images have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Bools, Floats, Ids
from covis.core.compiling import kernel
from covis.core.errors import InputError
from covis.core.progress import warn
from covis.graph import SimilarityGraph
from covis.images import ImageSet
from covis.labels.assembly import Advance, LabelRows, Members, build_graph
from covis.labels.clouds import PointCloud, fuse_depth
from covis.labels.fov import MEASURES

Words = NDArray[np.uint64]
_BLOCK = 512
"""Points per block of eight words."""
_QUERIES_A_CHUNK = 256


class Seen(NamedTuple):
    """Which points each of N images sees."""

    words: Words
    """(N, words) one bit per point."""
    blocks: Words
    """(N, words / 512) one bit per block that is not empty."""
    number: Ids
    """(N,) points seen."""


def surface_graph(
    queries: ImageSet, database: ImageSet, cloud: PointCloud | None, *, facts: dict[str, Any], advance: Advance
) -> SimilarityGraph:
    """ψ by shared points, as the rule's `facts` say."""
    clouds: list[dict[str, object]] = []
    counts: list[Ids] = [np.zeros(0, np.int64)]
    one_set = queries is database

    def label(i: Members, j: Members) -> Iterator[LabelRows]:
        a = queries.subset(i)
        b = a if one_set else database.subset(j)
        scene = cloud or fuse_depth([a] if one_set else [a, b])
        clouds.append(scene.describe())
        middle = scene.xyz.mean(axis=0)
        points = _along_curve(scene.xyz - middle)
        seen_a = _seen(points, a, middle)
        seen_b = seen_a if one_set else _seen(points, b, middle)
        counts.extend([seen_a.number] if one_set else [seen_a.number, seen_b.number])
        yield from _sharing(seen_a, seen_b, MEASURES.index(facts["measure"]), facts["zero_below"], one_set)

    graph = build_graph(queries, database, label, facts, advance)
    _check_sight(np.concatenate(counts), cloud)
    return replace(graph, facts={**graph.facts, "cloud": clouds[0] if len(clouds) == 1 else clouds})


def _along_curve(xyz: Floats) -> Floats:
    """(3, P) the points (P, 3) by Morton code: the bits of three coordinates in turn, ten each."""
    low, extent = xyz.min(axis=0), max(float(np.ptp(xyz, axis=0).max()), 1e-12)
    code = np.zeros(len(xyz), np.uint32)
    for axis in range(3):
        part = ((xyz[:, axis] - low[axis]) * (1023.0 / extent)).astype(np.uint32)
        for shift, mask in ((16, 0x030000FF), (8, 0x0300F00F), (4, 0x030C30C3), (2, 0x09249249)):
            part = (part | (part << np.uint32(shift))) & np.uint32(mask)
        code |= part << np.uint32(axis)
    return np.ascontiguousarray(xyz[np.argsort(code)].T)


def _seen(points: Floats, images: ImageSet, middle: Floats) -> Seen:
    """The points (3, P) around `middle` that each image sees."""
    n, number = points.shape[1], np.zeros(len(images), np.int64)
    inside = np.zeros(n + -n % (64 * _BLOCK), bool)
    words = np.zeros((len(images), len(inside) // 64), np.uint64)
    for i, planes in enumerate(_planes(images, middle)):
        _mark_inside(points, planes, inside)
        words[i], number[i] = np.packbits(inside, bitorder="little").view(np.uint64), inside.sum()
    occupied = words.reshape(len(images), -1, _BLOCK // 64).any(axis=2)
    return Seen(words, np.packbits(occupied, axis=1, bitorder="little").view(np.uint64), number)


@kernel()
def _mark_inside(points: Floats, p: Floats, inside: Bools) -> None:
    """Whether each point lies inside all five planes."""
    for k in range(points.shape[1]):
        x, y, z = points[0, k], points[1, k], points[2, k]
        ahead = p[0, 0] * x + p[0, 1] * y + p[0, 2] * z + p[0, 3] > 0.0
        left = p[1, 0] * x + p[1, 1] * y + p[1, 2] * z + p[1, 3] >= 0.0
        right = p[2, 0] * x + p[2, 1] * y + p[2, 2] * z + p[2, 3] > 0.0
        top = p[3, 0] * x + p[3, 1] * y + p[3, 2] * z + p[3, 3] >= 0.0
        bottom = p[4, 0] * x + p[4, 1] * y + p[4, 2] * z + p[4, 3] > 0.0
        inside[k] = ahead & left & right & top & bottom


def _planes(images: ImageSet, middle: Floats) -> Floats:
    """(N, 5, 4) unit normals and offsets of ahead, left, right, top, bottom; inside is positive."""
    rotation, centre = images.poses.rotation, images.poses.centre
    if images.intrinsics is None or rotation is None:
        raise InputError("surface overlap needs images with intrinsics and rotations; these have none")
    unknown = np.flatnonzero(~np.isfinite(rotation).all(axis=(1, 2)) | ~np.isfinite(centre[:, 2]))
    if len(unknown):
        raise InputError(
            f"{len(unknown)} of {len(images)} images have no 6DOF pose (first: {images.name(int(unknown[0]))}); "
            "leave them out with images.subset"
        )
    fx, fy, cx, cy, width, height = images.intrinsics.T
    zero, one = np.zeros_like(fx), np.ones_like(fx)
    sides = [[zero, zero, one], [fx, zero, cx], [-fx, zero, width - cx], [zero, fy, cy], [zero, -fy, height - cy]]
    normal = np.einsum("nij,kjn->nki", rotation, np.array(sides))
    normal /= np.linalg.norm(normal, axis=2, keepdims=True)
    offset = -np.einsum("nki,ni->nk", normal, centre - middle)
    return np.concatenate([normal, offset[:, :, None]], axis=2)


def _sharing(a: Seen, b: Seen, measure: int, zero_below: float, upper: bool) -> Iterator[LabelRows]:
    """ψ of every pair (i, j) that shares points; `upper` only j > i."""
    for start in range(0, len(a.number), _QUERIES_A_CHUNK):
        ids = np.arange(start, min(start + _QUERIES_A_CHUNK, len(a.number)))
        common = np.zeros((len(ids), len(b.number)), np.int64)
        _count_common(a, b, ids, upper, common)
        row, column = np.nonzero(common)
        shared, both = common[row, column], (a.number[ids[row]], b.number[column])
        psi = shared / (np.minimum(*both) if MEASURES[measure] == "overlap" else both[0] + both[1] - shared)
        kept = psi >= zero_below
        yield LabelRows(ids, row[kept], column[kept], psi[kept])


@kernel()
def _count_common(a: Seen, b: Seen, ids: Ids, upper: bool, common: Ids) -> None:
    """How many points images `ids` of a share with each of b (`upper`: with j > i), over the blocks that both have."""
    for row in range(len(ids)):
        i = ids[row]
        for j in range(i + 1 if upper else 0, len(b.number)):
            for s in range(a.blocks.shape[1]):
                both = a.blocks[i, s] & b.blocks[j, s]
                while both:
                    low = both & (~both + np.uint64(1))
                    first = 8 * (64 * s + _popcount(low - np.uint64(1)))
                    for k in range(first, first + 8):
                        common[row, j] += _popcount(a.words[i, k] & b.words[j, k])
                    both ^= low


@kernel(forceinline=True)
def _popcount(word: Any) -> int:
    """How many bits of a word are set."""
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))  # type: ignore[return-value]


def _check_sight(count: Ids, cloud: PointCloud | None) -> None:
    """Warns of images that see no point; a given cloud that none sees is in another frame than the poses."""
    blind = int((count == 0).sum())
    if cloud is not None and blind and blind == len(count):
        raise InputError(
            f"no image sees a point of the cloud {cloud.source}".rstrip()
            + "; it must be in the frame of the poses: check the axis of it that points up (--set cloud_up=-y)"
        )
    if blind:
        warn(f"{blind} of {len(count)} images see no point of the cloud; check poses and axes")
