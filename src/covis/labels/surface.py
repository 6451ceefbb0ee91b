"""Surface overlap: which points of a cloud every image sees, as bits, and how many any two images share.

Points lie along a space-filling curve, so that 64 of them, one word of bits, are close together: a word whose
enclosing sphere is wholly inside or outside a view needs no look at its points. Shared points are counted by AND and
population count over the blocks of words that neither image has empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from covis.errors import InputError
from covis.graph import SimilarityGraph
from covis.images import ImageSet
from covis.labels.bitsets import Cloud, Seen, ZBuffer, bit_counts, hide, see, share
from covis.labels.fov import MEASURES
from covis.labels.pointclouds import PointCloud, fuse_depth
from covis.labels.rows import Rows
from covis.labels.rules import Advance, Occlusion, SurfaceOverlap
from covis.labels.whole_sets import Members, build
from covis.progress import warn

OCCLUSIONS: tuple[str, ...] = get_args(Occlusion)
WORD, BLOCK = 64, 512
"""Points a word, points a block of eight words."""
_QUERIES_A_CHUNK = 256
Floats = NDArray[np.float64]


def surface_graph(rule: SurfaceOverlap, queries: ImageSet, database: ImageSet, advance: Advance) -> SimilarityGraph:
    """ψ by shared points."""
    clouds: list[dict[str, object]] = []
    one_set = queries is database
    mirror = one_set and rule.measure != "query_overlap"

    def label(i: Members, j: Members) -> Iterator[Rows]:
        a = queries if i is None else queries.subset(i)
        b = a if one_set else database if j is None else database.subset(j)
        cloud = rule.cloud or fuse_depth([a] if one_set else [a, b])
        clouds.append(cloud.describe())
        points = arrange(cloud)
        seen_a = look(points, a, rule.occlusion)
        seen_b = seen_a if one_set else look(points, b, rule.occlusion)
        _tell_of_blind(*([seen_a] if one_set else [seen_a, seen_b]))
        yield from surface_rows(seen_a, seen_b, MEASURES.index(rule.measure), rule.zero_below, mirror)

    graph = build(rule, queries, database, label, mirror, advance)
    return replace(graph, facts={**graph.facts, "cloud": clouds[0] if len(clouds) == 1 else clouds})


def arrange(cloud: PointCloud) -> Cloud:
    """Points along the space-filling curve, around their middle, filled up to whole blocks with NaN."""
    middle = cloud.xyz.mean(axis=0)
    xyz = cloud.xyz.T - middle[:, None]
    xyz = xyz[:, np.argsort(_curve(xyz))]
    empty = -len(cloud) % BLOCK
    words = np.concatenate([xyz, np.broadcast_to(xyz[:, -1:], (3, empty))], axis=1).reshape(3, -1, WORD)
    centre = 0.5 * (words.min(axis=2) + words.max(axis=2))
    reach = np.sqrt(((words - centre[:, :, None]) ** 2).sum(axis=0).max(axis=1))
    here = np.arange(len(cloud) + empty).reshape(-1, WORD) < len(cloud)
    full = (here.astype(np.uint64) << np.arange(WORD, dtype=np.uint64)).sum(axis=1, dtype=np.uint64)
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


def look(points: Cloud, images: ImageSet, occlusion: str) -> Seen:
    """The points that each image sees."""
    words = np.zeros((len(images), len(points.full)), np.uint64)
    see(points, _planes(images, points.middle), words)
    if occlusion == "zbuffer":
        rotation, intrinsics = _cameras(images)
        turn = np.ascontiguousarray(rotation.transpose(0, 2, 1))
        hide(points, turn, images.poses.centre - points.middle, intrinsics, ZBuffer(_spacing(points)), words)
    return Seen(words, _occupied(words), bit_counts(words))


def _tell_of_blind(*sides: Seen) -> None:
    count = np.concatenate([side.number for side in sides])
    if (count == 0).any():
        warn(f"{int((count == 0).sum())} of {len(count)} images see no point of the cloud; check poses and axes")


def _spacing(points: Cloud) -> float:
    """About how far neighbouring points are apart, metres: a word's 64 points fill its disc evenly."""
    return float(np.median(points.reach) * np.sqrt(np.pi / WORD))


def _cameras(images: ImageSet) -> tuple[Floats, Floats]:
    """Rotations and intrinsics, which surface overlap cannot do without."""
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
    some = words.reshape(len(words), -1, BLOCK // WORD).any(axis=2)
    padded = np.zeros((len(words), -(-some.shape[1] // WORD) * WORD), bool)
    padded[:, : some.shape[1]] = some
    bits = padded.reshape(len(words), -1, WORD).astype(np.uint64) << np.arange(WORD, dtype=np.uint64)
    result: NDArray[np.uint64] = bits.sum(axis=2, dtype=np.uint64)
    return result


def surface_rows(a: Seen, b: Seen, measure: int, zero_below: float, upper: bool) -> Iterator[Rows]:
    """ψ of every pair (i, j) that shares points; `upper` only j > i."""
    for start in range(0, len(a.number), _QUERIES_A_CHUNK):
        ids = np.arange(start, min(start + _QUERIES_A_CHUNK, len(a.number)))
        counts = np.zeros(len(ids), np.int64)
        columns, psi = np.empty(len(ids) * len(b.number), np.int32), np.empty(len(ids) * len(b.number), np.float32)
        n = share(a, b, ids, measure, zero_below, upper, columns, psi, counts)
        yield Rows(ids, counts, columns[:n].copy(), psi[:n].copy())
