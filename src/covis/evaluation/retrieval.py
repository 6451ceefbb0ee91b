"""From descriptors of any tool to figures: search as the protocol says, score, and sweep descriptor sizes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from covis.core.arrays import Descriptors, Ids
from covis.core.errors import InputError
from covis.core.files import load_array
from covis.core.foreign import read_foreign
from covis.evaluation.benchmark import Benchmark
from covis.evaluation.relevance import NEAR_ALIKE
from covis.evaluation.result import Evaluation
from covis.evaluation.scoring import average_precision, evaluate, pair_distances, rank_correlation, sample_pairs
from covis.graph import SimilarityGraph
from covis.images import ImageSet, encode_names
from covis.labels import FovOverlap
from covis.ranking import Ranking
from covis.search import rank
from covis.whitening import (
    PCA,
    SAMPLES_PER_DIM,
    DescriptorRows,
    Whitening,
    WhiteningRule,
    moments,
    pair_weights,
)

PHOTO_VIEWS = FovOverlap(radius_m=25.0, fov_deg=90.0, facing=True)
"""ψ of photos taken on foot, whose views share what is near: on the campus photos, ψ of 25 m squared follows the share
of pairs that look alike; ψ of 50 m is far above what phones see."""
NEAREST = 3
"""Images of other groups that are taken to show an image's place where labels do not come from poses."""
_SMALLEST_DIM = 32

Labeller = Callable[[ImageSet, ImageSet], SimilarityGraph]


def fit_whitening(
    images: ImageSet,
    descriptors: DescriptorRows,
    dim: int,
    rule: WhiteningRule = PCA,
    *,
    labels: Labeller = PHOTO_VIEWS,
    facts: Mapping[str, Any] | None = None,
) -> Whitening:
    """A whitening fitted on the descriptors (N, D) of `images`; `labels` gives the ψ of graded pairs."""
    (whitening,) = fit_sizes(images, descriptors, [dim], rule, labels=labels, facts=facts)
    return whitening


def fit_sizes(
    images: ImageSet,
    descriptors: DescriptorRows,
    sizes: Sequence[int],
    rule: WhiteningRule = PCA,
    *,
    labels: Labeller = PHOTO_VIEWS,
    facts: Mapping[str, Any] | None = None,
) -> Iterator[Whitening]:
    """Whitenings to several dims from one fit."""
    pairs = None if rule.labels == "none" else labelled_pairs(images, descriptors, rule, labels)
    record = {**(facts or {}), **({} if pairs is None else _label_facts(rule, labels, pairs))}
    with moments(descriptors, max(sizes)) as fitted:
        within = None if pairs is None else fitted.within(pairs)
        for size in sizes:
            yield fitted.whitening(size, rule, within=within, facts=record)


def labelled_pairs(
    images: ImageSet, descriptors: DescriptorRows, rule: WhiteningRule, labels: Labeller = PHOTO_VIEWS
) -> csr_matrix:
    """(N, N) weights of the pairs that a rule takes for one place; rows sum to 1.

    Pairs join different groups (walks), unless there is only one group or the labels match within groups (cities).
    """
    cities = bool(getattr(labels, "within_group", False))
    group = None if cities or len(images.group_names) < 2 else np.asarray(images.group, np.int64)
    if rule.labels == "nearest":
        return nearest_pairs(np.asarray(descriptors), group)
    if rule.labels == "binary":
        return pair_weights(replace(NEAR_ALIKE, within_group=cities)(images, images), group)
    return pair_weights(labels(images, images), group, rule.exponent)


