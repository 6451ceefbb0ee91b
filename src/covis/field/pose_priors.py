"""Positions as pose priors of COLMAP's mapper, in its database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.images import ImageSet


def write_pose_priors(path: Path | str, images: ImageSet, deviation_m: float = 5.0) -> int:
    """Positions of `images` into a COLMAP database as priors of its mapper; how many were written.

    Images that the database has keep their features; others are added with their cameras. On Earth positions go in as
    WGS84, elsewhere as metres.
    """
    try:
        import pycolmap
    except ImportError:
        raise InputError("writing a COLMAP database needs pycolmap: pip install 'covis[sfm]'") from None
    if not images.poses.metric:
        raise InputError("pose priors are in metres, and the scale of these poses is unknown; give --scale first")
    places, system = _prior_positions(images)
    database = pycolmap.Database.open(str(path))
    try:
        known = {image.name: image for image in database.read_all_images()}
        placed = {prior.corr_data_id.id: prior for prior in database.read_all_pose_priors()}
        cameras: dict[Any, int] = {}
        written = 0
        for i in np.flatnonzero(images.poses.known):
            image = known.get(images.name(int(i))) or _add_image(pycolmap, database, images, int(i), cameras)
            prior = placed.get(image.image_id) or pycolmap.PosePrior(corr_data_id=image.data_id)
            prior.position = places[i]
            prior.position_covariance = np.eye(3) * deviation_m**2
            prior.coordinate_system = system
            if image.image_id in placed:
                database.update_pose_prior(prior)
            else:
                database.write_pose_prior(prior)
            written += 1
    finally:
        database.close()
    return written


def _prior_positions(images: ImageSet) -> tuple[Floats, Any]:
    import pycolmap

    height = images.poses.centre[:, 2]
    if images.poses.frame:
        degrees = images.poses.latlon()
        return np.column_stack([degrees, np.nan_to_num(height)]), pycolmap.PosePriorCoordinateSystem.WGS84
    return np.nan_to_num(images.poses.centre), pycolmap.PosePriorCoordinateSystem.CARTESIAN


def _add_image(pycolmap: Any, database: Any, images: ImageSet, i: int, cameras: dict[Any, int]) -> Any:
    """A new image of the database, and its camera where no image before it had the same."""
    from covis.reading.cameras import camera_of
    from covis.reading.decoding import image_size

    camera = camera_of(images, i)
    width, height = (camera.width, camera.height) if camera else image_size(images.path(i))
    key = camera or (width, height)
    if key not in cameras:
        if camera is not None:
            new = pycolmap.Camera(model=camera.model, width=width, height=height, params=list(camera.params))
        else:  # COLMAP's own guess: a focal length of 1.2 times the longer side
            new = pycolmap.Camera.create_from_model_name(0, "SIMPLE_RADIAL", 1.2 * max(width, height), width, height)
        cameras[key] = database.write_camera(new)
    image = pycolmap.Image(name=images.name(i), camera_id=cameras[key])
    image.image_id = database.write_image(image)
    return image
