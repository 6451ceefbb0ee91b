"""Placing a model on Earth: scale, turn and shift from images whose position is known.

Structure from motion knows neither metres nor north. Three images with known positions fix both.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from covis.core.arrays import Bools, Floats
from covis.core.errors import InputError
from covis.core.progress import say, warn
from covis.images import ImageSet, find_names
from covis.poses import Poses
from covis.reading.decoding import Reject
from covis.reading.exif import ExifData, read_photo

LEAST = 3
"""Georeferenced images that fix a model."""
_FLAT = 0.05
"""Known positions whose spread across their main direction is below this share do not fix the roll around it."""
_TRIPLES = 500
"""Random triples of positions that are tried as a start: one without an outlier is among them even if 60 % are outliers."""
_OUTLIER = 6.0
"""Errors above this many times the median, 4 standard deviations of normal ones, do not count."""
_POOR = 0.1
"""Median error, as a share of the extent of the known positions, from which on a fit is doubtful."""
_COLLAPSED = 0.2
"""Extent of the fitted model, as a share of that of the known positions, below which the two do not belong together."""


class Similarity(NamedTuple):
    """target = scale · rotation @ source + shift."""

    scale: float
    rotation: Floats
    shift: Floats

    def __call__(self, points: Floats) -> Floats:
        """(N, 3) → (N, 3)."""
        moved: Floats = self.scale * points @ self.rotation.T + self.shift
        return moved


def fit_similarity(source: Floats, target: Floats, scale: float | None = None) -> Similarity:
    """The least-squares similarity of (N, D) points (Umeyama 1991), D = 2 or 3; `scale` fixes the scale."""
    a, b = source - source.mean(axis=0), target - target.mean(axis=0)
    u, spread, vt = np.linalg.svd(b.T @ a)
    sign = np.ones(source.shape[1])
    sign[-1] = np.sign(np.linalg.det(u @ vt))
    rotation = (u * sign) @ vt
    factor = float((spread * sign).sum() / (a**2).sum()) if scale is None else scale
    return Similarity(factor, rotation, target.mean(axis=0) - factor * rotation @ source.mean(axis=0))


def robust_similarity(source: Floats, target: Floats, scale: float | None = None) -> Similarity:
    """The same without a minority of positions that contradict the others."""
    use = _inliers(source, target, scale)
    return fit_similarity(source[use], target[use], scale)


def _inliers(source: Floats, target: Floats, scale: float | None) -> Bools:
    """(N,) the positions that agree with the triple whose similarity has the smallest median error; all of a few."""
    count = len(source)
    if count < 2 * LEAST:
        return np.ones(count, bool)
    rng = np.random.default_rng(0)
    best = np.full(count, np.inf)
    for _ in range(_TRIPLES):
        few = rng.choice(count, LEAST, replace=False)
        if np.linalg.norm(source[few] - source[few].mean(axis=0)) < 1e-12:
            continue
        error = np.linalg.norm(fit_similarity(source[few], target[few], scale)(source) - target, axis=1)
        best = min(best, error, key=np.median)
    within: Bools = best <= np.maximum(_OUTLIER * np.median(best), 1e-6)
    return within


def georeference(images: ImageSet, known: Poses, *, scale: float | None = None) -> ImageSet:
    """`images` moved to where `known` (aligned, NaN where unknown, frame on Earth) says that they are.

    With heights that spread in all directions the whole turn is fitted; else the images' own up is kept.
    """
    poses, fit = align(images.poses, known, scale)
    error = np.linalg.norm(poses.xy - known.xy, axis=1)
    use = np.isfinite(error)
    middle, spans, extent = float(np.median(error[use])), _extent(poses.xy[use]), _extent(known.xy[use])
    say(f"{int(use.sum())} georeferenced images: scale {fit.scale:.6g}, median error {middle:.2f} m")
    if spans < _COLLAPSED * extent:
        raise InputError(
            f"the model spans {spans:.2g} m after the fit, its known positions {extent:.3g} m: they do not belong together; "
            "check the names and positions, and whether the model is sound"
        )
    if middle > _POOR * extent:
        warn(
            f"the model fits poorly: half of the images are more than {middle:.3g} m off, in an extent of {extent:.3g} m"
        )
    far = use & (error > max(_OUTLIER * middle, 1.0))
    if far.any():
        worst = int(np.nanargmax(error))
        warn(
            f"{int(far.sum())} of the images are far from their known position and do not count, such as "
            f"{images.name(worst)}: {error[worst]:.0f} m"
        )
    return replace(images, poses=poses)


def _extent(xy: Floats) -> float:
    """Twice the distance from the middle within which three quarters of the positions lie."""
    return 2 * float(np.percentile(np.linalg.norm(xy - np.median(xy, axis=0), axis=1), 75))


def align(poses: Poses, known: Poses, scale: float | None = None) -> tuple[Poses, Similarity]:
    """Poses aligned to `known` (Umeyama), and the transform."""
    use = poses.known & known.known
    if use.sum() < LEAST:
        raise InputError(
            f"{int(use.sum())} of {len(poses)} images have a known position; {LEAST} are needed to determine scale and position"
        )
    source, target = poses.centre[use], known.centre[use]
    spread = np.linalg.svd(target - target.mean(axis=0), compute_uv=False)
    if spread[0] < 1e-9 or np.linalg.norm(source - source.mean(axis=0)) < 1e-12:
        raise InputError("all georeferenced images are at one place, which does not determine the scale; give --scale")
    heights = known.z is not None and bool(np.isfinite(known.z[use]).all())
    if heights and spread[1] > _FLAT * spread[0]:
        fit = robust_similarity(source, target, scale)
    else:
        level = levelling(poses)
        source = source @ level.T
        flat = robust_similarity(source[:, :2], target[:, :2], scale)
        turn = np.eye(3)
        turn[:2, :2] = flat.rotation
        up = float(np.median(target[:, 2] - flat.scale * source[:, 2])) if heights else 0.0
        fit = Similarity(flat.scale, turn @ level, np.array([*flat.shift, up]))
    return _moved(poses, fit, known.frame), fit


def levelling(poses: Poses) -> Floats:
    """(3, 3) the smallest turn after which the cameras' mean up is the world's; none where rotations are unknown."""
    if poses.rotation is None or np.isnan(poses.rotation).all():
        return np.eye(3)
    up = -np.nanmean(poses.rotation[:, :, 1], axis=0)
    x, y, z = up / np.linalg.norm(up)
    if z < -1 + 1e-9:
        return np.diag([1.0, -1.0, -1.0])
    cross = np.array([[0.0, 0.0, -x], [0.0, 0.0, -y], [x, y, 0.0]])  # of up × z: Rodrigues' formula
    turn: Floats = np.eye(3) + cross + cross @ cross / (1 + z)
    return turn


def _moved(poses: Poses, by: Similarity, frame: str) -> Poses:
    """The poses after a similarity, headings from the turned rotations."""
    centre = by(poses.centre)
    z = None if poses.z is None else centre[:, 2]
    if poses.rotation is None:
        turn = np.degrees(np.arctan2(by.rotation[0, 1], by.rotation[0, 0]))
        return Poses(centre[:, :2], poses.heading + turn, z, frame=frame)
    matrices = np.concatenate([by.rotation @ poses.rotation, centre[:, :, None]], axis=2)
    return replace(Poses.from_matrices(matrices, frame=frame), z=z)


def scaled(poses: Poses, metres: float) -> Poses:
    """Poses of unknown unit with `metres` to one unit."""
    if not 0 < metres < np.inf:
        raise InputError(f"scale is {metres}; expected metres per unit above 0")
    return replace(poses, xy=poses.xy * metres, z=None if poses.z is None else poses.z * metres, frame="")


def known_positions(images: ImageSet, table: ImageSet, *, on_earth: bool = True) -> Poses:
    """Positions that `table` gives for `images` by name, aligned; NaN for the others."""
    ids = find_names(table.names, images.names.tolist())
    if (ids < 0).all():
        raise InputError(f"the table names none of the images (its first: {table.name(0)}; theirs: {images.name(0)})")
    if on_earth and not table.poses.frame:
        raise InputError("the table gives metres without a place on Earth; georeferenced images need lat and lon")
    given = table.poses.subset(np.maximum(ids, 0))
    xy = np.where(ids[:, None] >= 0, given.xy, np.nan)
    return Poses(xy, np.full(len(ids), np.nan), given.z, frame=given.frame)


def exif_positions(images: ImageSet) -> Poses:
    """Positions that the photos' own EXIF gives, aligned; NaN for files that lack one or do not exist."""
    photos = []
    for i in range(len(images)):
        try:
            photos.append(read_photo(images.path(i)))
        except (Reject, OSError):
            photos.append(ExifData())
    lat, lon, height = (np.array([getattr(p, key) for p in photos]) for key in ("lat", "lon", "altitude"))
    return Poses.from_latlon(lat, lon, z=None if np.isnan(height[~np.isnan(lat)]).any() else height)
