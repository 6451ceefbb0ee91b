"""Evidence for the matches of a photo, and the probabilities that are derived from it.

Scores become probabilities by logistic (`covis.logistic`) and by monotone regression.
The evidence is computed in the same way when a map calibrates itself and when it answers, so that a probability learned
from the one holds for the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Bools, Floats, Ids
from covis.descriptors import Matrix
from covis.maps.settings import EVIDENCE, PROMISE
from covis.poses import PLACE_M
from covis.ranking import Ranking
from covis.search import Consensus


@dataclass(frozen=True)
class Falling:
    """A function that never rises, as knots joined by straight lines; flat outside them."""

    x: tuple[float, ...]
    y: tuple[float, ...]

    @classmethod
    def fit(cls, x: Floats, y: Floats) -> Falling:
        """The least-squares falling function of y (N,) over x (N,): neighbours that rise are pooled."""
        order = np.argsort(x, kind="stable")
        blocks: list[list[float]] = []  # sum of x, sum of y, count
        for a, b in zip(x[order].tolist(), y[order].tolist(), strict=True):
            blocks.append([a, b, 1.0])
            while len(blocks) > 1 and blocks[-2][1] / blocks[-2][2] <= blocks[-1][1] / blocks[-1][2]:
                last = blocks.pop()
                blocks[-1] = [p + q for p, q in zip(blocks[-1], last, strict=True)]
        knots = [(sx / n, sy / n) for sx, sy, n in blocks]
        return cls(tuple(round(k[0], 6) for k in knots), tuple(round(k[1], 6) for k in knots))

    def __call__(self, x: Floats) -> Floats:
        """The function at x."""
        return np.asarray(np.interp(x, self.x, self.y))


def threshold_for(
    precision: float,
    probability: Floats,
    right: NDArray[Any],
    walk: NDArray[np.int64],
    expected: Floats | None = None,
) -> float | None:
    """The probability from which on answers are right at `precision` on unseen walks; None if there is none.

    probability, right, walk (N,): of answers. expected (N,): their probabilities of being right, where
    `probability` also counts that the map may not have the place. The threshold is the lowest above which enough answers
    were right, counting one more wrong one, and enough are expected to be right, which varies less by chance. Where fewer
    than `PROMISE.few_wrong` answers were wrong, three more are counted (the rule of three).
    As it is picked for reaching the precision, both aim a little higher. Wrong answers come many at once, from one
    walk, so the precision must also be reached with three quarters of a standard error over walks to spare. And it
    must cover a quarter of the answers, since a promise for a handful of photos is worthless.
    """
    if not len(probability):
        return None
    order = np.argsort(-probability, kind="stable")
    p, hit = probability[order], np.asarray(right, np.float64)[order]
    believed = (probability if expected is None else expected)[order]
    count = np.arange(1, len(p) + 1)
    share = hit.cumsum() / count
    aim = precision + PROMISE.spare * (1 - precision)
    more_wrong = 3 if (hit == 0).sum() < PROMISE.few_wrong else 1
    enough = (
        (hit.cumsum() / (count + more_wrong) >= aim)
        & (believed.cumsum() / count >= aim)
        & (count >= PROMISE.min_share * len(p))
    )
    enough &= share - PROMISE.standard_errors * _standard_error(hit, share, walk[order]) >= precision
    # Answers of equal probability are accepted or rejected together.
    at = np.flatnonzero(enough & np.append(np.diff(p) != 0, True))
    return float(p[at[-1]]) if len(at) else None


def _standard_error(hit: Floats, share: Floats, walk: NDArray[np.int64]) -> Floats:
    """(N,) standard error of the share of hits among the first n answers, n = 1 … N, whole walks drawn together."""
    variance = np.zeros(len(hit))
    for one in set(walk.tolist()):  # np.unique would load masked arrays, for a tenth of a second
        mine = walk == one
        variance += ((mine * hit).cumsum() - share * mine.cumsum()) ** 2
    return np.sqrt(variance) / np.arange(1, len(hit) + 1)


def conformal_radius(errors: Floats, rate: float, walk: NDArray[np.int64]) -> float | None:
    """The radius that an error on the next walk stays within at `rate`, by the rank of past ones; None if too few.

    errors (N,) metres, walk (N,). Errors of one walk are alike, so one more walk, not one more photo, is counted as
    outside: 90 % needs at least nine walks.
    """
    if not len(errors):
        return None
    rank = int(np.ceil(len(errors) * (1 + 1 / len(set(walk.tolist()))) * rate - 1e-9))
    return None if rank > len(errors) or not rank else float(np.sort(errors)[rank - 1])


# Matches that stand at one place


@dataclass(frozen=True)
class Fused:
    """Positions of queries, one each."""

    xy: Floats
    """(Q, 2) metres; NaN where a query has no match."""
    heading: Floats
    """(Q,) degrees, the weighted mean direction; NaN where no match at the place has one."""
    count: NDArray[np.int64]
    """(Q,) matches that each was fused from."""


def weights(distances: Floats, overlap: Floats | None) -> Floats:
    """(Q, K) weight of each match: its ψ̂, or without one the inverse square of its descriptor distance."""
    if overlap is not None:
        return np.asarray(np.maximum(overlap, EVIDENCE.overlap_floor))
    return np.asarray(1.0 / np.maximum(distances, EVIDENCE.distance_floor) ** 2)


def fuse(xy: Floats, heading: Floats, weight: Floats, matched: NDArray[np.bool_]) -> Fused:
    """Fuses each query's matches: xy (Q, K, 2), heading (Q, K), weight (Q, K), matched (Q, K), best first."""
    if not xy.shape[1]:
        empty = np.full((len(xy), 2), np.nan)
        return Fused(empty, empty[:, 0].copy(), np.zeros(len(xy), np.int64))
    used = matched & at_place(xy, matched)
    share = np.where(used, weight, 0.0)
    total = share.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = (np.where(used[..., None], xy, 0.0) * share[..., None]).sum(axis=1) / total[:, None]
    known = used & ~np.isnan(heading)
    turn = np.radians(np.where(known, heading, 0.0))
    east, north = ((np.where(known, share, 0.0) * f(turn)).sum(axis=1) for f in (np.sin, np.cos))
    # Opposite headings cancel out: then there is no direction to speak of.
    clear = np.hypot(east, north) > 1e-6 * np.maximum(total, 1e-300)
    direction = np.where(clear, np.degrees(np.arctan2(east, north)) % 360.0, np.nan)
    return Fused(mean, direction, used.sum(axis=1))


