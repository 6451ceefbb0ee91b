"""A second look at the best results: a re-ranking is a function `Ranking -> Ranking`.

`Consensus` looks only at the poses of the map. Photos that truly show the query's place stand together and face the
same way; a look-alike elsewhere, or a photo whose compass was off, stands alone. Two settings depend on the map: how
much weight results have that lag behind the best, and how close results must be to agree. Many photos of each place
with poor compasses need many votes, street views every few metres hardly any. Where a map has queries with known
answers, both are fitted to them (`Consensus.fitted`). `SpatialRerank` matches patches of two images; matches that move
together count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.core.progress import Meter
from covis.poses import PLACE_M, PLACE_TURN_DEG, Poses, angle_between
from covis.ranking import Ranking

HEARD_DEPTH = 20
SHARPNESS = 0.45
"""Between the best for campus photos (0.7) and street views (0.3): it costs either at most 1 to 2 points at rank 1."""
CERTAINTY = 0.25
"""Votes fall by a factor of e over at most this share of the best's own squared distance: a result that is almost
identical to the query is not outvoted."""
TRIED_RADII_M = (PLACE_M, PLACE_M / 2, PLACE_M / 4)
SHARPNESSES = (0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9)
"""What a fit tries."""
RIGHT_M = (PLACE_M, 0.4 * PLACE_M)
"""A result is right within the first radius; one within the second counts double."""
_GAIN = 0.003
"""A choice other than the default must be better by this share of the queries, about as much as chance causes."""
_SMALLEST = 1e-12
_BLOCK = 4096


@dataclass(frozen=True, eq=False)
class Consensus:
    """Puts first the result that the first `depth` results agree with most; the others keep their order."""

    poses: Poses
    """Of the map's images."""
    depth: int = HEARD_DEPTH
    radius_m: float = PLACE_M
    """Agreement of two results falls with the distance between them, as a normal curve of this width."""
    angle_deg: float = PLACE_TURN_DEG
    """The same for the angle between their headings, where both are known."""
    sharpness: float = SHARPNESS
    """Votes fall by a factor of e over this share of the results' mean lag behind the best, in squared distance; 0:
    only the best result votes."""

    def __post_init__(self) -> None:
        if self.depth < 1 or not self.radius_m > 0 or not self.angle_deg > 0 or not self.sharpness >= 0:
            raise InputError(
                "a consensus needs a depth of at least 1, a radius and an angle above 0 and a sharpness from 0, "
                f"not {self.facts()}"
            )

    @classmethod
    def fitted(cls, poses: Poses, ranking: Ranking, asked: Poses, depth: int = HEARD_DEPTH) -> Consensus:
        """Fitted to queries with known answers: `ranking` (Q, K) of a map's images for queries at the poses `asked`.

        The results must be like those of new images: none of the query's own walk, and found by descriptors that were
        not fitted to it.
        """
        known = asked.known & (ranking.ids[:, 0] >= 0) if ranking.k else np.zeros(len(ranking), bool)
        if not known.any():
            return cls(poses, depth)
        ids, distances = ranking.ids[known, :depth], ranking.distances[known, :depth]
        score = _rightness(poses, ids, asked.subset(known))
        gained = np.empty((len(TRIED_RADII_M), len(SHARPNESSES)))
        for i, radius_m in enumerate(TRIED_RADII_M):
            tried = cls(poses, depth, radius_m)
            alike = tried.alike(ids)
            for j, sharpness in enumerate(SHARPNESSES):
                weight = replace(tried, sharpness=sharpness).weights(ids, distances)
                first = _votes(alike, weight, ids >= 0).argmax(axis=1)
                gained[i, j] = np.take_along_axis(score, first[:, None], 1).mean()
        # Neighbouring settings differ mostly by chance, so they are averaged; sharpness 0 (no votes) stays apart.
        smooth = gained.copy()
        smooth[:, 1:-1] = (gained[:, :-2] + gained[:, 1:-1] + gained[:, 2:]) / 3
        smooth[:, -1] = (gained[:, -2] + 2 * gained[:, -1]) / 3
        smooth[TRIED_RADII_M.index(PLACE_M), SHARPNESSES.index(SHARPNESS)] += _GAIN
        best = divmod(int(smooth.argmax()), len(SHARPNESSES))
        return cls(poses, depth, TRIED_RADII_M[best[0]], sharpness=SHARPNESSES[best[1]])

    def facts(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "depth": self.depth,
            "radius_m": self.radius_m,
            "angle_deg": self.angle_deg,
            "sharpness": self.sharpness,
        }

    def __call__(self, ranking: Ranking) -> Ranking:
        """The ranking with the agreed result in front; distances stay those of the descriptors."""
        chosen = np.zeros(len(ranking), np.int64)
        for start in range(0, len(ranking), _BLOCK):
            part = slice(start, start + _BLOCK)
            votes = self.votes(ranking.ids[part, : self.depth], ranking.distances[part, : self.depth])
            chosen[part] = votes.argmax(axis=1) if votes.shape[1] else 0
        columns = np.arange(ranking.k)
        order = np.where(columns == 0, chosen[:, None], columns - (columns <= chosen[:, None]))
        return Ranking(np.take_along_axis(ranking.ids, order, 1), np.take_along_axis(ranking.distances, order, 1))

    def votes(self, ids: NDArray[np.int64], distances: NDArray[np.floating[Any]]) -> Floats:
        """(Q, K) how much results (Q, K), best first, agree with each; −1 where there is none."""
        return _votes(self.alike(ids), self.weights(ids, distances), ids >= 0)

    def weights(self, ids: NDArray[np.int64], distances: NDArray[np.floating[Any]]) -> Floats:
        """(Q, K) weight of each result's vote, 1 for the best; 0 where there is none."""
        present = ids >= 0
        squared = np.where(present, distances, 0.0).astype(np.float64) ** 2
        lag = np.where(present, squared - squared[:, :1], 0.0).clip(min=0.0)
        mean = lag.sum(axis=1, keepdims=True) / np.maximum(present.sum(axis=1, keepdims=True), 1)
        scale = np.minimum(self.sharpness * mean, CERTAINTY * squared[:, :1])
        return np.where(present, np.exp(-lag / np.maximum(scale, _SMALLEST)), 0.0)

    def alike(self, ids: NDArray[np.int64]) -> Floats:
        """(Q, K, K) how much two results agree about the place, 1 for one place and heading."""
        xy, heading = self.poses.xy[ids], self.poses.heading[ids]
        apart = np.square(xy[:, :, None] - xy[:, None]).sum(axis=3) / self.radius_m**2
        turned = np.nan_to_num(angle_between(heading[:, :, None], heading[:, None])) / self.angle_deg
        return np.asarray(np.nan_to_num(np.exp(-(apart + turned**2) / 2)))  # a result of unknown place agrees with none


