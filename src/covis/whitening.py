"""Whitening of descriptors: PCA, or learned in closed form from pairs that show one place according to their poses.

Descriptors f are projected by C^(−1/2) and scaled to unit norm, where C = (1 − a)·C_S + a·C_T. C_T is their total
covariance, C_S the mean of (f_i − f_j)(f_i − f_j)ᵀ over pairs of one place, weighted by how much their views share.
Directions therefore count less the more two views of one place differ in them. a = 1 is PCA whitening.

A fit reads its descriptors in blocks: a memory-mapped matrix of a million rows is never copied whole.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covis.core.arrays import Floats, Ids
from covis.core.artifacts import read_json, write_json
from covis.core.errors import InputError
from covis.descriptors import Matrix

if TYPE_CHECKING:
    from covis.graph import SimilarityGraph

RANK_TOLERANCE = 1e-10
"""Directions whose variance is below this share of the largest hold rounding noise and are dropped."""
SINGLE_RANK_TOLERANCE = 1e-6
"""The same where products were computed in single precision."""
SAMPLES_PER_DIM = 2
"""A whitening needs at least this many descriptors per dimension to be of use on others."""
GRAM_ROWS = 4096
"""Up to this many descriptors, if their length is no less than their number, their inner products are computed."""
COVARIANCE_DIMS = 8192
"""Else, up to this length, the covariance matrix is; beyond both, leading directions come from subspace iteration."""
_PASSES = 4
_OVERSAMPLED = 1.125
_BLOCK_BYTES = 64 << 20
_IN_MEMORY_BYTES = 512 << 20
_SINGLE_FROM = 2e10
"""Products of more multiplications than this are computed in single precision, block by block, and summed in double."""

PairLabels = Literal["none", "graded", "binary", "nearest"]


@dataclass(frozen=True)
class WhiteningRule:
    """How a whitening is computed, apart from its dims; the defaults are PCA whitening."""

    labels: PairLabels = "none"
    """Pairs whose differences are made small: `graded` by ψ, `binary` (same place or not), `nearest` without
    poses."""
    exponent: float = 2.0
    """Graded pairs count by ψ to this power."""
    total_share: float = 0.1
    """a: the share of the total covariance beside that of labelled pairs."""
    power: float = 1.0
    """Variances are divided out to this power: 1 is whitening, 0 leaves them; below 1 suits few samples."""

    def __post_init__(self) -> None:
        if self.labels not in get_args(PairLabels):
            raise InputError(f"whitening labels are one of {', '.join(get_args(PairLabels))}, not {self.labels!r}")
        if not 0 < self.total_share <= 1:
            raise InputError(f"total_share is a share above 0 and up to 1, not {self.total_share}")
        if not 0 <= self.power <= 1 or not self.exponent > 0:
            raise InputError(f"power is in [0, 1] and exponent above 0, not {self.power} and {self.exponent}")

    def facts(self) -> dict[str, Any]:
        """What decides the result, as JSON values."""
        if self.labels == "none":
            return {"labels": "none", "power": self.power}
        return {key: value for key, value in asdict(self).items() if key != "exponent" or self.labels == "graded"}


PCA = WhiteningRule()


@dataclass(frozen=True, eq=False)
class Whitening:
    """Subtract the mean, turn into some directions and scale each, then scale to unit norm.

    >>> descriptors = np.random.default_rng(0).normal(size=(100, 8))
    >>> whitening = Whitening.fit(descriptors, dim=4)
    >>> short = whitening(descriptors)
    >>> short.shape, bool(np.allclose(np.linalg.norm(short, axis=1), 1))
    ((100, 4), True)
    """

    mean: NDArray[np.floating]
    """(D,)"""
    projection: NDArray[np.floating]
    """(D, dim): directions over the square root of the variance that is divided out."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Where it was fitted and how: samples, rank, labels, shrinkage and what the caller adds (data, fingerprint)."""

    @property
    def dim(self) -> int:
        """Length after whitening."""
        return int(self.projection.shape[1])

    @classmethod
    def fit(
        cls,
        descriptors: Matrix,
        dim: int,
        rule: WhiteningRule = PCA,
        *,
        pairs: PairWeights | None = None,
        shrinkage: float = 0.0,
        facts: Mapping[str, Any] | None = None,
    ) -> Whitening:
        """Fits on (N, D) descriptors, keeping the `dim` directions of largest variance.

        pairs: (N, N) weights of labelled pairs (`pair_weights`), where the rule wants labels. `shrinkage` in [0, 1]
        moves every variance towards their mean by that share, which tames directions that few samples have hardly seen.
        """
        if not 0 <= shrinkage <= 1:
            raise InputError(f"whitening shrinkage is a share in [0, 1], not {shrinkage}")
        with moments(descriptors, dim) as fitted:
            within = None if pairs is None or rule.labels == "none" else fitted.within(pairs)
            return fitted.whitening(dim, rule, within=within, shrinkage=shrinkage, facts=facts)

    def __call__(self, descriptors: ArrayLike) -> NDArray[np.float32]:
        """(N, D) → (N, dim) whitened, unit norm."""
        turned = (np.asarray(descriptors, np.float64) - self.mean) @ self.projection
        norms = np.maximum(np.linalg.norm(turned, axis=1, keepdims=True), 1e-12)
        return np.asarray(turned / norms, np.float32)

    def halved(self) -> Whitening:
        """The same with directions in half precision, for a file of a quarter of the size; unit norm undoes their scale."""
        scaled = self.projection / np.abs(self.projection).max()
        return replace(self, mean=self.mean.astype(np.float32), projection=scaled.astype(np.float16))

    def save(self, path: Path) -> None:
        """Writes a .safetensors file."""
        from safetensors.numpy import save_file

        save_file({"mean": self.mean, "projection": np.ascontiguousarray(self.projection)}, path)
        write_json(path.with_suffix(".json"), dict(self.facts))

    @classmethod
    def open(cls, path: Path) -> Whitening:
        """Reads what `save` wrote."""
        from safetensors.numpy import load_file

        arrays = load_file(path)
        return cls(arrays["mean"], arrays["projection"], read_json(path.with_suffix(".json")))


