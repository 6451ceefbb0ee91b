"""Depth beside images: the same room comes out, and the same surface overlap."""

import numpy as np
import pytest

from covis.images import ImageSet
from covis.labels import SurfaceOverlap
from covis.labels.clouds import fuse_depth
from covis.reading.cameras import Camera, calibration
from covis.reading.sources import open_images
from covis.reading.table import write_images
from labels import rooms

SIZE, FOCAL = (80, 60), 50.0
ROOM = np.array([6.0, 5.0, 3.0])
N = 10


def depth_of(rotation, centre):
    """(h, w) metres along the optical axis to the walls of the room."""
    u, v = np.meshgrid(np.arange(SIZE[0]), np.arange(SIZE[1]))  # the depth of a pixel is that at its integer place
    local = np.stack([(u - SIZE[0] / 2) / FOCAL, (v - SIZE[1] / 2) / FOCAL, np.ones(u.shape)], axis=-1)
    ray = local @ rotation.T
    with np.errstate(divide="ignore"):
        ahead = np.where(ray > 0, (ROOM - centre) / ray, -centre / ray)
    return ahead.min(axis=-1)


@pytest.fixture(scope="module")
def truth():
    images = rooms.cameras(N, seed=3)
    depth = [depth_of(images.poses.rotation[i], images.poses.centre[i]) for i in range(N)]
    return images.poses, depth


def table_with_depth(folder, poses, depth):
    """A table whose rows name depth maps in metres, of the camera that took the images."""
    cameras = calibration([Camera("PINHOLE", *SIZE, (FOCAL, FOCAL, SIZE[0] / 2, SIZE[1] / 2))] * N)
    for i in range(N):
        np.save(folder / f"{i}.npy", depth[i].astype(np.float32))
    columns = {"depth": np.array([f"{i}.npy" for i in range(N)]), "depth_scale_m": np.ones(N)}
    names = [f"{i}.jpg" for i in range(N)]
    images = ImageSet.of(folder, names, poses, intrinsics=cameras.intrinsics, columns=cameras.columns | columns)
    write_images(images, folder / "room.csv")
    return folder / "room.csv"


def test_depth_beside_images_gives_the_room_and_its_overlap(truth, tmp_path):
    poses, depth = truth
    images = open_images(table_with_depth(tmp_path, poses, depth))
    assert images.poses.metric
    np.testing.assert_allclose(images.poses.centre, poses.centre, atol=1e-9)
    cloud = fuse_depth([images], step_px=2)
    off = np.minimum(np.abs(cloud.xyz), np.abs(cloud.xyz - ROOM)).min(axis=1)
    assert off.max() < 0.005
    graph = SurfaceOverlap(cloud, measure="iou")(images, images)
    seen = rooms.seen(images, cloud.xyz)
    for i in range(N):
        for j in range(i):
            both, either = (seen[i] & seen[j]).sum(), (seen[i] | seen[j]).sum()
            assert graph.lookup(i, j) == pytest.approx(both / either, abs=0.01)
