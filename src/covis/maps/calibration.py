"""How far a map's answers can be trusted, learned by querying it with its own photos as if they were new.

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
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from covis.core import artifacts
from covis.core.arrays import Bools, Floats, Ids
from covis.core.progress import say
from covis.core.tables import counted
from covis.crossval import WalkCrossValidation
from covis.descriptors import Matrix
from covis.images import ImageSet
from covis.logistic import Logistic, expected_calibration_error, reliability
from covis.maps.elsewhere import Bank
from covis.maps.evidence import (
    Evidence,
    Falling,
    conformal_radius,
    fuse,
    gather,
    log_odds,
    threshold_for,
    weights,
)
from covis.maps.held_out import NEIGHBOURS, WALKS, HeldOut, hold_out
from covis.maps.settings import CALIBRATION, EVIDENCE, PROMISE
from covis.maps.typical import TYPICAL_PRESENCE, TYPICAL_RIGHT
from covis.poses import PLACE_M, Poses
from covis.search.consensus import SHARPNESS, Consensus

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
    presence: Logistic | None = None
    """Probability that the map has the place of a photo, from `Evidence.presence`, where `CALIBRATION.prior` are from elsewhere."""
    radius_of_agreement_m: float = PLACE_M
    sharpness: float = SHARPNESS
    """How the map's matches vote (`covis.search.Consensus`)."""
    method: str = ""
    note: str = ""
    """Why there is no probability."""
    held_out: Floats | None = None
    """(Q, 5) of each photo asked, by fits without its fold: P given that the map has its place, whether it was right,
    metres to its fused position, walk, probability that the map has its place."""
    elsewhere: Floats | None = None
    """(E, 3) of pictures whose place the map does not have, by fits without their fold: P given that it had, probability
    that it has, and 1 for the bank's, 0 for held-out photos whose surroundings were taken out."""
    changes: int = 0
    """Photos added or removed since."""
    seen: int = 0
    """Descriptors of the map, the first ones, that are of photos whose poses its model learned from."""

    @property
    def counts_bank(self) -> bool:
        """Whether probabilities rest on distances to a bank of pictures."""
        return self.presence is not None and (self.elsewhere is None or bool(self.elsewhere[:, 2].any()))

    def consensus(self, poses: Poses) -> Consensus:
        """How matches with the poses of the map agree on a place."""
        return Consensus(poses, EVIDENCE.context, self.radius_of_agreement_m, sharpness=self.sharpness)

    def present(self, evidence: Evidence, bank: Floats, prior: float = CALIBRATION.prior) -> Floats | None:
        """(Q,) probability that the map has the place, where a share `prior` of photos is from elsewhere; None if unknown.

        bank (Q,): the distance of each photo to the nearest picture of the bank.
        """
        return None if self.presence is None else self.presence.shifted(_prior_shift(prior))(evidence.presence(bank))

    def judge(self, evidence: Evidence) -> tuple[Ids, Floats]:
        """(Q, K) the order of the matches by P given that the map has the place, and P, falling; NaN where there is none."""
        matched = evidence.found
        assert self.probability is not None
        best = self.probability(evidence.first[:, : len(self.probability.weights)])
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

    def _mixture(self, prior: float = CALIBRATION.prior) -> tuple[Floats, Floats, Floats]:
        """(N,) P, whether right, and weight, of the held-out photos and those from elsewhere, which weigh `prior`."""
        assert self.held_out is not None
        inside, right = _overall(self.held_out[:, [0, 4]], prior), self.held_out[:, 1]
        if self.elsewhere is None:
            return inside, right, np.ones(len(right))
        outside, weight = _overall(self.elsewhere, prior), _elsewhere_weight(self.elsewhere[:, 2])
        share = np.concatenate([np.full(len(right), (1 - prior) / len(right)), prior * weight])
        return np.concatenate([inside, outside]), np.concatenate([right, np.zeros(len(outside))]), share

    @property
    def calibration_error(self) -> float | None:
        """Expected calibration error of P over held-out photos and photos from elsewhere, `CALIBRATION.prior` of them."""
        if self.held_out is None:
            return None
        p, right, weight = self._mixture()
        return expected_calibration_error(p, right, weight=weight)

    def reliability(self) -> list[dict[str, float]]:
        """P beside the share that was right, over the same mixture."""
        if self.held_out is None:
            return []
        p, right, weight = self._mixture()
        return reliability(p, right, weight=weight)

    def threshold(self, precision: float, prior: float = CALIBRATION.prior) -> float | None:
        """P from which on an answer is confident; None where there is not enough calibration data for this precision.

        Confident answers to photos of the mapped places are right at `precision`, and at most a share
        `PROMISE.elsewhere` of photos from elsewhere gets one.
        """
        if (precision, prior) not in self._thresholds:
            self._thresholds[precision, prior] = self._threshold(precision, prior)
        return self._thresholds[precision, prior]

    def _threshold(self, precision: float, prior: float) -> float | None:
        if self.held_out is None or self.method == NEIGHBOURS:
            return None
        expected, right, _, walk, _ = self.held_out.T
        p = _overall(self.held_out[:, [0, 4]], prior)
        least = threshold_for(precision, p, right, walk.astype(np.int64), expected)
        if least is None:
            return None
        least = max(least, PROMISE.least, self._elsewhere_limit(prior))
        return least if (p >= least).mean() >= PROMISE.min_share else None

    def _elsewhere_limit(self, prior: float) -> float:
        """The lowest P that at most `PROMISE.elsewhere` of each kind of photos from elsewhere exceed."""
        limit = 0.0
        for kind in (0.0, 1.0):
            of_kind = np.zeros(0) if self.elsewhere is None else self.elsewhere[self.elsewhere[:, 2] == kind]
            if len(of_kind):
                p = np.sort(_overall(of_kind, prior))[::-1]
                limit = max(limit, float(np.nextafter(p[int(PROMISE.elsewhere * len(p))], 1.0)))
        return limit

    def promised(self, prior: float = CALIBRATION.prior) -> float | None:
        """The highest of `PROMISE.precisions` that the held-out photos suffice for; None if they suffice for none."""
        return next((p for p in PROMISE.precisions if self.threshold(p, prior) is not None), None)

    def confident_elsewhere(self, threshold: float | None, prior: float = CALIBRATION.prior) -> float | None:
        """Share of photos from elsewhere that get a confident answer, by pictures whose place the map does not have."""
        if self.elsewhere is None or threshold is None:
            return None
        confident = _overall(self.elsewhere, prior) >= threshold
        return float(np.average(confident, weights=_elsewhere_weight(self.elsewhere[:, 2])))

    @cached_property
    def _thresholds(self) -> dict[tuple[float, float], float | None]:
        """Thresholds computed so far: all photos of a call need the same one."""
        return {}

    def radius_m(self, probability: Floats, rate: float = RATE) -> Floats:
        """(Q,) radius around fused positions, by the errors of held-out answers of similar P; NaN where unknown.

        probability (Q,): given that the map has the place.
        """
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
            error_m, walk = self.held_out[(bins >= lowest) & (bins <= alike), 2:4].T
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
        facts: dict[str, Any] = {"calibrated": held is not None, "typical": held is None and self.probability is not None, "note": self.note, "method": self.method or None,
                                 "overlap": None if self.overlap is None else _overlap_facts(self.overlap)}  # fmt: skip
        if held is None:
            return facts
        confident = _overall(held[:, [0, 4]], CALIBRATION.prior) >= (2.0 if threshold is None else threshold)
        return facts | {
            "queries": len(held), "right_within_m": PLACE_M, "right": float(held[:, 1].mean()),
            "expected_calibration_error": self.calibration_error, "reliability": self.reliability(),
            "precision": precision, "threshold": threshold, "confident": float(confident.mean()),
            "prior": CALIBRATION.prior, "confident_elsewhere": self.confident_elsewhere(threshold),
            "median_error_m": float(np.median(held[:, 2])),
            "consensus": {"radius_m": self.radius_of_agreement_m, "sharpness": self.sharpness},
        }  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        tables = {name: getattr(self, name) for name in ("held_out", "elsewhere")}
        return asdict(self) | {name: None if rows is None else rows.tolist() for name, rows in tables.items()}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Calibration:
        """Back from `to_dict`."""
        overlap = record["overlap"]
        if overlap is not None:
            fitted = overlap["fitted"]
            curve = None if fitted is None else Falling(tuple(fitted["x"]), tuple(fitted["y"]))
            overlap = Overlap(overlap["margin"], curve, overlap["mean_error"])
        first, others, presence = (
            None if record[k] is None else Logistic.from_dict(record[k]) for k in ("probability", "others", "presence")
        )
        held, elsewhere = (
            None if record[k] is None else np.array(record[k], np.float64) for k in ("held_out", "elsewhere")
        )
        plain = ("photos", "radius_of_agreement_m", "sharpness", "method", "note", "changes", "seen")
        return cls(
            overlap=overlap, probability=first, others=others, presence=presence, held_out=held, elsewhere=elsewhere,
            **{key: record[key] for key in plain},
        )  # fmt: skip


