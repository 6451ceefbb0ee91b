"""A photo's full pose (6DOF) from points of a scene that it shows: matches of local features, PnP, RANSAC (pycolmap).

Points come from a COLMAP model's tracks or from depth maps beside the map's images. Extra: `pip install 'covis[sfm]'`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from covis.core.arrays import Floats, Ids
from covis.core.errors import InputError
from covis.images import ImageSet, find_names
from covis.labels.clouds import depth_camera, read_depth
from covis.poses import Axis, quaternion_matrices
from covis.reading.cameras import Camera
from covis.reading.decoding import open_image
from covis.reading.formats.colmap import Model
from covis.reading.georeference import Similarity
from covis.search.local_features import LocalFeatures, match, open_pycolmap, sift

_NEAR_PX = 4.0
"""A feature takes the point of a model's keypoint within this many pixels."""
MAX_ERROR_PX = 8.0
LEAST_INLIERS = 12
MOST_BY_CHANCE = -12.0
"""Upper limit of log10 of the number of poses that chance supports as well as the one found. Repeating features (steps,
windows) go down to −6 where the map does not show the photo's place at all; right poses lie hundreds below."""
EXIF_FOCAL_SHARE = 0.02
"""Standard deviation of EXIF's focal length, as a share of it: whole millimetres on film, and focus changes it."""
_REMEMBERED = 64
"""Pictures of the map whose features are kept for the next photo."""
Focal = Literal["given", "exif", "estimated"]
"""Where a photo's focal length comes from: its camera is calibrated, EXIF says it, or it is estimated with the pose."""


class Scene(Protocol):
    """Knows where in the world a map image's pixels lie."""

    def lift(self, image: int, xy: Floats) -> Floats:
        """(K, 3) points in the images' frame; NaN where unknown."""
        ...


@dataclass(frozen=True)
class Resected:
    """A pose and how sure it is."""

    rotation: Floats
    """(3, 3) camera-to-world."""
    centre: Floats
    """(3,)."""
    inliers: int
    matches: int
    error_px: float
    """Root mean square over the inliers."""
    covariance: Floats
    """(6, 6) of turn (radians, about the world's axes) and centre."""
    focal_px: float
    focal: Focal
    by_chance: float = 0.0
    """log10 of the number of poses that unrelated features would support as well."""

    @property
    def deviation_m(self) -> float:
        """Standard deviation of the position, in its worst direction, in the map's unit."""
        return float(np.sqrt(np.linalg.eigvalsh(self.covariance[3:, 3:]).max()))

    @property
    def deviation_deg(self) -> float:
        """Standard deviation of the direction, about its worst axis."""
        return float(np.degrees(np.sqrt(np.linalg.eigvalsh(self.covariance[:3, :3]).max())))

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; the quaternion turns camera axes (x right, y down, z forward) into the map's."""
        from scipy.spatial.transform import Rotation

        x, y, z, w = Rotation.from_matrix(self.rotation).as_quat(canonical=True)
        return {
            "centre": [round(float(v), 4) for v in self.centre],
            "quaternion_wxyz": [round(float(v), 8) for v in (w, x, y, z)],
            "deviation_m": round(self.deviation_m, 4),
            "deviation_deg": round(self.deviation_deg, 4),
            "inliers": self.inliers,
            "matches": self.matches,
            "error_px": round(self.error_px, 3),
            "log10_by_chance": round(self.by_chance, 1),
            "focal_px": round(self.focal_px, 2),
            "focal": self.focal,
            "camera_known": self.focal != "estimated",
        }


@dataclass(frozen=True, eq=False)
class TrackScene:
    """Points of a COLMAP model: a feature takes the point of the nearest keypoint that has one."""

    model: Model
    up: Axis

    def lift(self, image: int, xy: Floats) -> Floats:
        """(K, 3); `image` counts as the model does."""
        from scipy.spatial import cKDTree

        seen = self.model.observed[image] >= 0
        result = np.full((len(xy), 3), np.nan)
        if not seen.any() or not len(xy):
            return result
        distance, at = cKDTree(self.model.keypoints[image][seen]).query(xy, distance_upper_bound=_NEAR_PX)
        near = np.isfinite(distance)
        ids = np.searchsorted(self.model.point_ids, self.model.observed[image][seen][at[near]])
        result[near] = self.model.world_points(self.up)[ids]
        return result


