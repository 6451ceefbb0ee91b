"""How likely a picture's answer lies within `RIGHT_M`, among the photos of one library.

A map learns how often its answers to new walks lie within `PLACE_M`. A library asks for less accuracy, and its photos
without a position were often taken among those that have one, whose places are found far more often than those of new
walks. That share is estimated from the answers themselves: the one under which they are likeliest (Saerens et al. 2002).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from covis.core.arrays import Bools, Floats
from covis.geotagging.clocks import RIGHT_M
from covis.logistic import Logistic
from covis.maps.answers import Answer
from covis.maps.calibration import Calibration
from covis.maps.evidence import log_odds
from covis.maps.held_out import WALKS
from covis.maps.settings import CALIBRATION

_MOST_RIGHT = 0.75
"""The highest share of right answers that is assumed of photos taken among known ones: the estimate is too high where
photos of unknown streets look like the known ones."""
_FEWEST = 20
_ROUNDS = 100
_FLOOR = 1e-3


def likely(calibration: Calibration | None, answers: Sequence[Answer], among: Bools, precision: float) -> list[Answer]:
    """Answers with their probabilities in the library, confident from `precision` on.

    among (Q,): whether each photo was taken, or is kept, among photos whose place is known. Nothing is learned from
    the map of one walk.
    """
    known = np.array([a.position is not None and bool(a.probability) for a in answers], bool)
    if calibration is None or calibration.held_out is None or calibration.method != WALKS or not known.any():
        return [replace(a, confident=False) for a in answers]
    given, _, error_m, walk, _ = calibration.held_out.T
    right = error_m <= RIGHT_M
    if right.all() or not right.any():
        return [replace(a, confident=False) for a in answers]
    # P that an answer lies within RIGHT_M by the log-odds of that within PLACE_M, both given that the map has the place
    nearby = Logistic.fit_ceiling(log_odds(given, _FLOOR)[:, None], right, walk.astype(np.int64))
    p = np.zeros(len(answers))
    p[known] = _probability(nearby, [a for a, one in zip(answers, known, strict=True) if one])
    p[among & known] = _shifted(p[among & known], (1 - CALIBRATION.prior) * float(right.mean()), nearby.ceiling)
    return [_judged(answer, probability, precision) for answer, probability in zip(answers, p.tolist(), strict=True)]


def _probability(nearby: Logistic, answers: Sequence[Answer]) -> Floats:
    present = np.array([1.0 - (a.elsewhere or 0.0) for a in answers])
    given = np.array([a.probability or 0.0 for a in answers]) / np.maximum(present, _FLOOR)
    return np.asarray(nearby(log_odds(given, _FLOOR)[:, None]) * present)


def _shifted(p: Floats, usual: float, ceiling: float) -> Floats:
    """Probabilities p (N,) of photos among which another share is right than `usual`, that of the map's calibration."""
    if len(p) < _FEWEST:
        return p
    share, odds = usual, log_odds(p, _FLOOR) - log_odds(np.array([usual]), _FLOOR)
    for _ in range(_ROUNDS):
        shifted = 1 / (1 + np.exp(-odds - log_odds(np.array([share]), _FLOOR)))
        share = min(float(shifted.mean()), _MOST_RIGHT)
    return np.minimum(shifted, ceiling)


def _judged(answer: Answer, probability: float, precision: float) -> Answer:
    if not probability:
        return answer
    sure = probability >= precision and not answer.absent
    note = answer.note if answer.absent else "" if sure else unsure(precision)
    return replace(answer, probability=probability, confident=sure, note=note)


def unsure(precision: float) -> str:
    """Why a position is not written unasked."""
    return f"{100 * precision:g} % are needed for writing it unasked"
