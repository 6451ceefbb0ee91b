"""How likely a picture's answer lies within `RIGHT_M`, among the photos of one library.

A map learns how often its answers to new walks lie within `PLACE_M`. A library asks for less accuracy, and its photos
without a position were often taken among those that have one, whose places are found far more often than those of new
walks. That share is estimated from the answers themselves: the one under which they are likeliest (Saerens et al. 2002).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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


@dataclass(frozen=True)
class Likelihood:
    """Probabilities of a map's answers for the photos of its library."""

    nearby: Logistic | None
    """P that an answer lies within `RIGHT_M`, by the log-odds of that within `PLACE_M`; both given that the map has the place."""
    share: float = 0.0
    """Of answers that are right, in the mixture that the map was calibrated with."""

    @classmethod
    def of(cls, calibration: Calibration | None) -> Likelihood:
        """From answers to photos of walks that were hidden from the map; nothing is learned from a map of one walk."""
        if calibration is None or calibration.held_out is None or calibration.method != WALKS:
            return cls(None)
        given, _, error_m, walk, _ = calibration.held_out.T
        right = error_m <= RIGHT_M
        if right.all() or not right.any():
            return cls(None)
        nearby = Logistic.fit_ceiling(log_odds(given, _FLOOR)[:, None], right, walk.astype(np.int64))
        return cls(nearby, (1 - CALIBRATION.prior) * float(right.mean()))

    def answers(self, answers: Sequence[Answer], among: Bools, precision: float) -> list[Answer]:
        """Answers with these probabilities, confident from `precision` on.

        among (Q,): whether each photo was taken, or is kept, among photos whose place is known.
        """
        known = np.array([a.position is not None and bool(a.probability) for a in answers], bool)
        if self.nearby is None or not known.any():
            return [replace(a, confident=False) for a in answers]
        p = np.zeros(len(answers))
        p[known] = self._probability([a for a, one in zip(answers, known, strict=True) if one])
        p[among & known] = self._shifted(p[among & known])
        told = []
        for answer, probability in zip(answers, p.tolist(), strict=True):
            sure = probability >= precision and not answer.absent
            note = answer.note if answer.absent else "" if sure else unsure(precision)
            told.append(replace(answer, probability=probability, confident=sure, note=note) if probability else answer)
        return told

    def _probability(self, answers: Sequence[Answer]) -> Floats:
        assert self.nearby is not None
        present = np.array([1.0 - (a.elsewhere or 0.0) for a in answers])
        given = np.array([a.probability or 0.0 for a in answers]) / np.maximum(present, _FLOOR)
        return np.asarray(self.nearby(log_odds(given, _FLOOR)[:, None]) * present)

    def _shifted(self, p: Floats) -> Floats:
        """Probabilities p (N,) of photos among which another share is right than in the map's calibration."""
        if len(p) < _FEWEST:
            return p
        share, odds = self.share, log_odds(p, _FLOOR) - log_odds(np.array([self.share]), _FLOOR)
        for _ in range(_ROUNDS):
            shifted = 1 / (1 + np.exp(-odds - log_odds(np.array([share]), _FLOOR)))
            share = min(float(shifted.mean()), _MOST_RIGHT)
        assert self.nearby is not None
        return np.minimum(shifted, self.nearby.ceiling)


def unsure(precision: float) -> str:
    """Why a position is not written unasked."""
    return f"{100 * precision:g} % are needed for writing it unasked"