@dataclass(frozen=True, eq=False)
class DepthScene:
    """Depth maps beside the images (column `depth`), by the camera that `covis.labels.clouds` takes for them."""

    images: ImageSet

    def lift(self, image: int, xy: Floats) -> Floats:
        """(K, 3) through the depth at each feature."""
        images = self.images
        if images.intrinsics is None or images.poses.rotation is None or "depth" not in images.columns:
            raise InputError("6DOF poses from depth need images with depth maps, intrinsics and 6DOF poses")
        path = images.root / os.fsdecode(images.columns["depth"][image])
        try:
            depth = read_depth(path)
        except (OSError, ValueError, SyntaxError) as error:
            raise InputError(f"{path} is not a depth map ({error})") from None
        camera = depth_camera(images, image, (depth.shape[0], depth.shape[1]))
        fx, fy, cx, cy = images.intrinsics[image, :4]
        ray = (xy - (cx, cy)) / (fx, fy)
        column, row = np.floor(ray * (camera.fx, camera.fy) + (camera.cx, camera.cy)).astype(int).T
        inside = (column >= 0) & (row >= 0) & (column < depth.shape[1]) & (row < depth.shape[0])
        raw = depth[np.clip(row, 0, depth.shape[0] - 1), np.clip(column, 0, depth.shape[1] - 1)]
        usable = inside & ~np.isin(raw, camera.invalid) & np.isfinite(raw)
        z = np.where(usable, raw * camera.scale_m, np.nan)
        local = np.column_stack([ray * z[:, None], z])
        world: Floats = local @ images.poses.rotation[image].T + images.poses.centre[image]
        return world


class Support(NamedTuple):
    """Where matches (M,) come from: those of one feature, or of one map image, are not independent of each other."""

    feature: Ids
    """The photo's feature."""
    image: Ids
    """The map's image."""


def resect(
    xy: Floats,
    points: Floats,
    camera: Camera,
    focal: Focal = "given",
    *,
    support: Support | None = None,
    max_error_px: float = MAX_ERROR_PX,
    seed: int = 0,
) -> Resected | None:
    """The pose that shows `points` (M, 3) at `xy` (M, 2); None where too few agree, or no more than could by chance."""
    pycolmap = open_pycolmap("a 6DOF pose")
    if len(xy) < LEAST_INLIERS:
        return None
    support = support or Support(np.arange(len(xy)), np.arange(len(xy)))
    free = focal == "estimated"
    lens = pycolmap.Camera(model=camera.model, width=camera.width, height=camera.height, params=list(camera.params))
    search = pycolmap.AbsolutePoseEstimationOptions(estimate_focal_length=free)
    search.ransac.max_error = max_error_px
    search.ransac.random_seed = seed
    refine = pycolmap.AbsolutePoseRefinementOptions(refine_focal_length=free)
    estimate = pycolmap.estimate_and_refine_absolute_pose(xy, points, lens, search, refine)
    if estimate is None:
        return None
    inlier = np.asarray(estimate["inlier_mask"], bool)
    agreeing = len(np.unique(support.feature[inlier]))
    share = min(1.0, np.pi * max_error_px**2 / (camera.width * camera.height))
    chance = _by_chance(len(xy), len(np.unique(support.feature)), agreeing, share)
    if agreeing < LEAST_INLIERS or chance > MOST_BY_CHANCE:
        return None
    world_to_camera = estimate["cam_from_world"]
    rotation = np.asarray(world_to_camera.rotation.matrix()).T
    centre = -rotation @ np.asarray(world_to_camera.translation)
    residual = _project(lens, rotation, centre, points[inlier]) - xy[inlier]
    spread = float((residual**2).sum() / max(1, residual.size - (7 if free else 6)))
    jacobian = _jacobian(lens, rotation, centre, points[inlier])
    spread *= _dependence(jacobian[:, :6], residual, Support(support.feature[inlier], support.image[inlier]))
    return Resected(
        rotation=rotation,
        centre=centre,
        inliers=int(inlier.sum()),
        matches=len(xy),
        error_px=float(np.sqrt((residual**2).sum(axis=1).mean())),
        covariance=_covariance(jacobian, spread, focal, lens),
        focal_px=float(lens.mean_focal_length()),
        focal=focal,
        by_chance=chance,
    )