@dataclass(frozen=True, eq=False)
class PairWeights:
    """Weights of labelled pairs of N descriptors; those of each row sum to 1."""

    rows: Ids
    """(pairs,) ascending."""
    columns: Ids
    values: Floats
    count: int
    """N"""

    @classmethod
    def of(cls, rows: Ids, columns: Ids, values: Floats, count: int) -> PairWeights:
        """Positive values, scaled so that those of each row sum to 1."""
        kept = values > 0
        rows, columns, values = rows[kept], columns[kept], values[kept]
        return cls(rows, columns, values / np.bincount(rows, values, count)[rows], count)

    @property
    def pairs(self) -> int:
        """How many pairs have a weight."""
        return len(self.values)

    def subset(self, known: NDArray[np.bool_]) -> PairWeights:
        """Those among the `known` descriptors (N,)."""
        both, place = known[self.rows] & known[self.columns], np.cumsum(known) - 1
        return PairWeights.of(
            place[self.rows[both]], place[self.columns[both]], self.values[both], int(np.count_nonzero(known))
        )

    def sums(self, rows: slice, vectors: Matrix) -> Floats:
        """(rows, k) the weighted sums of each row's partners among vectors (N, k)."""
        first, last = np.searchsorted(self.rows, (rows.start, rows.stop))
        partners, place = np.unique(self.columns[first:last], return_inverse=True)
        near = np.asarray(vectors[partners], np.float64)
        total = np.zeros((rows.stop - rows.start, near.shape[1]))
        for part in _blocks(last - first, 8 * near.shape[1]):
            row = self.rows[first:last][part]
            starts = np.flatnonzero(np.diff(row, prepend=-1))
            terms = near[place[part]] * self.values[first:last][part, None]
            total[row[starts] - rows.start] += np.add.reduceat(terms, starts, axis=0)
        return total


def pair_weights(graph: SimilarityGraph, group: NDArray[Any] | None = None, exponent: float = 1.0) -> PairWeights:
    """Weights ψ^exponent of the graph's pairs of different groups (N,)."""
    weights = graph.psi.astype(np.float64) ** exponent
    if group is not None:
        weights[np.asarray(group)[graph.rows] == np.asarray(group)[graph.indices]] = 0.0
    return PairWeights.of(graph.rows, graph.indices.astype(np.int64), weights, graph.shape[0])