def _white(descriptors: Descriptors, dim: int = 256) -> Descriptors:
    """The descriptors PCA-whitened to `dim` dims, or to fewer where there are not enough descriptors to fit them."""
    most = min(dim, descriptors.shape[1], max(1, len(descriptors) // SAMPLES_PER_DIM))
    return Whitening.fit(descriptors, most)(descriptors)


def nearest_pairs(descriptors: Descriptors, group: Ids | None) -> csr_matrix:
    """(N, N) equal weights of each image's `NEAREST` in other groups (N,), by PCA-whitened descriptors."""
    white = _white(descriptors)
    itself = np.arange(len(white))
    ranking = rank(white, white, NEAREST, group, group, "any" if group is None else "other", exclude=itself)
    rows, columns = np.nonzero(ranking.ids >= 0)
    count = np.maximum((ranking.ids >= 0).sum(axis=1), 1)
    shape = (len(white), len(white))
    return csr_matrix((1.0 / count[rows], (rows, ranking.ids[rows, columns])), shape=shape)


def affordable(dim: int, samples: int) -> int:
    """`dim`, or as many as the samples suffice for; 0 (none) where that is too few to be useful."""
    dim = min(dim, samples // SAMPLES_PER_DIM)
    return dim if dim >= _SMALLEST_DIM else 0


def _label_facts(rule: WhiteningRule, labels: Labeller, pairs: csr_matrix) -> dict[str, Any]:
    source = {"graded": labels, "binary": NEAR_ALIKE}.get(rule.labels)
    return {"pairs": int(pairs.nnz), **({} if source is None else {"label_rule": str(source)})}


# From descriptors of any tool to figures: search as the protocol says, score, and sweep descriptor sizes.


SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Descriptor sizes that a sweep tries, up to the descriptor's own."""
SAMPLED_PAIRS = 20_000
UNIT_TOLERANCE = 1e-3


def rank_descriptors(queries: Descriptors, database: Descriptors, benchmark: Benchmark, depth: int = 0) -> Ranking:
    """The exact ranking of unit descriptors (Q, dim), (M, dim), as deep as the protocol needs and at least `depth`."""
    mine, theirs = benchmark.group_codes
    itself = np.arange(len(queries)) if benchmark.one_set else None
    depth = max(depth, benchmark.depth)
    return rank(queries, database, depth, mine, theirs, groups=benchmark.groups, exclude=itself)


def evaluate_descriptors(
    queries: Descriptors,
    database: Descriptors,
    benchmark: Benchmark,
    subject: Mapping[str, Any] | None = None,
    transform: Callable[[Descriptors], Descriptors] | None = None,
) -> Evaluation:
    """Scores unit descriptors of the benchmark's images, whitened by `transform` first where one is given."""
    check_pair(queries, database, benchmark)
    if transform is not None:
        one = queries is database
        queries = transform(queries)
        database = queries if one else transform(database)
    size = {"dim": int(queries.shape[1])}
    figures, samples = pair_figures(queries, database, benchmark)
    ranking = rank_descriptors(queries, database, benchmark)
    return evaluate(ranking, benchmark, subject={**(subject or {}), **size}, further=size | figures, samples=samples)


def check_pair(queries: Descriptors, database: Descriptors, benchmark: Benchmark) -> None:
    """Refuses descriptors that are not one unit vector per image, or differ in size between queries and map."""
    check_descriptors(queries, benchmark.queries, "queries")
    if database is not queries:
        check_descriptors(database, benchmark.database, "map")
    if queries.shape[1] != database.shape[1]:
        raise InputError(f"query descriptors have {queries.shape[1]} dims, those of the map {database.shape[1]}")


def pair_figures(
    queries: Descriptors, database: Descriptors, benchmark: Benchmark
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Spearman between ψ and distance over sampled pairs, average precision over all where the protocol has it.

    Also the sample itself: `pair_query`, `pair_map`, `pair_psi`, `pair_distance`, each (N,).
    """
    figures: dict[str, Any] = {}
    samples: dict[str, NDArray[Any]] = {}
    if benchmark.relevance is None:
        return figures, samples
    if benchmark.graded.has_grades:
        rows, columns, psi = sample_pairs(benchmark.graded, SAMPLED_PAIRS, benchmark.admissible)
        distance = pair_distances(queries, database, rows, columns)
        similar = psi > 0
        figures["spearman_psi_distance"] = rank_correlation(psi, distance)
        figures["spearman_psi_distance_similar"] = rank_correlation(psi[similar], distance[similar])
        samples = {"pair_query": rows, "pair_map": columns, "pair_psi": psi, "pair_distance": distance}
    if benchmark.pairs:
        ap = average_precision(queries, database, benchmark.positives, one_set=benchmark.one_set)
        figures["average_precision"] = 100.0 * ap
    return figures, samples


def check_descriptors(descriptors: Descriptors, images: ImageSet, side: str) -> None:
    """Refuses descriptors that are not one unit vector per image."""
    if descriptors.ndim != 2 or len(descriptors) != len(images):
        raise InputError(f"descriptors of the {side} have shape {descriptors.shape}; expected ({len(images)}, dim)")
    norm = np.linalg.norm(descriptors, axis=1)
    wrong = ~(np.abs(norm - 1.0) <= UNIT_TOLERANCE)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise InputError(
            f"the descriptor of {side} image {images.name(at)!r} has length {norm[at]:.4g}, not 1 ({int(wrong.sum())} such)"
        )


def read_descriptors(path: Path | str, images: ImageSet, *, normalise: bool = True) -> Descriptors:
    """Descriptors that another tool wrote: `FILE.npy` (N, dim) beside `FILE.txt`, one image name per line, any order.

    Names are matched with the images' own by their whole path or, where that is unambiguous, by file name.
    """
    path = Path(path)
    matrix, given = open_matrix(path)
    rows = np.asarray(matrix[match_names(given, images, path.with_suffix(".txt"))], np.float32)
    scaled = unit_rows(path, rows, images.name)
    return scaled if normalise else rows


def open_matrix(path: Path) -> tuple[NDArray[Any], NDArray[np.bytes_]]:
    """`FILE.npy` (N, dim), memory-mapped, and the names of its rows in `FILE.txt`."""
    matrix = load_array(path, "fiu", mapped=True, remedy="write it with numpy.save")
    listing = path.with_suffix(".txt")
    if not listing.is_file():
        raise InputError(f"{listing} does not exist; write the image names of {path.name} into it, one per line")
    given = encode_names(read_foreign(listing).splitlines())
    if matrix.ndim != 2 or len(given) != len(matrix):
        raise InputError(f"{path} has shape {matrix.shape}, but {listing} names {len(given)} images; one row per name")
    return matrix, given


def unit_rows(path: Path, rows: NDArray[Any], name: Callable[[int], str]) -> Descriptors:
    """Rows of a matrix scaled to unit length; a row that is zero or not finite is an error that gives its `name`."""
    rows = np.asarray(rows, np.float32)
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    if not np.isfinite(length).all() or (length == 0).any():
        at = int(np.flatnonzero(~(np.isfinite(length[:, 0]) & (length[:, 0] > 0)))[0])
        raise InputError(f"{path}: the descriptor of {name(at)!r} is zero or not finite; compute it again")
    return np.asarray(rows / length, np.float32)


def match_names(given: NDArray[np.bytes_], images: ImageSet, listing: Path) -> NDArray[np.int64]:
    """Row of `given` for each image."""
    for view in (bytes, _basename):
        wanted = [view(name) for name in images.names]
        rows = {view(name): i for i, name in enumerate(given)}
        if len(rows) == len(given) and all(name in rows for name in wanted):
            return np.array([rows[name] for name in wanted], np.int64)
    known = set(given.tolist())
    missing = [i for i, name in enumerate(images.names) if name not in known]
    which = f"{images.name(missing[0])!r} is missing ({len(missing)} such)" if missing else "a name is there twice"
    raise InputError(f"{listing} does not name the benchmark's {len(images)} images: {which}")


def _basename(name: bytes) -> bytes:
    return os.path.basename(name)  # noqa: PTH119 (bytes)