def _overall(parts: Floats, prior: float) -> Floats:
    """(N,) P of answers from its factors (N, 2 or more): P given that the map has the place, and that it has."""
    odds = np.exp(log_odds(parts[:, 1], 1e-9) + _prior_shift(prior))
    return np.asarray(parts[:, 0] * odds / (1 + odds))


def _prior_shift(prior: float) -> float:
    """What another share of photos from elsewhere adds to the log-odds that the map has a place."""
    return float(log_odds(np.array(CALIBRATION.prior), 1e-9) - log_odds(np.array(prior), 1e-9))


def _elsewhere_weight(of_bank: Floats) -> Floats:
    """(E,) weights, of sum 1, of photos from elsewhere: `CALIBRATION.absent_share` for places taken out of the map."""
    bank, absent = int(of_bank.sum()), int((1 - of_bank).sum())
    share = CALIBRATION.absent_share if bank and absent else float(bool(absent))
    return np.where(of_bank > 0, (1 - share) / max(1, bank), share / max(1, absent))


@dataclass(frozen=True, eq=False)
class Recalibration:
    """How the calibration of a map follows its photos."""

    margin: float | None = None
    """GCL's τ, see `gcl_margin`."""
    wanted: bool = True
    """Whether it may be fitted anew; else the record stays as it is."""
    held: HeldOut | None = None
    """Results of the map's photos as queries, if they are known already."""
    bank: Bank | None = None
    """Pictures that are not of the map's places."""

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
            return calibrate(images, descriptors, self.margin, bank=self.bank).to_dict()
        changed, seen = old["changes"] + changes, old["seen"]
        later = int((images.columns["row"] >= seen).sum())
        if changed <= CALIBRATION.recalibrate_share * old["photos"] or (seen and later < CALIBRATION.min_later):
            return {**old, "changes": changed}
        return calibrate(images, descriptors, self.margin, seen=seen, bank=self.bank).to_dict()


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
    bank: Bank | None = None,
) -> Calibration:
    """Fits all that the photos of a map allow; `images` and `descriptors` as `hold_out` takes them, `margin` is GCL's τ.

    held: results of queries to fits that did not see them, if known already. seen: rows that the model learned from.
    inliers: from photos (Q,) and their matches (Q, K) to local features in common, which P then takes into account.
    bank: pictures that are not of the map's places, where `held` does not have their results.
    """
    seen = seen if held is None else held.seen
    line = None if margin is None else Overlap(margin)
    photos = len(images)
    if photos < CALIBRATION.min_queries:
        return _typical(photos, line, seen, bank)
    held = hold_out(images, descriptors, seen=seen, bank=bank) if held is None else held
    if not len(held.queries):
        note = (
            "the map's model learned from the poses of these photos, so they cannot be used for calibration; "
            "index them without --model"
        )
        return Calibration(photos, line, None, note=note, seen=seen)
    poses, asked = images.poses, images.poses.subset(held.queries)
    agreement = Consensus(poses, EVIDENCE.context).fit(held.found.ranking, asked)
    evidence = gather(agreement, held.found, np.asarray(images.group, np.int64))
    if inliers is not None:
        evidence = evidence.with_inliers(inliers(held.queries, evidence.ranking.ids[:, : EVIDENCE.inlier_matches]))
    overlap = fit_overlap(poses, held, margin)
    right = evidence.found & (np.hypot(*np.moveaxis(evidence.xy - asked.xy[:, None], 2, 0)) <= PLACE_M)
    answered = evidence.found[:, 0]
    found = int(right[answered, 0].sum())
    common: dict[str, Any] = {
        "radius_of_agreement_m": agreement.radius_m, "sharpness": agreement.sharpness, "method": held.method, "seen": seen
    }  # fmt: skip
    if found < CALIBRATION.min_class:
        note = f"only {found} of the map's {int(answered.sum())} held-out photos are located correctly; {CALIBRATION.min_class} are needed"
        return Calibration(photos, overlap, None, note=note, **common)
    scored = _out_of_fold(evidence.first, right[:, 0], answered, held)
    distances = evidence.ranking.distances.astype(np.float64)
    shared = None if overlap is None else overlap(distances)
    fused = fuse(evidence.xy, evidence.heading, weights(distances, shared), evidence.found)
    error_m = np.hypot(*(fused.xy - asked.xy).T)
    first = Logistic.fit_ceiling(evidence.first[answered], right[answered, 0], held.walk[answered])
    others = _fit_others(evidence, scored, right)
    presence, present, elsewhere = _fit_presence(evidence, agreement, images, held, first)
    table = np.round(np.column_stack([scored, right[:, 0], error_m, held.walk, present])[answered], 6)
    result = Calibration(
        photos, overlap, first, others, presence, held_out=table, elsewhere=elsewhere, note=_one_walk(held), **common
    )
    _tell(result)
    return result