@dataclass(frozen=True, eq=False)
class Moments:
    """Mean and leading directions of some descriptors, and their coordinates in them."""

    mean: Floats
    """(D,)"""
    variances: Floats
    """(k,) along the leading directions, largest first."""
    rank: int
    """Directions that the descriptors span (at least, where only the leading ones were looked for)."""
    mean_variance: float
    """The mean of all D variances."""
    samples: int
    directions: Floats
    """(D, k) the leading directions as columns."""
    descriptors: Matrix
    scratch: Path
    """A folder for coordinates that are too many for memory."""

    @cached_property
    def coordinates(self) -> Matrix:
        """(N, k) the descriptors along the leading directions; in a file of single precision where they are many."""
        shape = (len(self.descriptors), self.directions.shape[1])
        many, file = shape[0] * shape[1] * 8 > _IN_MEMORY_BYTES, self.scratch / "coordinates.npy"
        target: NDArray[Any] = np.lib.format.open_memmap(file, "w+", np.float32, shape) if many else np.empty(shape)
        for rows in _blocks(len(target), 8 * len(self.directions)):
            target[rows] = (np.asarray(self.descriptors[rows], np.float64) - self.mean) @ self.directions
        return target

    def within(self, pairs: PairWeights) -> Floats:
        """C_S (k, k): the mean of (z_i − z_j)(z_i − z_j)ᵀ over labelled rows, each row's pairs weighted to sum to 1."""
        labelled = np.bincount(pairs.rows, minlength=pairs.count) > 0
        if not labelled.any():
            raise InputError(
                "no two images of different groups share a view, so labels cannot shape a whitening; "
                "use labels=none, or check positions, headings and groups"
            )
        share = labelled + np.bincount(pairs.columns, pairs.values, pairs.count)
        k = len(self.variances)
        total = np.zeros((k, k))
        for rows in _blocks(len(labelled), 8 * k * 8):
            block = np.asarray(self.coordinates[rows], np.float64)
            cross = block.T @ pairs.sums(rows, self.coordinates)
            total += block.T @ (block * share[rows][:, None]) - cross - cross.T
        return np.asarray(total / labelled.sum())

    def whitening(
        self,
        dim: int,
        rule: WhiteningRule = PCA,
        *,
        within: Floats | None = None,
        shrinkage: float = 0.0,
        facts: Mapping[str, Any] | None = None,
    ) -> Whitening:
        """The whitening in the `dim` leading directions; `within` is C_S, where the rule wants labels."""
        turned = self.metric(dim, rule, within=within, shrinkage=shrinkage)
        projection = self.directions @ turned
        projection *= np.where(projection.max(axis=0) >= -projection.min(axis=0), 1.0, -1.0)  # fixes each sign
        record = {"samples": self.samples, "rank": self.rank, "shrinkage": shrinkage, **rule.facts()}
        return Whitening(self.mean, projection, {**record, **(facts or {})})

    def metric(
        self, dim: int, rule: WhiteningRule = PCA, *, within: Floats | None = None, shrinkage: float = 0.0
    ) -> Floats:
        """(k, dim) C^(−power/2) on coordinates, over the `dim` leading directions."""
        if dim > len(self.variances):
            raise InputError(f"whitening to {dim} dims was fitted for {len(self.variances)}")
        kept = (1 - shrinkage) * self.variances[:dim] + shrinkage * self.mean_variance
        turned = np.zeros((len(self.variances), dim))
        if rule.labels == "none":
            turned[np.arange(dim), np.arange(dim)] = kept ** (-rule.power / 2)
            return turned
        if within is None:
            raise InputError(f"a whitening by {rule.labels} labels needs labelled pairs")
        mixed = (1 - rule.total_share) * within[:dim, :dim] + rule.total_share * np.diag(kept)
        values, vectors = np.linalg.eigh(mixed)
        turned[:dim] = (vectors * np.maximum(values, RANK_TOLERANCE * values[-1]) ** (-rule.power / 2))[:, ::-1]
        return turned


@contextlib.contextmanager
def moments(descriptors: Matrix, dim: int, *, fewer: bool = False) -> Iterator[Moments]:
    """Mean and `dim` leading directions of (N, D) descriptors, read in blocks.

    fewer: where descriptors span fewer directions, give those instead of an error. Large products are
    computed in single precision, which moves distances by about 1e-5.
    """
    n, d = _checked_shape(descriptors, dim)
    mean = _mean(descriptors)
    single = min(n, d) * float(n) * d > _SINGLE_FROM
    if n <= d and n <= GRAM_ROWS:
        values, directions, total = _by_gram(descriptors, mean, dim, single)
    elif d <= COVARIANCE_DIMS:
        values, directions, total = _by_covariance(descriptors, mean, single)
    else:
        values, directions, total = _by_iteration(descriptors, mean, dim)
    tolerance = SINGLE_RANK_TOLERANCE if single else RANK_TOLERANCE
    rank = int((values > tolerance * values[0]).sum()) if values[0] > 0 else 0
    if fewer:
        dim = min(dim, max(1, rank))
    if dim > rank:
        raise InputError(
            f"whitening to {dim} dims needs descriptors that span as many; {n} descriptors of {d} "
            f"dims span {rank}: ask for at most {rank}, or fit on more images"
        )
    variances, mean_variance = values[:dim] / (n - 1), total / (n - 1) / d
    with tempfile.TemporaryDirectory(prefix="covis-whitening-") as scratch:
        yield Moments(
            mean,
            variances,
            rank,
            mean_variance,
            n,
            np.ascontiguousarray(directions[:, :dim]),
            descriptors,
            Path(scratch),
        )