def _by_chance(matches: int, features: int, agreeing: int, share: float) -> float:
    """log10 of the expected number of poses that as many of the features support if all matches are wrong.

    The a-contrario measure of Moisan and Stival (2004): any three features may fix a pose, and each other one agrees with it
    by chance with the share of the picture that the threshold covers, for each of its matches.
    """
    if agreeing <= 3:
        return float("inf")
    each = min(1.0, share * matches / features)
    ways = _log_binomial(features, agreeing) + _log_binomial(agreeing, 3) + np.log(max(1, features - 3))
    return float((ways + (agreeing - 3) * np.log(each)) / np.log(10.0))


def _log_binomial(n: int, k: int) -> float:
    from math import lgamma

    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)


def _dependence(jacobian: Floats, residual: Floats, support: Support) -> float:
    """Factor, at least 1, by which the pose varies more than with independent errors (variance clustered both ways).

    Matches of one feature err together, and so do those of one map image, whose own pose and depth are not exact.
    """
    inverse = np.linalg.pinv(jacobian.T @ jacobian)
    spread = float((residual**2).sum() / max(1, residual.size - 6))
    if spread <= 0.0:
        return 1.0
    pull = np.einsum("mkd,mk->md", jacobian.reshape(-1, 2, 6), residual)  # (M, 6)
    clustered = _clustered(pull, support.feature)
    if len(np.unique(support.image)) > 1:  # one image alone says nothing about its own error
        clustered = clustered + _clustered(pull, support.image) - pull.T @ pull
    return max(1.0, float(np.trace(inverse @ clustered) / (6.0 * spread)))


def _clustered(pull: Floats, labels: Ids) -> Floats:
    """(6, 6) sum of the outer products of the pull of each cluster, itself summed over its matches."""
    _, code = np.unique(labels, return_inverse=True)
    count = int(code.max()) + 1
    total = np.zeros((count, 6))
    np.add.at(total, code, pull)
    return np.asarray(total.T @ total * (count / max(1, count - 1)), np.float64)


def _project(lens: Any, rotation: Floats, centre: Floats, points: Floats) -> Floats:
    return np.asarray(lens.img_from_cam((points - centre) @ rotation), np.float64)


def _jacobian(lens: Any, rotation: Floats, centre: Floats, points: Floats) -> Floats:
    """(2M, 7) change of each projection with a small turn and shift of the camera, and with its focal length."""
    from scipy.spatial.transform import Rotation

    reach = max(1e-6, float(np.median(np.linalg.norm(points - centre, axis=1))))
    columns = []
    for k in range(6):
        step = np.zeros(6)
        step[k] = 1e-5 if k < 3 else 1e-5 * reach
        sides = []
        for sign in (1.0, -1.0):
            turned = Rotation.from_rotvec(sign * step[:3]).as_matrix() @ rotation
            sides.append(_project(lens, turned, centre + sign * step[3:], points))
        columns.append(((sides[0] - sides[1]) / (2 * step[k])).ravel())
    middle = np.array([lens.principal_point_x, lens.principal_point_y])
    columns.append(((_project(lens, rotation, centre, points) - middle) / lens.mean_focal_length()).ravel())
    return np.stack(columns, axis=1)


def _covariance(jacobian: Floats, spread: float, focal: Focal, lens: Any) -> Floats:
    """(6, 6) of the pose. An estimated focal length trades off against distance; EXIF's brings its own error."""
    if focal == "estimated":
        return np.asarray(np.linalg.pinv(jacobian.T @ jacobian)[:6, :6] * spread, np.float64)
    pose, by_focal = jacobian[:, :6], jacobian[:, 6]
    inverse = np.asarray(np.linalg.pinv(pose.T @ pose), np.float64)
    if focal == "given":
        return inverse * spread
    moved_by = inverse @ (pose.T @ by_focal) * (EXIF_FOCAL_SHARE * lens.mean_focal_length())
    return inverse * spread + np.outer(moved_by, moved_by)


