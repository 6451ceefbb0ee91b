"""Depth beside images: the same room comes out, and the same surface overlap."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from covis.labels import SurfaceOverlap
from covis.labels.clouds import fuse_depth
from covis.reading.sources import open_images
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


def quaternion(rotation):
    return Rotation.from_matrix(rotation).as_quat()


def kapture_folder(folder, poses, depth):
    kapture = pytest.importorskip("kapture", reason="writes its own depth maps")
    from kapture.io.csv import kapture_to_dir
    from kapture.io.records import depth_map_to_file, get_record_fullpath

    camera = [*SIZE, FOCAL, FOCAL, SIZE[0] / 2, SIZE[1] / 2]
    sensors, records = kapture.Sensors(), kapture.RecordsCamera()
    sensors["cam"] = kapture.Camera(kapture.CameraType.PINHOLE, camera)
    sensors["cam_depth"] = kapture.Camera(kapture.CameraType.PINHOLE, camera, sensor_type="depth")
    maps, trajectory = kapture.RecordsDepth(), kapture.Trajectories()
    for i in range(N):
        records[i, "cam"], maps[i, "cam_depth"] = f"{i}.jpg", f"{i}.depth"
        turn = poses.rotation[i].T
        trajectory[i, "cam"] = kapture.PoseTransform(np.roll(quaternion(turn), 1), -turn @ poses.centre[i])
        path = get_record_fullpath(str(folder), f"{i}.depth")
        (folder / "sensors" / "records_data").mkdir(parents=True, exist_ok=True)
        depth_map_to_file(path, depth[i].astype(np.float32))
    whole = kapture.Kapture(sensors=sensors, records_camera=records, records_depth=maps, trajectories=trajectory)
    kapture_to_dir(str(folder), whole)
    return folder


def test_depth_beside_images_gives_the_room_and_its_overlap(truth, tmp_path):
    poses, depth = truth
    images = open_images(kapture_folder(tmp_path, poses, depth))
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
