"""A walk as one query: the chain of places that looks right photo by photo and can be walked from one to the next.

Each photo proposes its matches. A chain pays for the descriptor distance of each match, and for every metre that two
photos in a row lie further apart than a step; the cheapest chain is found exactly (Viterbi). Photos that see little
are so carried by those that see much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from covis.arrays import Floats
from covis.maps.answers import Answer
from covis.maps.calibration import CONTEXT, PRECISION, RATE
from covis.maps.fusion import PLACE_RADIUS_M
from covis.maps.locating import Judged, answer, check_shares, describe, judge
from covis.search import Area

if TYPE_CHECKING:
    from covis.maps.map import Map

STEP_M = 50.0
"""How far two photos of a walk in a row may lie apart without being doubted."""
_JUMP_COST = 0.25
"""Descriptor distance that one step too far weighs as much as; further jumps cost no more than twice this."""


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
        """As JSON knows it: the place of the last photo, and each photo's own answer under `photos`."""
        last = self.answers[-1].to_dict()
        return {
            "photo": last["photo"], "confident": self.confident, "probability": last["probability"], "position": last["position"],
            "matches": last["matches"], "note": self.note, "agreement": round(self.agreement, 4),
            "photos": [a.to_dict() for a in self.answers],
        }  # fmt: skip


def locate_sequence(
    map_: Map,
    photos: Sequence[Path],
    k: int = 5,
    *,
    area: Area | None = None,
    precision: float = PRECISION,
    rate: float = RATE,
    step_m: float = STEP_M,
) -> Walk:
    """Locates photos that were taken one after the other.

    The walk is confident where a photo on the chain is so by itself, and no photo is confident of another place.
    """
    check_shares(precision, rate)
    vectors, bad = describe(map_, photos)
    judged = judge(map_, vectors, max(k, CONTEXT), area, rate)
    chain = best_chain(_xy(map_, judged), judged.ranking.distances.astype(np.float64), judged.ranking.ids >= 0, step_m)
    answers: list[Answer] = []
    own_place: list[bool] = []
    torn = False
    sound = iter(range(len(vectors)))
    for i, photo in enumerate(photos):
        if i in bad:
            answers.append(Answer(photo, (), None, None, False, bad[i], unusable=True))
            continue
        q = next(sound)
        alone = answer(map_, photo, judged, q, judged.ranking.k, precision, rate)
        told, same = _on_chain(alone, int(chain[q]) if alone.matches else 0, k)
        answers.append(told)
        if alone.matches:
            own_place.append(same)
            torn |= alone.confident and not same
    return _walk(answers, own_place, torn)


def _on_chain(alone: Answer, at: int, k: int) -> tuple[Answer, bool]:
    """The photo's answer with the chain's match first, and whether its own best match stands at the same place."""
    if not alone.matches:
        return alone, False
    best, chosen = alone.matches[0], alone.matches[at]
    same = float(np.hypot(best.place.x - chosen.place.x, best.place.y - chosen.place.y)) <= PLACE_RADIUS_M
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


def best_chain(xy: Floats, distances: Floats, found: NDArray[np.bool_], step_m: float) -> NDArray[np.int64]:
    """(Q,) the match of each photo on the cheapest chain: xy (Q, K, 2), distances (Q, K), found (Q, K)."""
    count, k = distances.shape
    if not count or not k:
        return np.zeros(count, np.int64)
    cost = np.where(found, distances, np.inf)
    cost[~found.any(axis=1)] = 0.0  # a photo without any match leaves the chain as it is
    total = cost[0]
    came = np.zeros((count, k), np.int64)
    for t in range(1, count):
        gap = np.linalg.norm(xy[t][:, None] - xy[t - 1][None], axis=2)
        jump = _JUMP_COST * np.clip(np.nan_to_num(gap - step_m, nan=0.0) / step_m, 0.0, 2.0)
        through = total[None] + jump
        came[t] = through.argmin(axis=1)
        total = cost[t] + through.min(axis=1)
    chain = np.empty(count, np.int64)
    chain[-1] = int(total.argmin())
    for t in range(count - 1, 0, -1):
        chain[t - 1] = came[t, chain[t]]
    return chain


def _xy(map_: Map, judged: Judged) -> Floats:
    ids = judged.ranking.ids
    return map_.images.poses.xy[ids] if len(map_) else np.zeros((*ids.shape, 2))
