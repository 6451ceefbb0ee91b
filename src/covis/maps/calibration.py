"""How far a map's answers can be trusted, learned from its own photos asked as if they were new.

A photo's own group (one walk, one drive) is left out where photos of other groups stand near enough to answer;
otherwise the photos next to it in the order of their names are.

Three things are fitted: ψ̂, how much two views share, from their descriptor distance; P, the probability that a match
stands within `PLACE_RADIUS_M` of the photo, from distance, the lead over the next other place, and how many of the
matches agree; and the radius that the fused position stays within, by rank of the errors seen (conformal), among
answers of similar P. Photos of one walk are right or wrong together, so what is promised counts walks: reports of P and
the bar of confident answers come from walks that a fit did not see, and the radius allows for one bad walk more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis import artifacts
from covis.arrays import Bools, Floats, Ids
from covis.descriptors import Matrix
from covis.images import ImageSet
from covis.maps.fusion import PLACE_RADIUS_M, fuse, weights
from covis.maps.probability import (
    Falling,
    Logistic,
    conformal_radius,
    expected_calibration_error,
    reliability,
    threshold_for,
)
from covis.poses import Poses
from covis.progress import say
from covis.ranking import Ranking
from covis.search import Consensus, rank

CONTEXT = 20
"""Matches of a photo that its answer is judged by."""
QUERIES = 2000
"""So many photos are asked at most."""
NEIGHBOURS = 2
"""Photos before and after in a walk that are left out with a photo, where no other walk can answer."""
STRETCHES = 20
"""Parts of a lonely walk that stand for walks."""
MIN_QUERIES = 50


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Photos asked of their own map, and what it found."""

    queries: Ids
    """(Q,) positions in the map's images."""
    ids: Ids
    """(Q, K) positions of the matches in the order of answers; −1 for none."""
    distances: Floats
    method: str
    """`groups` or `neighbours`: what was left out with each photo."""
    walk: Ids
    """(Q,) the group of each photo, or the stretch of its walk: photos that are right or wrong together."""
    fold: Ids
    """(Q,) whole walks that belong together when a fit is checked."""