def _votes(alike: Floats, weight: Floats, present: NDArray[np.bool_]) -> Floats:
    return np.where(present, (alike * weight[:, None]).sum(axis=2), -1.0)


def _rightness(poses: Poses, ids: NDArray[np.int64], asked: Poses) -> Floats:
    """(Q, K) 0 for a wrong result, 0.5 for one within 25 m that faces alike, 1 for one within 10 m."""
    gap = np.hypot(*np.moveaxis(poses.xy[ids] - asked.xy[:, None], 2, 0))
    turned = np.nan_to_num(angle_between(poses.heading[ids], asked.heading[:, None]))
    right = [(gap <= radius_m) & (turned <= PLACE_TURN_DEG) & (ids >= 0) for radius_m in RIGHT_M]
    return np.asarray(np.mean(right, axis=0))


# Patches need no weights of their own: they come from the map that the model pools into its descriptor. This is off by
# default, because matching costs far more than the search before it.


PatchVectors = Callable[[NDArray[np.int64]], NDArray[np.floating]]
"""Image ids (n,) → unit vectors of their patches (n, P, D)."""

RERANK_DEPTH = 50
REACH = 0.25
"""How far a match may stray from the common movement and still count, as a share of the image's diagonal."""


def reordered(
    ranking: Ranking,
    depth: int,
    scores: Callable[[int, NDArray[np.int64], NDArray[np.floating]], NDArray[np.float64]],
) -> Ranking:
    """The ranking with the first `depth` results of each query by descending score; ties keep their order.

    scores: (query, ids (n,), distances (n,)) → (n,).
    """
    order = np.tile(np.arange(ranking.k), (len(ranking), 1))
    with Meter("re-rank", len(ranking), "queries") as meter:
        for q in range(len(ranking)):
            ids, distances = ranking.row(q)
            head = min(depth, len(ids))
            if head:
                order[q, :head] = np.argsort(-scores(q, ids[:head], distances[:head]), kind="stable")
            meter.advance()
    return ranking.reordered(order)


