"""A photo's full pose (6DOF) from points of a scene that it shows: matches of local features, PnP, RANSAC (pycolmap).

Points come from a COLMAP model's tracks or from depth maps beside the map's images. Extra: `pip install 'covis[sfm]'`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from covis.arrays import Floats
from covis.errors import InputError
from covis.images import ImageSet
from covis.labels.clouds import depth_camera, read_depth
from covis.poses import Axis, quaternion_matrices
from covis.reading.cameras import Camera, camera_of
from covis.reading.colmap import Model
from covis.reading.georeference import Similarity
from covis.search.local import match, open_pycolmap, sift

NEAR_PX = 4.0
"""A feature takes the point of a model's keypoint within so many pixels."""
MAX_ERROR_PX = 8.0
LEAST_INLIERS = 12


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
    camera_known: bool

    @property
    def deviation_m(self) -> float:
        """Standard deviation of the position, in its worst direction, in the map's unit."""
        return float(np.sqrt(np.linalg.eigvalsh(self.covariance[3:, 3:]).max()))

    @property
    def deviation_deg(self) -> float:
        """Standard deviation of the direction, about its worst axis."""
        return float(np.degrees(np.sqrt(np.linalg.eigvalsh(self.covariance[:3, :3]).max())))

    def to_dict(self) -> dict[str, Any]:
        """As JSON knows it; the quaternion turns camera axes (x right, y down, z forward) into the map's."""
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
            "focal_px": round(self.focal_px, 2),
            "camera_known": self.camera_known,
        }


@dataclass(frozen=True, eq=False)
class TrackScene:
    """Points of a COLMAP model: a feature takes the point of the nearest keypoint that has one."""

    model: Model
    up: Axis
    scale: float = 1.0
    near_px: float = NEAR_PX

    def lift(self, image: int, xy: Floats) -> Floats:
        """(K, 3); `image` counts as the model does."""
        from scipy.spatial import cKDTree

        seen = self.model.observed[image] >= 0
        result = np.full((len(xy), 3), np.nan)
        if not seen.any() or not len(xy):
            return result
        distance, at = cKDTree(self.model.keypoints[image][seen]).query(xy, distance_upper_bound=self.near_px)
        near = np.isfinite(distance)
        ids = np.searchsorted(self.model.point_ids, self.model.observed[image][seen][at[near]])
        result[near] = self.model.world_points(self.up, self.scale)[ids]
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
            depth = read_depth(path, images, image)
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


def resect(
    xy: Floats, points: Floats, camera: Camera, *, known: bool = True, max_error_px: float = MAX_ERROR_PX, seed: int = 0
) -> Resected | None:
    """The pose that shows `points` (M, 3) at `xy` (M, 2); None where fewer than `LEAST_INLIERS` agree.

    Unless the camera is `known`, its focal length is estimated with the pose.
    """
    pycolmap = open_pycolmap("a 6DOF pose")
    if len(xy) < LEAST_INLIERS:
        return None
    lens = pycolmap.Camera(model=camera.model, width=camera.width, height=camera.height, params=list(camera.params))
    search = pycolmap.AbsolutePoseEstimationOptions(estimate_focal_length=not known)
    search.ransac.max_error = max_error_px
    search.ransac.random_seed = seed
    refine = pycolmap.AbsolutePoseRefinementOptions(refine_focal_length=not known)
    found = pycolmap.estimate_and_refine_absolute_pose(xy, points, lens, search, refine)
    if found is None or found["num_inliers"] < LEAST_INLIERS:
        return None
    inlier = np.asarray(found["inlier_mask"], bool)
    world_to_camera = found["cam_from_world"]
    rotation = np.asarray(world_to_camera.rotation.matrix()).T
    centre = -rotation @ np.asarray(world_to_camera.translation)
    residual = _project(lens, rotation, centre, points[inlier]) - xy[inlier]
    spread = float((residual**2).sum() / max(1, residual.size - 6))
    return Resected(
        rotation=rotation,
        centre=centre,
        inliers=int(inlier.sum()),
        matches=len(xy),
        error_px=float(np.sqrt((residual**2).sum(axis=1).mean())),
        covariance=_covariance(lens, rotation, centre, points[inlier], spread=spread, focal_known=known),
        focal_px=float(lens.mean_focal_length()),
        camera_known=known,
    )


def _project(lens: Any, rotation: Floats, centre: Floats, points: Floats) -> Floats:
    return np.asarray(lens.img_from_cam((points - centre) @ rotation), np.float64)