def query_camera(path: Path) -> tuple[Camera, Focal]:
    """The camera of a photo and where its focal length comes from: EXIF, or an initial guess."""
    with open_image(path) as image:
        width, height = image.size
        exif = image.getexif()
        turned = exif.get(0x0112, 1) in (5, 6, 7, 8)
        film_mm = exif.get_ifd(0x8769).get(0xA405)
    width, height = (height, width) if turned else (width, height)
    if film_mm:
        focal = float(film_mm) / 43.2666 * float(np.hypot(width, height))
        return Camera("SIMPLE_PINHOLE", width, height, (focal, width / 2, height / 2)), "exif"
    return Camera("SIMPLE_PINHOLE", width, height, (1.2 * max(width, height), width / 2, height / 2)), "estimated"


def locate_pose(
    photo: Path, images: ImageSet, matches: Sequence[int], scene: Scene, camera: tuple[Camera, Focal] | None = None
) -> Resected | None:
    """The pose of a photo from the map images that it was found to match (ids into `images`), best first."""
    lens, focal = camera or query_camera(photo)
    own = sift(photo)
    points, feature, source = [np.zeros((0, 3))], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for i in matches:
        other = _cached_features(images.path(int(i)))
        pairs = match(own, other)
        world = scene.lift(int(i), other.xy[pairs[:, 1]])
        usable = ~np.isnan(world).any(axis=1)
        points.append(world[usable])
        feature.append(pairs[usable, 0].astype(np.int64))
        source.append(np.full(int(usable.sum()), int(i), np.int64))
    support = Support(np.concatenate(feature), np.concatenate(source))
    xy: Floats = own.xy[support.feature]
    return resect(xy, np.concatenate(points), lens, focal, support=support)


@lru_cache(_REMEMBERED)
def _cached_features(path: Path) -> LocalFeatures:
    return sift(path)


class PosedScene(NamedTuple):
    """A scene to pose photos in: its images, where their pixels lie, and how to go from there into a map's frame."""

    images: ImageSet
    scene: Scene
    into_map: Similarity | None
    unit: str
    """`m`, or `units` where the scale is unknown."""


def open_scene(path: Path, images: ImageSet) -> PosedScene:
    """A COLMAP model, or images with depth maps, in the frame of a map's `images` if it has three or more of them."""
    from covis.reading.formats.colmap import find_model, nearest_up, read_reconstruction
    from covis.reading.georeference import LEAST, align, known_positions
    from covis.reading.sources import open_images

    if find_model(path) is not None:
        model = read_reconstruction(path)
        posed = model.image_set()
        up = nearest_up(quaternion_matrices(model.quaternions, "wxyz").transpose(0, 2, 1))
        place = PosedScene(posed, TrackScene(model, up), None, "units")
    else:
        posed = open_images(path)
        place = PosedScene(posed, DepthScene(posed), None, "m" if posed.poses.metric else "units")
    if posed.poses.frame == images.poses.frame or not images.poses.metric:
        return place
    known = known_positions(posed, images, on_earth=False)
    if (known.known & posed.poses.known).sum() < LEAST:
        return place
    return place._replace(into_map=align(posed.poses, known)[1], unit="m")


def moved_pose(pose: Resected, by: Similarity) -> Resected:
    """The pose after a similarity, its covariance too."""
    turn = np.zeros((6, 6))
    turn[:3, :3], turn[3:, 3:] = by.rotation, by.scale * by.rotation
    return replace(
        pose,
        rotation=by.rotation @ pose.rotation,
        centre=by(pose.centre[None])[0],
        covariance=turn @ pose.covariance @ turn.T,
    )


def pose_photo(photo: Path, matches: Sequence[bytes], place: PosedScene) -> Resected | None:
    """The pose of a photo from the names of its matches in a map; None where nothing fits."""
    known = find_names(place.images.names, matches)
    pose = locate_pose(photo, place.images, known[known >= 0].tolist(), place.scene)
    return pose if pose is None or place.into_map is None else moved_pose(pose, place.into_map)