@dataclass(frozen=True, eq=False)
class SpatialRerank:
    """Orders the first `depth` results of each query by how well their patches match and agree on one movement."""

    query_patches: PatchVectors
    map_patches: PatchVectors
    places: NDArray[np.float32]
    """(P, 2) where each patch's middle lies, in any unit."""
    depth: int = RERANK_DEPTH
    distance_weight: float = 0.5
    """How much the descriptors' own similarity counts beside the patches; 0 leaves it out."""

    def __call__(self, ranking: Ranking) -> Ranking:
        """The ranking with its head in a new order; distances stay those of the descriptors, so they may not ascend."""
        return reordered(ranking, self.depth, self._combined)

    def _combined(self, query: int, ids: NDArray[np.int64], distances: NDArray[np.floating]) -> NDArray[np.float64]:
        return self.scores(query, ids) - self.distance_weight * distances**2 / 2

    def scores(self, query: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """(n,) agreement of query `query` with each of the map images `ids`: 0 none, 1 with itself."""
        mine = np.asarray(self.query_patches(np.array([query]))[0], np.float32)
        theirs = np.asarray(self.map_patches(ids), np.float32)
        return agreement(mine, theirs, self.places)


def agreement(
    query: NDArray[np.float32], candidates: NDArray[np.float32], places: NDArray[np.float32], reach: float = REACH
) -> NDArray[np.float64]:
    """(n,) spatial agreement of patches (P, D) with the patches (n, P, D) of each candidate.

    Two patches match if each is the other's nearest. A match counts its cosine, less the farther its movement is from
    the median movement of all matches. Divided by P, so that an image has 1 with itself.
    """
    if candidates.ndim != 3 or candidates.shape[1:] != query.shape or places.shape != (len(query), 2):
        raise InputError(
            f"patches {query.shape}, {candidates.shape} and places {places.shape} do not fit together; use one model"
        )
    count, patches, dim = candidates.shape
    cosine = (candidates.reshape(-1, dim) @ query.T).reshape(count, patches, patches)
    limit = reach * float(np.linalg.norm(places.max(0) - places.min(0))) or 1.0
    return np.array([_agree(one.T, places, limit) for one in cosine])


def _agree(cosine: NDArray[np.float32], places: NDArray[np.float32], limit: float) -> float:
    """Agreement from the cosines (P, P) of the query's patches (rows) with the candidate's (columns)."""
    forward, backward = cosine.argmax(1), cosine.argmax(0)
    mutual = np.flatnonzero(backward[forward] == np.arange(len(forward)))
    movement = places[forward[mutual]] - places[mutual]
    stray = np.linalg.norm(movement - np.median(movement, axis=0), axis=1)
    weight = np.maximum(0, 1 - stray / limit)
    return float((np.maximum(cosine[mutual, forward[mutual]], 0) * weight).sum() / len(forward))


def windows(rows: int, columns: int, side: int) -> NDArray[np.float32]:
    """(P, 2) middles (column, row) of all windows of side × side cells, row by row."""
    y, x = np.mgrid[: rows - side + 1, : columns - side + 1]
    return (np.column_stack([x.ravel(), y.ravel()]) + (side - 1) / 2).astype(np.float32)


# Local features of pictures: found, matched, and checked against the geometry of two views
#
# Two pictures of one place share many points that one homography (a flat scene, or a turned camera) or one fundamental
# matrix (any scene) explains; the number of such points is the score of a re-ranking. Matching uses numpy,
# geometry OpenCV (`pip install 'covis[local]'`), SIFT pycolmap.


RATIO = 0.85
"""Largest ratio of a match's distance to that of the second-best (Lowe 2004)."""
MAX_FEATURES = 4096
MAX_SIDE = 1600
"""Pixels of the longer side to which pictures are scaled down for features."""
ViewGeometry = Literal["homography", "fundamental", "both", "none"]
MAX_ERROR = 0.01
"""How far a match may lie from where the geometry puts it, as a share of the picture's diagonal."""
_TRIALS, _CONFIDENCE = 1000, 0.999
_LEAST = {"homography": 4, "fundamental": 8}


class LocalFeatures(NamedTuple):
    """Local features of a picture."""

    xy: Floats
    """(K, 2) pixels of the full picture, centre of the first pixel at 0.5."""
    descriptors: NDArray[np.float32]
    """(K, D) unit norm."""
    size: tuple[int, int] = (0, 0)
    """(width, height) of the full picture."""


Matcher = Callable[[LocalFeatures, LocalFeatures], NDArray[np.int64]]
"""Features of two pictures → (M, 2) which belong together."""


def sift(path: Path, most: int = MAX_FEATURES, side: int = MAX_SIDE) -> LocalFeatures:
    """SIFT features of a picture, upright as it is shown (square roots of the histograms: RootSIFT)."""
    from PIL import ImageOps

    from covis.reading.decoding import open_image

    pycolmap = open_pycolmap("SIFT")
    with open_image(path) as image:
        shown = ImageOps.exif_transpose(image).convert("L")
    scale = min(1.0, side / max(shown.size))
    small = shown.resize((round(shown.width * scale), round(shown.height * scale))) if scale < 1 else shown
    options = pycolmap.FeatureExtractionOptions()
    options.sift.max_num_features = most
    extractor = pycolmap.FeatureExtractor.create(options, pycolmap.Device.cpu)
    keypoints, descriptors = extractor.extract_from_uint8_array(np.asarray(small, np.uint8))
    values = np.asarray(descriptors.data, np.float32)
    values /= np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-9)
    xy = np.array([[k.x, k.y] for k in keypoints], np.float64).reshape(-1, 2)
    return LocalFeatures(xy * (np.array(shown.size) / np.array(small.size)), values, shown.size)