def _covariance(
    lens: Any, rotation: Floats, centre: Floats, points: Floats, *, spread: float, focal_known: bool
) -> Floats:
    """(6, 6) from the change of each projection with a small turn and shift of the camera, and with its focal length
    where that was estimated too: on a flat scene it trades against distance.
    """
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
    if not focal_known:
        middle = np.array([lens.principal_point_x, lens.principal_point_y])
        columns.append(((_project(lens, rotation, centre, points) - middle) / lens.mean_focal_length()).ravel())
    jacobian = np.stack(columns, axis=1)
    inverse: Floats = np.linalg.pinv(jacobian.T @ jacobian)[:6, :6] * spread
    return inverse


def query_camera(path: Path, images: ImageSet | None = None, at: int = 0) -> tuple[Camera, bool]:
    """The camera of a photo, and whether it is known: of `images`, by EXIF's focal length, or a guess."""
    from PIL import Image

    told = None if images is None else camera_of(images, at)
    if told is not None:
        return told, True
    with Image.open(path) as image:
        width, height = image.size
        exif = image.getexif()
        turned = exif.get(0x0112, 1) in (5, 6, 7, 8)
        film_mm = exif.get_ifd(0x8769).get(0xA405)
    width, height = (height, width) if turned else (width, height)
    if film_mm:
        focal = float(film_mm) / 43.2666 * float(np.hypot(width, height))
        return Camera("SIMPLE_PINHOLE", width, height, (focal, width / 2, height / 2)), True
    return Camera("SIMPLE_PINHOLE", width, height, (1.2 * max(width, height), width / 2, height / 2)), False


def locate_pose(
    photo: Path, images: ImageSet, matches: Sequence[int], scene: Scene, camera: tuple[Camera, bool] | None = None
) -> Resected | None:
    """The pose of a photo from the map images that it was found to match (ids into `images`), best first."""
    lens, known = camera or query_camera(photo)
    own = sift(photo)
    xy, points = [np.zeros((0, 2))], [np.zeros((0, 3))]
    for i in matches:
        other = sift(images.path(int(i)))
        pairs = match(own, other)
        world = scene.lift(int(i), other.xy[pairs[:, 1]])
        usable = ~np.isnan(world).any(axis=1)
        xy.append(own.xy[pairs[usable, 0]])
        points.append(world[usable])
    return resect(np.concatenate(xy), np.concatenate(points), lens, known=known)


class Place(NamedTuple):
    """A scene to pose photos in: its images, where their pixels lie, and how to go from there into a map's frame."""

    images: ImageSet
    scene: Scene
    into_map: Similarity | None
    unit: str
    """`m`, or `units` where the scale is unknown."""

    def find(self, names: Sequence[bytes]) -> list[int]:
        """Ids of images by name, or by the last part of it; those that the scene does not have are left out."""
        at: dict[bytes, int] = {}
        for i, name in enumerate(self.images.names.tolist()):
            at.setdefault(name.rpartition(b"/")[2], i)
        at |= {name: i for i, name in enumerate(self.images.names.tolist())}
        found = (at.get(name, at.get(name.rpartition(b"/")[2], -1)) for name in names)
        return [i for i in found if i >= 0]


def open_scene(path: Path, images: ImageSet) -> Place:
    """A COLMAP model, or images with depth maps, in the frame of a map's `images` where three of them are in it."""
    from covis.reading.colmap import find_model, nearest_up, read_model
    from covis.reading.georeference import LEAST, known_positions, placed
    from covis.reading.sources import open_images

    if find_model(path) is not None:
        model = read_model(path)
        posed = model.image_set()
        up = nearest_up(quaternion_matrices(model.quaternions, "wxyz").transpose(0, 2, 1))
        place = Place(posed, TrackScene(model, up), None, "units")
    else:
        posed = open_images(path)
        place = Place(posed, DepthScene(posed), None, "m" if posed.poses.metric else "units")
    if posed.poses.frame == images.poses.frame:
        return place
    if not images.poses.frame:
        return place
    known = known_positions(posed, images)
    if (known.known & posed.poses.known).sum() < LEAST:
        return place
    return place._replace(into_map=placed(posed.poses, known)[1], unit="m")


def moved(pose: Resected, by: Similarity) -> Resected:
    """The pose after a similarity, its covariance too."""
    turn = np.zeros((6, 6))
    turn[:3, :3], turn[3:, 3:] = by.rotation, by.scale * by.rotation
    return replace(
        pose,
        rotation=by.rotation @ pose.rotation,
        centre=by(pose.centre[None])[0],
        covariance=turn @ pose.covariance @ turn.T,
    )


def pose_photo(photo: Path, matches: Sequence[bytes], place: Place) -> Resected | None:
    """The pose of a photo from the names of its matches in a map; None where nothing fits."""
    found = locate_pose(photo, place.images, place.find(matches), place.scene)
    return found if found is None or place.into_map is None else moved(found, place.into_map)
