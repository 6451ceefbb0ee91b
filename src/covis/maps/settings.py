"""What decides a map's answers and is not learned from its photos, with the source of each value.

"Campus" are the photos that the evidence page describes; a value without a figure was set by judgement.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EvidenceSettings:
    """What an answer is judged by."""

    context: int = 20
    """Matches of a photo that its answer is judged by."""
    inlier_matches: int = 5
    """Matches of a photo whose local features are compared with its own, where that is asked for."""
    inlier_photos: int = 400
    """Photos from which a map learns what inliers of local features mean."""
    vote_sharpness: float = 0.7
    """Sharpness of the votes that a place is judged by: all matches count, whichever comes first."""
    share_floor: float = 0.02
    """How far shares of matches and votes stay from 0 and 1, so that their log-odds are finite."""
    overlap_floor: float = 0.02
    """Weight of a match that is thought to share nothing, so that a place always has a position."""
    distance_floor: float = 0.05
    """Descriptor distance below which matches weigh the same."""


@dataclass(frozen=True)
class PromiseSettings:
    """What a precision must hold against before a map promises it."""

    spare: float = 0.05
    """Share of the errors allowed that is kept in reserve, since a threshold is picked for reaching its precision."""
    standard_errors: float = 0.75
    """Margin in standard errors over walks: the smallest of 0.5, 0.75 and 1 that kept every promise, to 0.2 points, on the
    part of the campus that it was chosen on (`train`)."""
    min_share: float = 0.25
    """Share of answers that a promise must cover: one for a handful of photos is worthless."""
    few_wrong: int = 10
    """Wrong answers below which their share is thought to be larger than what was seen."""
    elsewhere: float = 0.05
    """Share of photos from elsewhere, of the bank and of places taken out of the map, that may get a confident answer."""
    least: float = 0.5
    """Probability below which no answer is confident, whatever the map promises."""
    precisions: tuple[float, ...] = (0.99, 0.95, 0.9, 0.8)
    """Precisions that a map may promise, the highest first."""


@dataclass(frozen=True)
class CalibrationSettings:
    """How a map is queried with its own photos, and when that suffices."""

    queries: int = 2000
    """Most photos that are used as queries."""
    min_queries: int = 50
    """Photos that are needed to calibrate a map."""
    folds: int = 5
    """Folds of walks over which probabilities are checked."""
    neighbours: int = 2
    """Photos before and after in a walk that are left out with a photo, where no other walk can answer."""
    stretches: int = 20
    """Parts into which a single walk is cut, each treated as a walk."""
    min_class: int = 10
    """Right answers that a probability is fitted to."""
    prior: float = 0.5
    """Share of photos from elsewhere for which probabilities are stated, unless another is asked for."""
    absent_m: float = 50.0
    """Metres around a held-out photo within which photos are taken out of the map, so that its place is not there: two
    photos farther apart than twice 25 m are not taken to show one place."""
    absent_share: float = 1 / 3
    """Share of such photos among those from elsewhere; the others are of the bank. On the campus (`train`, MobileNetV2),
    shares of 1/4, 1/3 and 1/2 keep 88, 86 and 81 % of the answers that are right and confident without them, at errors of
    calibration of 2.0, 1.3 and 1.9 points, and leave 1.6, 1.4 and 1.1 % of near-by places confident."""
    min_pairs: int = 200
    """Matches with known headings that ψ̂ is fitted to."""
    bin_queries: int = 40
    """Answers of similar probability, at least, whose errors give a radius."""
    max_bins: int = 5
    recalibrate_share: float = 0.1
    """Share of photos that may change before a map is calibrated anew."""
    min_later: int = 300
    """Photos that a model has not seen; from this number on, its map is calibrated on them alone."""


@dataclass(frozen=True)
class WalkSettings:
    """How the photos of a walk are located together."""

    least_step_m: float = 25.0
    """How far two photos in a row may lie apart, at least, without being doubted."""
    step_share: float = 0.5
    """Share of the gaps between a walk's own best matches that are no longer than its step. On new walks of the campus
    (`train`, 40 m from photo to photo), 0.5, 0.75 and 0.9 place 77.9, 76.9 and 75.3 % of photos, each alone 74.2 %."""
    jump_cost: float = 1.0
    """Cost of one step too far, in nats of probability; longer jumps cost at most twice this."""


EVIDENCE = EvidenceSettings()
PROMISE = PromiseSettings()
CALIBRATION = CalibrationSettings()
WALK = WalkSettings()
