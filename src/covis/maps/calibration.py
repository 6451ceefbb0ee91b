"""How far a map's answers can be trusted, learned by querying it with its own photos as if they were new.

A photo's own group (one walk, one drive) is left out where photos of other groups stand near enough to answer;
otherwise the photos next to it in the order of their names are left out.

Four things are fitted: within what radius, and with what weights, matches vote for a place; ψ̂, how much two views
share, from their descriptor distance; P, the probability that a match stands within `PLACE_M` of the photo, from
distances, votes and walks (`covis.maps.evidence`), falling along the ranking; and the radius that the fused position
stays within, by rank of the errors seen (conformal), among answers of similar P. Photos of one walk are right or wrong
together, so promises are made over walks: reports of P and the threshold of confident answers come from walks that a
fit did not see, and the radius allows for one more bad walk. Where the map's model learned from the poses of its
photos, they are queries to fits that did not see their walk (`covis.maps.fitting`), and photos that it saw are never
queries again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.core import artifacts
from covis.core.arrays import Bools, Floats, Ids
from covis.core.progress import say
from covis.core.tables import counted
from covis.crossval import WalkCrossValidation
from covis.descriptors import Matrix
from covis.images import ImageSet
from covis.logistic import Logistic, expected_calibration_error, reliability
from covis.maps.evidence import (
    Evidence,
    Falling,
    conformal_radius,
    fuse,
    gather,
    threshold_for,
    weights,
)
from covis.maps.settings import CALIBRATION, EVIDENCE, PROMISE
from covis.poses import PLACE_M, Poses
from covis.ranking import Ranking
from covis.search import rank
from covis.search.consensus import SHARPNESS, Consensus


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Photos used as queries to their own map, and the results."""

    queries: Ids
    """(Q,) positions in the map's images."""
    ids: Ids
    """(Q, K) positions of the matches, nearest first; −1 for none."""
    distances: NDArray[np.float32]
    method: str
    """`groups` or `neighbours`: what was left out with each photo."""
    walk: Ids
    """(Q,) the group of each photo, or the stretch of its walk: photos that are right or wrong together."""
    fold: Ids
    """(Q,) whole walks that belong together when a fit is checked."""
    seen: int = 0
    """Descriptors of the map, the first ones, that are of photos whose poses its model learned from."""

    @classmethod
    def empty(cls, seen: int) -> HeldOut:
        """No queries: the model learned from the poses of all `seen` photos, and no fit lacks some of them."""
        none, no_matches = np.zeros(0, np.int64), np.zeros((0, EVIDENCE.context), np.int64)
        return cls(none, no_matches, no_matches.astype(np.float32), "groups", none, none, seen)

    @property
    def ranking(self) -> Ranking:
        """The matches as a search gives them."""
        return Ranking(self.ids, self.distances)

    def some(self, most: int) -> HeldOut:
        """At most `most` of the photos, evenly spread."""
        at = np.unique(np.linspace(0, len(self.queries) - 1, min(most, len(self.queries))).astype(np.int64))
        kept = {name: getattr(self, name)[at] for name in ("queries", "ids", "distances", "walk", "fold")}
        return replace(self, **kept)


def photos_key(images: ImageSet) -> str:
    """Identifies the photos whose poses a whitening learned from: their fingerprint, in the order of names."""
    return images.subset(np.argsort(images.names, kind="stable")).fingerprint()


def hold_out(images: ImageSet, descriptors: Matrix, folds: int = CALIBRATION.folds, *, seen: int = 0) -> HeldOut:
    """Queries a map with up to `CALIBRATION.queries` of its photos; the same photos each time.

    The descriptor of images[i] is the row `images.columns["row"][i]` (ascending) of `descriptors`, which may hold more.
    The first `seen` rows are of photos whose poses the model learned from: they can be matches, but not queries.
    """
    count = len(images)
    rng = np.random.default_rng(0)
    queries = np.sort(rng.permutation(np.flatnonzero(images.columns["row"] >= seen))[: CALIBRATION.queries])
    group = np.asarray(images.group, np.int64)
    if _answerable(images.poses.xy, queries, group) >= CALIBRATION.min_queries:
        ranking = _without_group(images, descriptors, queries)
        fold = WalkCrossValidation.of(group, folds, rng).fold[queries]
        return HeldOut(queries, ranking.ids, ranking.distances, "groups", group[queries], fold)
    ranking = _without_neighbours(images, descriptors, queries)
    place = np.empty(count, np.int64)
    place[_walk_order(images)] = np.arange(count)
    stretch = place[queries] * CALIBRATION.stretches // max(1, count)
    return HeldOut(
        queries, ranking.ids, ranking.distances, "neighbours", stretch, stretch * folds // CALIBRATION.stretches
    )