def hold_out(images: ImageSet, descriptors: Matrix, folds: int = 5) -> HeldOut:
    """Asks up to `QUERIES` photos of a map; the same photos each time.

    The descriptor of images[i] is the row `images.columns["row"][i]` (ascending) of `descriptors`, which may hold more.
    """
    count = len(images)
    rng = np.random.default_rng(0)
    queries = np.sort(rng.permutation(count)[:QUERIES])
    group = np.asarray(images.group, np.int64)
    agree = Consensus(images.poses, CONTEXT)
    if _answerable(images.poses.xy, queries, group) >= MIN_QUERIES:
        found = agree(_without_group(images, descriptors, queries))
        part = rng.permutation(int(group.max()) + 1)[group[queries]] % folds
        return HeldOut(queries, found.ids, found.distances.astype(np.float64), "groups", group[queries], part)
    found = agree(_without_neighbours(images, descriptors, queries))
    place = np.empty(count, np.int64)
    place[_walk_order(images)] = np.arange(count)
    stretch = place[queries] * STRETCHES // max(1, count)
    distances = found.distances.astype(np.float64)
    return HeldOut(queries, found.ids, distances, "neighbours", stretch, stretch * folds // STRETCHES)


def _answerable(xy: Floats, queries: Ids, group: Ids) -> int:
    """How many photos have one of another group near enough to be right."""
    from scipy.spatial import cKDTree

    if len(np.unique(group)) < 2:
        return 0
    near = cKDTree(xy).query_ball_point(xy[queries], PLACE_RADIUS_M)
    return sum(bool((group[found] != group[q]).any()) for q, found in zip(queries, near, strict=True))


def _without_group(images: ImageSet, descriptors: Matrix, queries: Ids) -> Ranking:
    rows, group = images.columns["row"], np.asarray(images.group, np.int64)
    codes = np.full(len(descriptors), -1, np.int64)
    codes[rows] = group
    found = rank(descriptors[rows[queries]], descriptors, CONTEXT, group[queries], codes, "other", allowed=rows)
    ids = np.where(found.ids >= 0, np.searchsorted(rows, np.maximum(found.ids, 0)), -1)
    return Ranking(ids, found.distances)


def _without_neighbours(images: ImageSet, descriptors: Matrix, queries: Ids) -> Ranking:
    """Searches a little deeper, then takes out the photos next to each in its walk."""
    rows = images.columns["row"]
    found = rank(descriptors[rows[queries]], descriptors, CONTEXT + 2 * NEIGHBOURS + 1, allowed=rows)
    ids = np.where(found.ids >= 0, np.searchsorted(rows, np.maximum(found.ids, 0)), -1)
    place = np.empty(len(images), np.int64)
    place[_walk_order(images)] = np.arange(len(images))
    group = np.asarray(images.group)
    beside = np.abs(place[ids] - place[queries][:, None]) <= NEIGHBOURS
    barred = (ids < 0) | (beside & (group[ids] == group[queries][:, None])) | (ids == queries[:, None])
    order = np.argsort(barred, axis=1, kind="stable")[:, :CONTEXT]
    barred = np.take_along_axis(barred, order, 1)
    ids = np.where(barred, -1, np.take_along_axis(ids, order, 1))
    return Ranking(ids, np.where(barred, np.inf, np.take_along_axis(found.distances, order, 1)))


def _walk_order(images: ImageSet) -> Ids:
    """Photos by group, then by name, which is the order they were taken in on most cameras."""
    return np.lexsort((images.names, images.group))


PRECISION = 0.99
"""Share of confident answers that shall be right."""
PROMISES = (0.99, 0.95, 0.9, 0.8)
"""Precisions that a map may promise, the highest first."""
RATE = 0.9
"""Share of photos whose true position shall lie within the stated radius."""
_FOLDS = 5
_MIN_CLASS = 10
_MIN_PAIRS = 200
_BIN_QUERIES = 40
_MAX_BINS = 5
_RECALIBRATE_SHARE = 0.1


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
    method: str = ""
    note: str = ""
    """Why there is no probability."""
    held_out: Floats | None = None
    """(Q, 4) of each photo asked: P by a fit without its fold, whether it was right, metres to its fused position, walk."""
    changes: int = 0
    """Photos added or removed since."""

    @property
    def calibration_error(self) -> float | None:
        """Expected calibration error of P on held-out photos."""
        return None if self.held_out is None else expected_calibration_error(self.held_out[:, 0], self.held_out[:, 1])

    def reliability(self) -> list[dict[str, float]]:
        """P beside the share that was right, on held-out photos."""
        return [] if self.held_out is None else reliability(self.held_out[:, 0], self.held_out[:, 1])

    def threshold(self, precision: float = PRECISION) -> float | None:
        """P from which on an answer is confident; None where the held-out photos do not carry this precision."""
        if self.held_out is not None and precision not in self._thresholds:
            probability, right, _, walk = self.held_out.T
            self._thresholds[precision] = threshold_for(precision, probability, right, walk.astype(np.int64))
        return self._thresholds.get(precision)

    def promised(self) -> float | None:
        """The highest of `PROMISES` that the held-out photos suffice for; None if they suffice for none."""
        return next((precision for precision in PROMISES if self.threshold(precision) is not None), None)

    @cached_property
    def _thresholds(self) -> dict[float, float | None]:
        """Those asked for so far: every photo of a call asks for the same."""
        return {}

    def radius_m(self, probability: Floats, rate: float = RATE) -> Floats:
        """(Q,) radius around fused positions, by the errors of held-out answers of similar P; NaN where unknown."""
        if self.held_out is None:
            return np.full(len(probability), np.nan)
        edges = self._edges()
        bins = np.searchsorted(edges, self.held_out[:, 0], side="right")
        alike = [self.held_out[bins == b, 2:] for b in range(len(edges) + 1)]
        radii = [conformal_radius(error_m, rate, walk.astype(np.int64)) for error_m, walk in (a.T for a in alike)]
        known = np.array([np.nan if r is None else r for r in radii])
        return known[np.searchsorted(edges, probability, side="right")]

    def _edges(self) -> Floats:
        """Borders of P between answers whose errors are counted apart."""
        assert self.held_out is not None
        bins = int(np.clip(len(self.held_out) // _BIN_QUERIES, 1, _MAX_BINS))
        return np.unique(np.quantile(self.held_out[:, 0], np.arange(1, bins) / bins))

    def summary(self, precision: float = PRECISION) -> dict[str, Any]:
        """For reports, as JSON knows it."""
        held = self.held_out
        threshold = self.threshold(precision)
        told: dict[str, Any] = {"calibrated": held is not None, "note": self.note, "method": self.method or None,
                                "overlap": None if self.overlap is None else _overlap_facts(self.overlap)}  # fmt: skip
        if held is None:
            return told
        confident = held[:, 0] >= (2.0 if threshold is None else threshold)
        return told | {
            "queries": len(held), "right_within_m": PLACE_RADIUS_M, "right": float(held[:, 1].mean()),
            "expected_calibration_error": self.calibration_error, "reliability": self.reliability(),
            "precision": precision, "threshold": threshold, "confident": float(confident.mean()),
            "median_error_m": float(np.median(held[:, 2])),
        }  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """As JSON knows it."""
        told = asdict(self)
        return told | {"held_out": None if self.held_out is None else self.held_out.tolist()}

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> Calibration:
        """Back from `to_dict`."""
        overlap = told["overlap"]
        if overlap is not None:
            fitted = overlap["fitted"]
            curve = None if fitted is None else Falling(tuple(fitted["x"]), tuple(fitted["y"]))
            overlap = Overlap(overlap["margin"], curve, overlap["mean_error"])
        logistic = told["probability"]
        if logistic is not None:
            logistic = Logistic(
                tuple(logistic["weights"]), logistic["bias"], tuple(logistic["mean"]), tuple(logistic["scale"])
            )
        held = None if told["held_out"] is None else np.array(told["held_out"], np.float64)
        return cls(told["photos"], overlap, logistic, told["method"], told["note"], held, told["changes"])


def refreshed(
    old: Mapping[str, Any] | None, changes: int, images: ImageSet, descriptors: Matrix, margin: float | None
) -> dict[str, Any]:
    """A map's calibration as it stands, or a new one once a tenth of its photos changed; `changes` are the latest."""
    if old is not None and old["photos"] >= MIN_QUERIES:
        changed = old["changes"] + changes
        if changed <= _RECALIBRATE_SHARE * old["photos"]:
            return dict(old) | {"changes": changed}
    return calibrate(images, descriptors, margin).to_dict()


def calibrate(images: ImageSet, descriptors: Matrix, margin: float | None = None) -> Calibration:
    """Fits all that the photos of a map allow; `images` and `descriptors` as `hold_out` takes them, `margin` is GCL's τ."""
    line = None if margin is None else Overlap(margin)
    photos = len(images)
    if photos < MIN_QUERIES:
        note = f"the map's {photos} photos are too few to calibrate, {MIN_QUERIES} are needed"
        return Calibration(photos, line, None, note=note)
    held = hold_out(images, descriptors, _FOLDS)
    poses = images.poses
    overlap = fit_overlap(poses, held, margin)
    found = held.ids >= 0
    xy, heading = poses.xy[held.ids], poses.heading[held.ids]
    features = match_features(xy, held.distances, found)
    right = np.hypot(*np.moveaxis(xy - poses.xy[held.queries][:, None], 2, 0)) <= PLACE_RADIUS_M
    fewest = min(int((right & found).sum()), int((~right & found).sum()), int(found[:, 0].sum()))
    if fewest < _MIN_CLASS:
        note = f"only {fewest} of the map's held-out matches are right or wrong, too few to tell them apart"
        return Calibration(photos, overlap, None, held.method, note)
    scored = _scored_apart(features, right, found, held.fold)
    psi = None if overlap is None else overlap(held.distances)
    fused = fuse(xy, heading, weights(held.distances, psi), found)
    error_m = np.hypot(*(fused.xy - poses.xy[held.queries]).T)
    asked = found[:, 0]
    table = np.round(np.column_stack([scored, right[:, 0], error_m, held.walk])[asked], 6)
    logistic = Logistic.fit(features[found], right[found])
    result = Calibration(photos, overlap, logistic, held.method, held_out=table)
    _tell(result)
    return result


def match_features(xy: Floats, distances: Floats, found: Bools) -> Floats:
    """(Q, K, 5) what P is told from: first or not, distance (also for the first alone), lead, agreement.

    xy (Q, K, 2), distances (Q, K), found (Q, K) of the first `CONTEXT` matches, best first.
    """
    q, k = distances.shape
    d = np.where(found, distances, 2.0)
    far = (
        np.where(found[:, None, :], np.hypot(*np.moveaxis(xy[:, :, None] - xy[:, None], 3, 0)), np.inf) > PLACE_RADIUS_M
    )
    other = np.where(far & found[:, None, :], d[:, None, :], np.inf).min(axis=2, initial=np.inf)
    # Where all matches are at one place, the next other place is at least as far as the last of them.
    last = np.where(found, d, -np.inf).max(axis=1, initial=0.0)
    lead = np.minimum(other, np.maximum(last, 0.0)[:, None]) - d
    agree = (~far & found[:, None, :]).sum(axis=2) / np.maximum(found.sum(axis=1), 1)[:, None]
    first = np.zeros((q, k))
    first[:, :1] = 1.0
    return np.stack([first, d, first * d, lead, agree], axis=2)


def _scored_apart(features: Floats, right: Bools, found: Bools, fold: NDArray[np.int64]) -> Floats:
    """(Q,) P of each first match, by a fit that did not see its fold."""
    scored = np.empty(len(fold))
    for part in np.unique(fold):
        inside = fold == part
        train = found & ~inside[:, None]
        fit = (
            Logistic.fit(features[train], right[train]) if train.any() else Logistic.fit(features[found], right[found])
        )
        scored[inside] = fit(features[inside, 0])
    return scored


def gcl_margin(model: Path) -> float | None:
    """τ of a model trained with the generalised contrastive loss, whose distances then mean overlap; None otherwise.

    `model` is its folder. Whitening moves distances, so a whitened model has no such line.
    """
    card = artifacts.read_json(model / "card.json")
    loss = (card.get("recipe") or {}).get("loss") or {}
    if card.get("whitening") is not None or loss.get("type") != "GeneralizedContrastive":
        return None
    return float(loss["margin"])


def fit_overlap(poses: Poses, held: HeldOut, margin: float | None) -> Overlap | None:
    """ψ̂ by GCL's line, or fitted where headings tell the true ψ of enough held-out matches; None otherwise."""
    from covis.labels import fov_similarity  # numba takes half a second to load, and only fitting needs it

    found = held.ids >= 0
    near, asked = held.ids[found], np.broadcast_to(held.queries[:, None], held.ids.shape)[found]
    known = ~np.isnan(poses.heading[near]) & ~np.isnan(poses.heading[asked])
    distances, near, asked = held.distances[found][known], near[known], asked[known]
    line = None if margin is None else Overlap(margin)
    if len(near) < _MIN_PAIRS:
        return line
    psi = fov_similarity(poses.xy[asked], poses.heading[asked], poses.xy[near], poses.heading[near])
    chosen = line or Overlap(fitted=Falling.fit(distances, psi))
    return Overlap(chosen.margin, chosen.fitted, float(np.abs(chosen(distances) - psi).mean()))


def _overlap_facts(overlap: Overlap) -> dict[str, Any]:
    method = "fitted" if overlap.margin is None else "gcl"
    return {"method": method, "margin": overlap.margin, "mean_error": overlap.mean_error}


def _tell(result: Calibration) -> None:
    told = result.summary()
    threshold = told["threshold"]
    sure = (
        f"no threshold reaches {told['precision']:.0%}"
        if threshold is None
        else f"{told['confident']:.0%} of answers are confident at {told['precision']:.0%}"
    )
    say(
        f"calibrated on {told['queries']} held-out photos: {told['right']:.1%} right within {PLACE_RADIUS_M:g} m, "
        f"expected calibration error {told['expected_calibration_error']:.3f}, {sure}"
    )


__all__ = ["CONTEXT", "PRECISION", "RATE", "Calibration", "Overlap", "calibrate", "match_features", "refreshed"]
