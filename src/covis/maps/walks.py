"""A walk as one query: the chain of places that looks right photo by photo and can be walked from one to the next.

Each photo proposes its matches. A chain pays for what each match lacks in probability, and for every step that two
photos in a row lie further apart than photos of this walk do; the cheapest chain is found exactly (Viterbi). This way,
photos that show little are placed by those that show much, and the others keep their own answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.maps.answers import Answer, unusable
from covis.maps.locating import Judge
from covis.maps.settings import EVIDENCE, WALK
from covis.poses import PLACE_M


@dataclass(frozen=True)
class Walk:
    """A sequence of photos, located together."""

    answers: tuple[Answer, ...]
    """One for each photo, the chain's match first."""
    confident: bool
    note: str
    agreement: float
    """Share of photos whose own best match stands at the chain's place."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON: the place of the last photo, and each photo's own answer under `photos`."""
        last = self.answers[-1].to_dict()
        return {
            "photo": last["photo"], "confident": self.confident, "probability": last["probability"], "position": last["position"],
            "matches": last["matches"], "note": self.note, "agreement": round(self.agreement, 4),
            "photos": [a.to_dict() for a in self.answers],
        }  # fmt: skip


def locate_walk(
    judge: Judge,
    photos: Sequence[Path],
    vectors: NDArray[np.float32],
    bad: dict[int, str],
    k: int,
) -> Walk:
    """Locates photos that were taken one after the other, from (Q, dim) descriptors of those that are not `bad`.

    The walk is confident where a photo on the chain is confident by itself, and no photo is confident of another place.
    """
    judged = judge(vectors, max(k, EVIDENCE.context))
    ids, poses = judged.ranking.ids, judge.images.poses
    chain = np.zeros(len(ids), np.int64)  # without probabilities, each photo has its own answer
    if judged.probability is not None and len(poses):
        xy = poses.xy[ids]
        chain = best_chain(xy, judged.probability, step_of(xy[:, 0], judged.probability[:, 0]))
    answers: list[Answer] = []
    own_place: list[bool] = []
    torn = False
    sound = iter(range(len(vectors)))
    for i, photo in enumerate(photos):
        if i in bad:
            answers.append(unusable(photo, bad[i]))
            continue
        q = next(sound)
        alone = judge.answer(photo, judged, q, judged.ranking.k)
        moved, same = _on_chain(alone, int(chain[q]) if alone.matches else 0, k)
        answers.append(moved)
        if alone.matches:
            own_place.append(same)
            torn |= alone.confident and not same
    return _walk(answers, own_place, torn)


def _on_chain(alone: Answer, at: int, k: int) -> tuple[Answer, bool]:
    """The photo's answer with the chain's match first, and whether its own best match stands at the same place."""
    if not alone.matches:
        return alone, False
    best, chosen = alone.matches[0], alone.matches[at]
    same = float(np.hypot(best.place.x - chosen.place.x, best.place.y - chosen.place.y)) <= PLACE_M
    rest = tuple(m for j, m in enumerate(alone.matches) if j != at)
    if same or alone.position is None:
        return replace(alone, matches=(chosen, *rest)[:k]), same
    moved = replace(alone.position, place=chosen.place, radius_m=None, fused=1)
    return replace(
        alone, matches=(chosen, *rest)[:k], position=moved, probability=chosen.probability, confident=False,
        note="the walk leads elsewhere than this photo alone would",
    ), False  # fmt: skip


def _walk(answers: list[Answer], own_place: list[bool], torn: bool) -> Walk:
    agreement = float(np.mean(own_place)) if own_place else 0.0
    sure = any(a.confident for a in answers)
    note = ""
    if torn:
        note = "a photo is confident of a place that the walk does not pass"
    elif not sure:
        note = "no photo of the walk is confident by itself"
    return Walk(tuple(answers), sure and not torn, note, agreement)


def step_of(xy: Floats, probability: Floats) -> float:
    """Metres that two photos in a row of a walk may lie apart, by the best matches (Q, 2) of its photos and their P (Q,)."""
    gap = np.hypot(*np.diff(xy, axis=0).T)
    sure = np.sqrt(probability[1:] * probability[:-1])
    order = np.argsort(gap)
    total = np.nancumsum(sure[order])
    if not len(gap) or not total[-1] > 0:
        return WALK.least_step_m
    usual = gap[order][np.searchsorted(total, WALK.step_share * total[-1])]
    return max(WALK.least_step_m, float(usual))


def best_chain(xy: Floats, probability: Floats, step_m: float) -> NDArray[np.int64]:
    """(Q,) the match of each photo on the cheapest chain: xy (Q, K, 2), probability (Q, K), NaN where there is no match."""
    count, k = probability.shape
    if not count or not k:
        return np.zeros(count, np.int64)
    cost = np.where(probability > 0, -np.log(np.maximum(np.nan_to_num(probability), 1e-300)), np.inf)
    cost[np.isinf(cost).all(axis=1)] = 0.0  # a photo without any match leaves the chain as it is
    total = cost[0]
    came = np.zeros((count, k), np.int64)
    for t in range(1, count):
        gap = np.linalg.norm(xy[t][:, None] - xy[t - 1][None], axis=2)
        jump = WALK.jump_cost * np.clip(np.nan_to_num(gap - step_m, nan=0.0) / step_m, 0.0, 2.0)
        through = total[None] + jump
        came[t] = through.argmin(axis=1)
        total = cost[t] + through.min(axis=1)
    chain = np.empty(count, np.int64)
    chain[-1] = int(total.argmin())
    for t in range(count - 1, 0, -1):
        chain[t - 1] = came[t, chain[t]]
    return chain