def _answerable(xy: Floats, queries: Ids, group: Ids) -> int:
    """How many queries have a photo of another group near enough to be right."""
    from scipy.spatial import cKDTree

    if len(np.unique(group)) < 2:
        return 0
    near = cKDTree(xy).query_ball_point(xy[queries], PLACE_M)
    return sum(bool((group[neighbours] != group[q]).any()) for q, neighbours in zip(queries, near, strict=True))


def _without_group(images: ImageSet, descriptors: Matrix, queries: Ids) -> Ranking:
    rows, group = images.columns["row"], np.asarray(images.group, np.int64)
    codes = np.full(len(descriptors), -1, np.int64)
    codes[rows] = group
    ranking = rank(
        descriptors[rows[queries]], descriptors, EVIDENCE.context, group[queries], codes, "other", allowed=rows
    )
    ids = np.where(ranking.ids >= 0, np.searchsorted(rows, np.maximum(ranking.ids, 0)), -1)
    return Ranking(ids, ranking.distances)


def _without_neighbours(images: ImageSet, descriptors: Matrix, queries: Ids) -> Ranking:
    """Searches a little deeper, then takes out the photos next to each in its walk."""
    rows = images.columns["row"]
    ranking = rank(
        descriptors[rows[queries]], descriptors, EVIDENCE.context + 2 * CALIBRATION.neighbours + 1, allowed=rows
    )
    ids = np.where(ranking.ids >= 0, np.searchsorted(rows, np.maximum(ranking.ids, 0)), -1)
    place = np.empty(len(images), np.int64)
    place[_walk_order(images)] = np.arange(len(images))
    group = np.asarray(images.group)
    beside = np.abs(place[ids] - place[queries][:, None]) <= CALIBRATION.neighbours
    barred = (ids < 0) | (beside & (group[ids] == group[queries][:, None])) | (ids == queries[:, None])
    order = np.argsort(barred, axis=1, kind="stable")[:, : EVIDENCE.context]
    barred = np.take_along_axis(barred, order, 1)
    ids = np.where(barred, -1, np.take_along_axis(ids, order, 1))
    return Ranking(ids, np.where(barred, np.inf, np.take_along_axis(ranking.distances, order, 1)))


def _walk_order(images: ImageSet) -> Ids:
    """Photos by group, then by name, which is the order they were taken in on most cameras."""
    return np.lexsort((images.names, images.group))


RATE = 0.9
"""Share of photos whose true position should lie within the stated radius."""
_STEP = 1 - 1e-4
"""P falls at least by this factor from one match to the next."""


@dataclass(frozen=True)
class Overlap:
    """ψ̂ from descriptor distance: GCL's own line 1 − d/τ, or a falling function fitted to views of known overlap."""

    margin: float | None = None
    fitted: Falling | None = None
    mean_error: float | None = None
    """Mean |ψ̂ − ψ| over held-out matches whose headings are known."""

    def __call__(self, distances: Floats) -> Floats:
        """ψ̂ in [0, 1] of each distance; infinitely far shares nothing."""
        if self.margin is not None:
            return np.clip(1.0 - distances / self.margin, 0.0, 1.0)
        assert self.fitted is not None
        return np.clip(self.fitted(np.minimum(distances, 2.0)), 0.0, 1.0)