def at_place(xy: Floats, matched: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(Q, K) which matches lie at the place of the first."""
    offset = xy - xy[:, :1]
    return np.asarray(matched & matched[:, :1] & (np.hypot(offset[..., 0], offset[..., 1]) <= PLACE_M))


# What an answer is judged by


FAR = 2.0
"""Distance of a match that does not exist: no two unit vectors are farther apart."""


@dataclass(frozen=True, eq=False)
class Found:
    """The matches of photos, and how much these resemble each other."""

    ranking: Ranking
    """(Q, `EVIDENCE.context`), nearest first."""
    alike: Floats
    """(Q,) mean similarity of two of the matches: high where the map has many photos of what the photo shows, low where
    they only have something in common with it, each something else."""

    @classmethod
    def of(cls, ranking: Ranking, descriptors: Matrix, rows: Ids) -> Found:
        """A search's results; the descriptor of photo i of the map is the row `rows[i]` of `descriptors`."""
        ranking = ranking.top(EVIDENCE.context)
        alike = np.zeros(len(ranking))
        for q in range(len(ranking)):
            ids, _ = ranking.row(q)
            pairs = len(ids) * (len(ids) - 1)
            total = np.asarray(descriptors[rows[ids]], np.float64).sum(axis=0)
            alike[q] = (total @ total - len(ids)) / pairs if pairs else 0.0
        return cls(ranking, alike)

    @classmethod
    def none(cls, count: int) -> Found:
        """No matches yet, for `count` photos."""
        shape = (count, EVIDENCE.context)
        return cls(Ranking(np.full(shape, -1), np.full(shape, np.inf, np.float32)), np.zeros(count))

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """As plain arrays."""
        return {"ids": self.ranking.ids, "distances": self.ranking.distances, "alike": self.alike}

    def subset(self, at: Ids | Bools) -> Found:
        """Of some of the photos."""
        return Found(self.ranking.subset(at), self.alike[at])

    def note(self, at: Ids, found: Found) -> None:
        """Writes the matches of the photos `at`."""
        self.ranking.ids[at, : found.ranking.k] = found.ranking.ids
        self.ranking.distances[at, : found.ranking.k] = found.ranking.distances
        self.alike[at] = found.alike


@dataclass(frozen=True, eq=False)
class Evidence:
    """The first `EVIDENCE.context` matches of photos, the agreed one first, and the evidence for each."""

    ranking: Ranking
    """(Q, K)"""
    xy: Floats
    """(Q, K, 2)"""
    heading: Floats
    """(Q, K)"""
    first: Floats
    """(Q, 8) of the first match's place: nearest distance; lead over the next other place, also its root; share of
    matches and of votes, as log-odds; log of the number of walks; spread of the distances; similarity of the matches to
    each other. (Q, 10) with inliers."""
    other: Floats
    """(Q, K, 5) of each match: whether at the first's place; metres from the first if so, in place radii; lag behind
    the first's place; share of matches at its own place and of votes, as log-odds."""

    @property
    def found(self) -> Bools:
        """(Q, K) where there is a match."""
        return np.asarray(self.ranking.ids >= 0)

    def with_inliers(self, counts: Ids) -> Evidence:
        """Adds inliers `counts` (Q, K) of the first K matches: log of the most at the first's place, and elsewhere."""
        looked, same = self.found[:, : counts.shape[1]], at_place(self.xy, self.found)[:, : counts.shape[1]]
        most = [np.where(where, counts, 0).max(axis=1, initial=0) for where in (same, looked & ~same)]
        return replace(self, first=np.column_stack([self.first, *np.log1p(most)]))

    def presence(self, bank: Floats) -> Floats:
        """(Q, 9) what tells whether the map has a photo's place: `first`, and how much nearer the map is than the bank.

        bank (Q,): the distance of each photo to the nearest picture of the bank.
        """
        nearest = np.where(self.found, self.ranking.distances, FAR).min(axis=1, initial=FAR)
        return np.column_stack([self.first[:, :8], bank - nearest])

    def about_others(self, probability: Floats) -> Floats:
        """(Q, K, 7) `other` with the log-odds of the first match's P (Q,), separately for its place and for others."""
        odds = np.broadcast_to(log_odds(probability, 1e-4)[:, None], self.other.shape[:2])
        same = self.other[..., 0]
        return np.concatenate([self.other, np.stack([same * odds, (1 - same) * odds], axis=2)], axis=2)


def gather(consensus: Consensus, found: Found, group: Ids) -> Evidence:
    """The evidence for a search's results: positions in a map whose photos have the poses of `consensus` and `group`."""
    agreed = consensus(found.ranking)
    poses, ids, matched = consensus.poses, agreed.ids, agreed.ids >= 0
    if not len(poses) or not agreed.k:
        q, k = ids.shape
        return Evidence(agreed, np.zeros((q, k, 2)), np.zeros((q, k)), np.zeros((q, 8)), np.zeros((q, k, 5)))
    xy, d = poses.xy[ids], np.where(matched, agreed.distances, FAR).astype(np.float64)
    gap = np.hypot(*np.moveaxis(xy[:, :, None] - xy[:, None], 3, 0))
    together = (gap <= PLACE_M) & matched[:, None] & matched[:, :, None]
    weight, alike = _votes(consensus, agreed)
    heard = np.maximum(weight.sum(axis=1, keepdims=True), 1e-12)
    share = log_odds((together * weight[:, None]).sum(axis=2) / heard, EVIDENCE.share_floor)
    votes = log_odds((alike * weight[:, None]).sum(axis=2) / heard, EVIDENCE.share_floor)
    nearest = np.where(together, d[:, None], FAR).min(axis=2)
    # Where all matches are at one place, the next other place is at least as far as the last of them.
    last = np.where(matched, d, 0.0).max(axis=1)
    beyond = np.where(matched[:, None] & ~together, d[:, None], FAR).min(axis=2)
    lead = np.minimum(beyond[:, 0], last) ** 2 - nearest[:, 0] ** 2
    spread = last**2 - np.where(matched, d, FAR).min(axis=1) ** 2
    walks = np.log(np.maximum(_walks(together[:, 0], group[ids]), 1))
    first = [nearest[:, 0], lead, np.sqrt(lead.clip(min=0)), share[:, 0], votes[:, 0], walks, spread, found.alike]
    same = together[:, 0].astype(np.float64)
    other = [same, np.where(together[:, 0], gap[:, 0], 0.0) / PLACE_M, d**2 - nearest[:, :1] ** 2, share, votes]
    return Evidence(agreed, xy, poses.heading[ids], np.stack(first, axis=1), np.stack(other, axis=2))


def log_odds(share: Floats, floor: float) -> Floats:
    """log(p / (1 − p)), p kept `floor` away from 0 and 1."""
    kept = np.clip(share, floor, 1 - floor)
    return np.asarray(np.log(kept / (1 - kept)))


def _votes(consensus: Consensus, agreed: Ranking) -> tuple[Floats, Floats]:
    """(Q, K) weights and (Q, K, K) agreement of matches whose first need not be the nearest."""
    order = np.argsort(agreed.distances, axis=1, kind="stable")
    nearest = agreed.reordered(order)
    weight = np.empty(order.shape)
    np.put_along_axis(
        weight, order, replace(consensus, sharpness=EVIDENCE.vote_sharpness).weights(nearest.ids, nearest.distances), 1
    )
    return weight, consensus.alike(agreed.ids)


def _walks(together: Bools, group: Ids) -> Ids:
    """(Q,) the number of groups (Q, K) among the matches at a place (Q, K)."""
    seen = together[:, None] & (group[:, :, None] == group[:, None])
    before = np.tril(np.ones(seen.shape[1:], bool), -1)
    return np.asarray((together & ~(seen & before).any(axis=2)).sum(axis=1))