def open_pycolmap(what: str) -> Any:
    """The library with its log silenced; `what` is the feature that needs it."""
    try:
        import pycolmap
    except ImportError:
        raise InputError(f"{what} needs pycolmap: pip install 'covis[sfm]'") from None
    pycolmap.logging.minloglevel = 1  # covis reports what matters
    return pycolmap


def match(first: LocalFeatures, second: LocalFeatures, ratio: float | None = RATIO) -> NDArray[np.int64]:
    """(M, 2) mutual nearest features that are clearly nearer than the second-best; without `ratio`, all mutual ones."""
    if len(first.xy) < 2 or len(second.xy) < 2:
        return np.zeros((0, 2), np.int64)
    alike = first.descriptors @ second.descriptors.T
    best = alike.argmax(axis=1)
    chosen = alike.argmax(axis=0)[best] == np.arange(len(best))
    if ratio is not None:
        top = np.partition(alike, -2, axis=1)[:, -2:]
        distance = np.sqrt(np.maximum(0.0, 2.0 - 2.0 * top))
        chosen &= distance[:, 1] < ratio * distance[:, 0]
    use = np.flatnonzero(chosen)
    return np.column_stack([use, best[use]])


def peaks(score: NDArray[np.float32], radius: int, threshold: float) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """(K, 2) pixels (column, row) that score highest within `radius` and above `threshold`, and their scores (K,)."""
    from scipy.ndimage import maximum_filter

    highest = (score == maximum_filter(score, 2 * radius + 1, mode="constant")) & (score > threshold)
    row, column = np.nonzero(highest)
    return np.column_stack([column, row]), score[row, column]