def _typical(photos: int, overlap: Overlap | None, seen: int, bank: Bank | None) -> Calibration:
    """Of a map too small to test itself: what maps of the recipes are like, where a network described the photos."""
    few = f"the map has only {counted(photos, 'photo')} ({CALIBRATION.min_queries} are needed to test it)"
    if bank is None or not len(bank):
        return Calibration(photos, overlap, None, note=few, seen=seen)
    note = f"{few}, so probabilities are those of other small maps"
    return Calibration(photos, overlap, TYPICAL_RIGHT, presence=TYPICAL_PRESENCE, note=note, seen=seen)


def _one_walk(held: HeldOut) -> str:
    if held.method == WALKS:
        return ""
    return "its photos are of one walk, which says little of photos taken on another day; add a second walk"


def _fit_presence(
    evidence: Evidence, agreement: Consensus, images: ImageSet, held: HeldOut, first: Logistic
) -> tuple[Logistic | None, Floats, Floats | None]:
    """The fit of `Calibration.presence`; by fits without its fold, (Q,) presence of held-out photos and `elsewhere`."""
    asked = held.elsewhere
    if asked is None:
        return None, np.ones(len(held.queries)), None
    group = np.asarray(images.group, np.int64)
    absent, strangers = (gather(agreement, found, group) for found in (asked.absent, asked.strangers))
    parts = [
        evidence.presence(asked.bank)[evidence.found[:, 0]],
        absent.presence(asked.bank)[absent.found[:, 0]],
        strangers.presence(asked.between)[strangers.found[:, 0]],
    ]
    if len(parts[1]) + len(parts[2]) < CALIBRATION.min_queries:
        return None, np.ones(len(held.queries)), None
    folds = int(held.fold.max()) + 1
    fold = np.concatenate([
        held.fold[evidence.found[:, 0]], held.fold[absent.found[:, 0]],
        asked.stranger_fold(folds)[strangers.found[:, 0]],
    ])  # fmt: skip
    kind = np.repeat([0, 1, 2], [len(part) for part in parts])
    features, scored = np.concatenate(parts), np.empty(len(kind))
    for known, inside in WalkCrossValidation(fold).splits():
        known = known if (kind[known] == 0).any() and (kind[known] > 0).any() else np.ones(len(kind), bool)
        scored[inside] = _presence(features[known], kind[known])(features[inside])
    present = np.ones(len(held.queries))
    present[evidence.found[:, 0]] = scored[kind == 0]
    given = np.concatenate([
        first(_without_inliers(e.first, first))[e.found[:, 0]] for e in (absent, strangers)
    ])  # fmt: skip
    table = np.round(np.column_stack([given, scored[kind > 0], kind[kind > 0] == 2]), 6)
    return _presence(features, kind), present, table