@dataclass(frozen=True, eq=False)
class Calibration:
    """What a map knows of its own answers."""

    photos: int
    """Photos of the map when it was fitted."""
    overlap: Overlap | None
    probability: Logistic | None
    """P of the first match, from `Evidence.first`."""
    others: Logistic | None = None
    """P of the matches behind it as a share of the first match's P, from `Evidence.about_others`."""
    radius_of_agreement_m: float = PLACE_M
    sharpness: float = SHARPNESS
    """How the map's matches vote (`covis.search.Consensus`)."""
    method: str = ""
    note: str = ""
    """Why there is no probability."""
    held_out: Floats | None = None
    """(Q, 4) of each photo asked: P by a fit without its fold, whether it was right, metres to its fused position, walk."""
    changes: int = 0
    """Photos added or removed since."""
    seen: int = 0
    """Descriptors of the map, the first ones, that are of photos whose poses its model learned from."""

    def consensus(self, poses: Poses) -> Consensus:
        """How matches with the poses of the map agree on a place."""
        return Consensus(poses, EVIDENCE.context, self.radius_of_agreement_m, sharpness=self.sharpness)

    def judge(self, evidence: Evidence) -> tuple[Ids, Floats]:
        """(Q, K) the order of the matches by P, and P in that order, falling; NaN where there is no match."""
        matched = evidence.found
        assert self.probability is not None
        best = self.probability(evidence.first)
        p = np.broadcast_to(best[:, None], matched.shape).copy()
        if self.others is not None and matched.shape[1] > 1:
            others = self.others(evidence.about_others(best)[:, 1:])
            p[:, 1:] = best[:, None] * others
        p[~matched] = np.nan
        order = np.argsort(np.where(matched, -p, np.inf), axis=1, kind="stable")
        p = np.take_along_axis(p, order, 1)
        for j in range(1, p.shape[1]):  # two copies of a photo are equally likely, yet one is named first
            p[:, j] = np.minimum(p[:, j], _STEP * p[:, j - 1])
        return order, p

    @property
    def calibration_error(self) -> float | None:
        """Expected calibration error of P on held-out photos."""
        return None if self.held_out is None else expected_calibration_error(self.held_out[:, 0], self.held_out[:, 1])

    def reliability(self) -> list[dict[str, float]]:
        """P beside the share that was right, on held-out photos."""
        return [] if self.held_out is None else reliability(self.held_out[:, 0], self.held_out[:, 1])

    def threshold(self, precision: float) -> float | None:
        """P from which on an answer is confident; None where there is not enough calibration data for this precision."""
        if self.held_out is not None and precision not in self._thresholds:
            probability, right, _, walk = self.held_out.T
            self._thresholds[precision] = threshold_for(precision, probability, right, walk.astype(np.int64))
        return self._thresholds.get(precision)

    def promised(self) -> float | None:
        """The highest of `PROMISE.precisions` that the held-out photos suffice for; None if they suffice for none."""
        return next((precision for precision in PROMISE.precisions if self.threshold(precision) is not None), None)

    @cached_property
    def _thresholds(self) -> dict[float, float | None]:
        """Thresholds computed so far: all photos of a call need the same one."""
        return {}

    def radius_m(self, probability: Floats, rate: float = RATE) -> Floats:
        """(Q,) radius around fused positions, by the errors of held-out answers of similar P; NaN where unknown."""
        if self.held_out is None:
            return np.full(len(probability), np.nan)
        edges = self._edges()
        bins = np.searchsorted(edges, self.held_out[:, 0], side="right")
        radii = [self._radius_among(bins, b, rate) for b in range(len(edges) + 1)]
        known = np.array([np.nan if r is None else r for r in radii])
        return known[np.searchsorted(edges, probability, side="right")]

    def _radius_among(self, bins: Ids, alike: int, rate: float) -> float | None:
        """Of the answers in bin `alike` of `bins` (Q,).

        If these are of too few walks, answers of bins with lower P, whose errors are larger, are added.
        """
        assert self.held_out is not None
        for lowest in range(alike, -1, -1):
            error_m, walk = self.held_out[(bins >= lowest) & (bins <= alike), 2:].T
            radius = conformal_radius(error_m, rate, walk.astype(np.int64))
            if radius is not None:
                return radius
        return None

    def _edges(self) -> Floats:
        """Borders of P between bins of answers, each with errors of its own."""
        assert self.held_out is not None
        count, known = len(self.held_out), np.sort(self.held_out[:, 0])
        bins = int(np.clip(count // CALIBRATION.bin_queries, 1, CALIBRATION.max_bins))
        # np.quantile and np.unique would load masked arrays, for a tenth of a second
        edges = np.interp(np.arange(1, bins) / bins * (count - 1), np.arange(count), known)
        return np.array(sorted(set(edges.tolist())))

    def summary(self, precision: float | None = None) -> dict[str, Any]:
        """For reports, as plain values for JSON; `precision` None: the highest promised, else the lowest."""
        held = self.held_out
        precision = precision or self.promised() or PROMISE.precisions[-1]
        threshold = self.threshold(precision)
        facts: dict[str, Any] = {"calibrated": held is not None, "note": self.note, "method": self.method or None,
                                 "overlap": None if self.overlap is None else _overlap_facts(self.overlap)}  # fmt: skip
        if held is None:
            return facts
        confident = held[:, 0] >= (2.0 if threshold is None else threshold)
        return facts | {
            "queries": len(held), "right_within_m": PLACE_M, "right": float(held[:, 1].mean()),
            "expected_calibration_error": self.calibration_error, "reliability": self.reliability(),
            "precision": precision, "threshold": threshold, "confident": float(confident.mean()),
            "median_error_m": float(np.median(held[:, 2])),
            "consensus": {"radius_m": self.radius_of_agreement_m, "sharpness": self.sharpness},
        }  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return asdict(self) | {"held_out": None if self.held_out is None else self.held_out.tolist()}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Calibration:
        """Back from `to_dict`."""
        overlap = record["overlap"]
        if overlap is not None:
            fitted = overlap["fitted"]
            curve = None if fitted is None else Falling(tuple(fitted["x"]), tuple(fitted["y"]))
            overlap = Overlap(overlap["margin"], curve, overlap["mean_error"])
        first, others = (
            None if record[k] is None else Logistic.from_dict(record[k]) for k in ("probability", "others")
        )
        held = None if record["held_out"] is None else np.array(record["held_out"], np.float64)
        plain = ("photos", "radius_of_agreement_m", "sharpness", "method", "note", "changes", "seen")
        return cls(
            overlap=overlap, probability=first, others=others, held_out=held,
            **{key: record[key] for key in plain},
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Recalibration:
    """How the calibration of a map follows its photos."""

    margin: float | None = None
    """GCL's τ, see `gcl_margin`."""
    wanted: bool = True
    """Whether it may be fitted anew; else the record stays as it is."""
    held: HeldOut | None = None
    """Results of the map's photos as queries, if they are known already."""

    def __call__(
        self, old: Mapping[str, Any] | None, changes: int, images: ImageSet, descriptors: Matrix
    ) -> Mapping[str, Any] | None:
        """The record after `changes` photos came or went: as it was, or fitted anew once a tenth of the photos changed.

        Where the model learned from the poses of photos, only later photos can be queries; until there are enough, the
        old calibration stands.
        """
        if not self.wanted:
            return old
        if self.held is not None:
            return calibrate(images, descriptors, self.margin, held=self.held).to_dict()
        if old is None or old["photos"] < CALIBRATION.min_queries:
            return calibrate(images, descriptors, self.margin).to_dict()
        changed, seen = old["changes"] + changes, old["seen"]
        later = int((images.columns["row"] >= seen).sum())
        if changed <= CALIBRATION.recalibrate_share * old["photos"] or (seen and later < CALIBRATION.min_later):
            return {**old, "changes": changed}
        return calibrate(images, descriptors, self.margin, seen=seen).to_dict()


def compacted(record: Mapping[str, Any] | None, rows: Ids) -> dict[str, Any] | None:
    """The calibration record after the descriptors in `rows` (N,), ascending, were moved together without gaps."""
    if record is None:
        return None
    return {**record, **({"seen": int((rows < record["seen"]).sum())} if record.get("seen") else {})}


def calibrate(
    images: ImageSet,
    descriptors: Matrix,
    margin: float | None = None,
    *,
    held: HeldOut | None = None,
    seen: int = 0,
    inliers: Callable[[Ids, Ids], Ids] | None = None,
) -> Calibration:
    """Fits all that the photos of a map allow; `images` and `descriptors` as `hold_out` takes them, `margin` is GCL's τ.

    held: results of queries to fits that did not see them, if known already. seen: rows that the model learned from.
    inliers: from photos (Q,) and their matches (Q, K) to local features in common, which P then takes into account.
    """
    seen = seen if held is None else held.seen
    line = None if margin is None else Overlap(margin)
    photos = len(images)
    if photos < CALIBRATION.min_queries:
        note = f"the map has only {counted(photos, 'photo')} ({CALIBRATION.min_queries} are needed to calibrate it)"
        return Calibration(photos, line, None, note=note, seen=seen)
    held = hold_out(images, descriptors, seen=seen) if held is None else held
    if not len(held.queries):
        note = (
            "the map's model learned from the poses of these photos, so they cannot be used for calibration; "
            "index them without --model"
        )
        return Calibration(photos, line, None, note=note, seen=seen)
    poses, asked = images.poses, images.poses.subset(held.queries)
    agreement = Consensus(poses, EVIDENCE.context).fit(held.ranking, asked)
    evidence = gather(agreement, held.ranking, np.asarray(images.group, np.int64))
    if inliers is not None:
        evidence = evidence.with_inliers(inliers(held.queries, evidence.ranking.ids[:, : EVIDENCE.inlier_matches]))
    overlap = fit_overlap(poses, held, margin)
    right = evidence.found & (np.hypot(*np.moveaxis(evidence.xy - asked.xy[:, None], 2, 0)) <= PLACE_M)
    answered = evidence.found[:, 0]
    fewest = min(int(right[answered, 0].sum()), int((~right[answered, 0]).sum()))
    common: dict[str, Any] = {
        "radius_of_agreement_m": agreement.radius_m, "sharpness": agreement.sharpness, "method": held.method, "seen": seen
    }  # fmt: skip
    if fewest < CALIBRATION.min_class:
        kind = "correctly" if fewest == int(right[answered, 0].sum()) else "wrongly"
        note = f"only {fewest} of the map's {int(answered.sum())} held-out photos are located {kind}; {CALIBRATION.min_class} are needed"
        return Calibration(photos, overlap, None, note=note, **common)
    scored = _out_of_fold(evidence.first, right[:, 0], answered, held)
    distances = evidence.ranking.distances.astype(np.float64)
    shared = None if overlap is None else overlap(distances)
    fused = fuse(evidence.xy, evidence.heading, weights(distances, shared), evidence.found)
    error_m = np.hypot(*(fused.xy - asked.xy).T)
    table = np.round(np.column_stack([scored, right[:, 0], error_m, held.walk])[answered], 6)
    first = Logistic.fit_ceiling(evidence.first[answered], right[answered, 0], held.walk[answered])
    others = _fit_others(evidence, scored, right)
    result = Calibration(photos, overlap, first, others, held_out=table, **common)
    _tell(result)
    return result


def _fit_others(evidence: Evidence, scored: Floats, right: Bools) -> Logistic | None:
    """P of the matches behind the first, given P (Q,) of the first by fits that did not see the photo."""
    behind = evidence.found.copy()
    behind[:, 0] = False
    if min(int(right[behind].sum()), int((~right[behind]).sum())) < CALIBRATION.min_class:
        return None
    cap = np.broadcast_to(scored[:, None], behind.shape)[behind]
    return Logistic.fit_below(evidence.about_others(scored)[behind], right[behind], cap)


def _out_of_fold(first: Floats, right: Bools, answered: Bools, held: HeldOut) -> Floats:
    """(Q,) out-of-fold probability of the first match."""
    scored = np.empty(len(right))
    for known, inside in WalkCrossValidation(held.fold).splits():
        others = answered & known if (answered & known).any() else answered
        scored[inside] = Logistic.fit_ceiling(first[others], right[others], held.walk[others])(first[inside])
    return scored


def gcl_margin(model: Path) -> float | None:
    """τ of a model trained with the generalised contrastive loss, whose distances then mean overlap; None otherwise.

    `model` is its folder. Whitening moves distances, so a whitened model has no such line; nor has a pretrained network
    that was used unchanged, whatever recipe it was chosen by.
    """
    card = artifacts.read_json(model / "card.json")
    loss = (card.get("recipe") or {}).get("loss") or {}
    trained = card.get("training") is not None and card.get("whitening") is None
    if not trained or loss.get("type") != "GeneralizedContrastive":
        return None
    return float(loss["margin"])


def fit_overlap(poses: Poses, held: HeldOut, margin: float | None) -> Overlap | None:
    """ψ̂ by GCL's line, or fitted where headings give the true ψ of enough held-out matches; None otherwise."""
    from covis.labels import fov_similarity  # numba takes half a second to load, and only fitting needs it

    matched = held.ids >= 0
    near, asked = held.ids[matched], np.broadcast_to(held.queries[:, None], held.ids.shape)[matched]
    known = ~np.isnan(poses.heading[near]) & ~np.isnan(poses.heading[asked])
    distances, near, asked = held.distances[matched][known].astype(np.float64), near[known], asked[known]
    line = None if margin is None else Overlap(margin)
    if len(near) < CALIBRATION.min_pairs:
        return line
    psi = fov_similarity(poses.xy[asked], poses.heading[asked], poses.xy[near], poses.heading[near])
    chosen = line or Overlap(fitted=Falling.fit(distances, psi))
    return Overlap(chosen.margin, chosen.fitted, float(np.abs(chosen(distances) - psi).mean()))


def _overlap_facts(overlap: Overlap) -> dict[str, Any]:
    method = "fitted" if overlap.margin is None else "gcl"
    return {"method": method, "margin": overlap.margin, "mean_error": overlap.mean_error}


def _tell(result: Calibration) -> None:
    facts = result.summary()
    sure = "no precision of 80 % or more can be promised"
    if facts["threshold"] is not None:
        sure = f"{100 * facts['confident']:.0f} % of answers are confident at a precision of {100 * facts['precision']:.0f} %"
    say(
        f"calibrated on {facts['queries']} held-out photos: {100 * facts['right']:.1f} % correct within {PLACE_M:g} m, "
        f"expected calibration error {facts['expected_calibration_error']:.3f}, {sure}"
    )