def sampled(maps: NDArray[np.float32], xy: Floats, stride: float) -> NDArray[np.float32]:
    """(K, C) values of maps (C, h, w), bilinear, at points (K, 2) of a picture whose cells have `stride` pixels."""
    _, rows, columns = maps.shape
    x = np.clip(xy[:, 0] / stride - 0.5, 0, columns - 1)
    y = np.clip(xy[:, 1] / stride - 0.5, 0, rows - 1)
    left, top = np.floor(x).astype(int), np.floor(y).astype(int)
    right, bottom = np.minimum(left + 1, columns - 1), np.minimum(top + 1, rows - 1)
    across, down = (x - left).astype(np.float32), (y - top).astype(np.float32)
    upper = maps[:, top, left] * (1 - across) + maps[:, top, right] * across
    lower = maps[:, bottom, left] * (1 - across) + maps[:, bottom, right] * across
    return np.ascontiguousarray((upper * (1 - down) + lower * down).T)


def inliers(
    first: LocalFeatures, second: LocalFeatures, pairs: NDArray[np.int64], geometry: ViewGeometry = "homography",
    max_error: float = MAX_ERROR,
) -> int:  # fmt: skip
    """How many of the matched `pairs` (M, 2) one geometry of two views explains; "both" takes the larger of the two.

    "none" counts all matches. max_error: as a share of the larger picture's diagonal. Deterministic: OpenCV draws from
    a fixed seed.
    """
    if geometry == "none":
        return len(pairs)
    least = min(_LEAST[kind] for kind in (_LEAST if geometry == "both" else (geometry,)))
    if len(pairs) < least:
        return 0
    cv2 = _opencv()
    left, right = first.xy[pairs[:, 0]], second.xy[pairs[:, 1]]
    extent = [np.hypot(*f.size) if any(f.size) else np.hypot(*np.ptp(f.xy, axis=0)) for f in (first, second)]
    limit = max_error * max(1.0, *map(float, extent))
    best = 0
    for kind in ("homography", "fundamental") if geometry == "both" else (geometry,):
        if len(pairs) < _LEAST[kind]:
            continue
        if kind == "homography":
            _, mask = cv2.findHomography(left, right, cv2.USAC_MAGSAC, limit, maxIters=_TRIALS, confidence=_CONFIDENCE)
        else:
            _, mask = cv2.findFundamentalMat(left, right, cv2.USAC_MAGSAC, limit, _CONFIDENCE, _TRIALS)
        best = max(best, 0 if mask is None else int(np.count_nonzero(mask)))
    return best


def _opencv() -> Any:
    try:
        import cv2
    except ImportError:
        raise InputError("geometric verification needs OpenCV: pip install 'covis[local]'") from None
    return cv2


@dataclass(frozen=True, eq=False)
class LocalRerank:
    """Orders the first `depth` results of each query by how many local features agree on one geometry."""

    query_features: Callable[[int], LocalFeatures]
    map_features: Callable[[int], LocalFeatures]
    depth: int = RERANK_DEPTH
    matcher: Matcher = match
    geometry: ViewGeometry = "homography"
    max_error: float = MAX_ERROR
    counts: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    """After a call: inliers of each query's head, in the order of the ranking that was given."""

    def __call__(self, ranking: Ranking) -> Ranking:
        """The ranking with its head ordered by inliers, ties as before; distances stay those of the descriptors."""
        return reordered(ranking, self.depth, self._scores)

    def _scores(self, query: int, ids: NDArray[np.int64], distances: NDArray[np.floating]) -> Floats:
        own = self.query_features(query)
        agreeing = [self.agreeing(own, self.map_features(int(i))) for i in ids]
        self.counts[query] = np.array(agreeing, np.int64)
        return self.counts[query].astype(np.float64)

    def agreeing(self, own: LocalFeatures, other: LocalFeatures) -> int:
        """Inliers of one pair of pictures."""
        return inliers(own, other, self.matcher(own, other), self.geometry, self.max_error)