def _without_inliers(features: Floats, fitted: Logistic) -> Floats:
    """Features of pictures that have no local features in common with the map, as `fitted` takes them."""
    return np.pad(features, ((0, 0), (0, len(fitted.weights) - features.shape[1])))


def _presence(features: Floats, kind: Ids) -> Logistic:
    """The fit to photos of mapped places (kind 0), of places taken out of the map (1) and of the bank (2)."""
    weight = np.full(len(kind), 1 - CALIBRATION.prior)
    inside = int((kind == 0).sum())
    weight[kind > 0] = CALIBRATION.prior * inside * _elsewhere_weight((kind[kind > 0] == 2).astype(np.float64))
    return Logistic.fit(features, kind == 0, 2 * weight)


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
    sure = f"no precision can be promised{f': {result.note}' if result.note else ''}"
    if facts["threshold"] is not None:
        sure = (
            f"for photos of the mapped places {100 * facts['confident']:.0f} % of answers are confident, and "
            f"{100 * facts['precision']:.0f} % of those right"
        )
    if facts["confident_elsewhere"] is not None:
        sure += f"; of photos from elsewhere {100 * facts['confident_elsewhere']:.1f} % get a confident answer"
    say(
        f"calibrated on {facts['queries']} held-out photos: {100 * facts['right']:.1f} % correct within {PLACE_M:g} m; "
        f"{sure}"
    )