Decomposition = tuple[Floats, Floats, float]
"""Values largest first, directions (D, k) of at least the first ones, and the sum of all values."""


def _by_gram(x: Matrix, mean: Floats, dim: int, single: bool) -> Decomposition:
    """Through the inner products of few long descriptors."""
    n, d = x.shape
    dtype = np.float32 if single else np.float64
    centred = np.empty((n, d), dtype)
    for rows in _blocks(n, 8 * d):
        centred[rows] = np.asarray(x[rows], np.float64) - mean
    gram = np.zeros((n, n), dtype)
    width = max(256, _BLOCK_BYTES // (8 * n))
    for start in range(0, d, width):
        part = np.ascontiguousarray(centred[:, start : start + width])
        gram += part @ part.T
    values, vectors = _descending(*np.linalg.eigh(gram))
    coefficients = vectors[:, :dim] / np.sqrt(np.maximum(values[:dim], np.finfo(dtype).tiny))
    return values, np.asarray(centred.T @ coefficients.astype(dtype), np.float64), float(np.trace(gram))


def _by_covariance(x: Matrix, mean: Floats, single: bool) -> Decomposition:
    """Through the outer products of descriptors that are not too long."""
    n, d = x.shape
    dtype = np.float32 if single else np.float64
    total = np.zeros((d, d))
    for rows in _blocks(n, 8 * d):
        part: NDArray[Any] = (np.asarray(x[rows], np.float64) - mean).astype(dtype)
        total += part.T @ part
    return *_descending(*np.linalg.eigh(total.astype(dtype))), float(np.trace(total))


def _by_iteration(x: Matrix, mean: Floats, dim: int) -> Decomposition:
    """The leading directions of many long descriptors: a random subspace, multiplied by the covariance in a few passes."""
    n, d = x.shape
    width = min(d, n - 1, int(_OVERSAMPLED * dim) + 16)
    product = np.random.default_rng(0).standard_normal((d, width))
    for _ in range(_PASSES):
        basis = np.linalg.qr(product)[0].astype(np.float32)
        product, squares = np.zeros((d, width)), 0.0
        for rows in _blocks(n, 8 * d):
            part = (np.asarray(x[rows], np.float64) - mean).astype(np.float32)
            product += part.T @ (part @ basis)
            squares += float(np.einsum("nd,nd->", part, part, dtype=np.float64))
    inner = basis.T.astype(np.float64) @ product
    values, vectors = _descending(*np.linalg.eigh((inner + inner.T) / 2))
    return values, basis @ vectors, squares


def _descending(values: NDArray[Any], vectors: NDArray[Any]) -> tuple[Floats, Floats]:
    return values[::-1].clip(min=0).astype(np.float64), vectors[:, ::-1].astype(np.float64)


def _mean(x: Matrix) -> Floats:
    n, d = x.shape
    total = np.zeros(d)
    for rows in _blocks(n, 8 * d):
        part = np.asarray(x[rows])
        if not np.isfinite(part).all():
            raise InputError("whitening was given descriptors that are not finite; look for them with np.isfinite")
        total += part.sum(axis=0, dtype=np.float64)
    return np.asarray(total / n)


def _checked_shape(x: Matrix, dim: int) -> tuple[int, int]:
    if len(x.shape) != 2 or len(x) < 2:
        raise InputError(f"whitening is fitted on (N, D) descriptors with N of at least 2, not on {x.shape}")
    if not 1 <= dim <= x.shape[1]:
        raise InputError(f"whitening to {dim} dims: descriptors have {x.shape[1]}; ask for 1 to {x.shape[1]}")
    return int(x.shape[0]), int(x.shape[1])


def _blocks(count: int, bytes_per_row: int) -> list[slice]:
    """The rows 0 … count − 1 in pieces of bounded size."""
    rows = max(64, _BLOCK_BYTES // max(1, bytes_per_row))
    return [slice(start, min(start + rows, count)) for start in range(0, count, rows)]
