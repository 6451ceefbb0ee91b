"""Maps keep full poses (6DOF) and cameras through every change, and open without them where they were made without."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from pyproj import Proj
from simulated import World, image_set, simulated_map, store, tiny, with_full_poses

from covis.core.errors import InputError
from covis.maps import photos
from covis.maps.archive import export_map, import_map
from covis.maps.care import repair_map
from covis.maps.map import Map
from covis.maps.storage import layout
from covis.poses import Poses, true_headings
from covis.reading.cameras import camera_of
from layouts.builders import view_rotation


def known(map_):
    """Photo → rotation and camera, as text that is equal only where every bit is."""
    images = map_.images
    turn = images.poses.rotation
    unknown = np.full((3, 3), np.nan)
    return {
        images.name(i): ((unknown if turn is None else turn[i]).tobytes(), repr(camera_of(images, i)))
        for i in range(len(images))
    }


@pytest.fixture(scope="module")
def town(tmp_path_factory):
    return simulated_map(tmp_path_factory.mktemp("town"), groups=4, photos=10, full=True)[0]


@pytest.fixture
def copy(town, tmp_path):
    shutil.copytree(town.path, tmp_path / "map")
    return Map.open(tmp_path / "map", verify=True)


def test_what_goes_in_comes_out(town):
    opened = Map.open(town.path, verify=True)
    xy, heading = town.images.poses.xy, town.images.poses.heading
    given = with_full_poses(image_set(town.path, xy, heading))
    assert known(opened) == known(replace_images(opened, given))
    assert sum(camera_of(opened.images, i) is None for i in range(40)) == 8
    assert np.isnan(opened.images.poses.rotation[4]).all()


def replace_images(map_, images):
    return replace(map_, storage=replace(map_.storage, images=images))


def test_changes_keep_them(copy, tmp_path):
    before = known(copy)
    model = tiny()
    xy = np.column_stack([np.arange(3.0), np.zeros(3)])
    plain = image_set(tmp_path / "new", xy, np.zeros(3), start=100)
    vectors = World(model.dim).describe(xy, np.random.default_rng(0))
    after = copy.add(plain, descriptors=store(tmp_path / "store", plain, vectors, model.fingerprint()))
    assert {k: v for k, v in known(after).items() if k in before} == before
    assert all(camera == "None" for name, (_, camera) in known(after).items() if name not in before)
    fewer = Map.open(after.path).remove(["00003.jpg", "00100.jpg"])
    assert known(Map.open(fewer.path)) == {k: v for k, v in known(after).items() if k not in ("00003.jpg", "00100.jpg")}
    export_map(fewer, tmp_path / "a.covis")
    assert known(import_map(tmp_path / "a.covis", tmp_path / "back")) == known(fewer)
    (copy.path / layout.CURRENT).write_text("{")
    repair_map(copy.path)
    assert known(Map.open(copy.path)) == known(fewer)


def test_rotations_turn_with_the_frame(tmp_path):
    """Added from a frame with another north, a photo looks the same way against true north."""
    model = tiny()
    lat, lon = np.array([60.0, 60.001]), np.array([24.0, 24.001])
    frames = "EPSG:32635", "EPSG:32634"
    made = None
    for k, frame in enumerate(frames):
        poses = Poses.from_latlon(lat + 0.01 * k, lon, [30.0, 200.0], frame=frame)
        rotation = np.stack([view_rotation(h, 10.0) for h in poses.heading])
        images = replace(image_set(tmp_path, np.zeros((2, 2)), start=2 * k), poses=replace(poses, rotation=rotation))
        vectors = World(model.dim).describe(poses.xy - poses.xy[0], np.random.default_rng(k))
        given = store(tmp_path / f"store{k}", images, vectors, model.fingerprint())
        if made is None:
            made = Map.create(tmp_path / "map", images, model, descriptors=given)
        else:
            made = made.add(images, descriptors=given)
    poses = made.images.poses
    ahead = poses.rotation[:, :, 2]
    seen = np.degrees(np.arctan2(ahead[:, 0], ahead[:, 1]))
    np.testing.assert_allclose((seen - poses.heading + 180) % 360 - 180, 0, atol=1e-6)
    np.testing.assert_allclose(true_headings(poses), [30.0, 200.0, 30.0, 200.0], atol=1e-6)
    turned = Proj(frames[0]).get_factors(24.0, 60.0).meridian_convergence
    assert abs(turned) > 2.0  # the two norths differ, so nothing turned would be seen
    np.testing.assert_allclose(ahead[:, 2], np.sin(np.radians(10.0)), atol=1e-9)


def test_a_camera_that_is_none_is_refused(town, tmp_path):
    with pytest.raises(InputError, match="camera 3"):
        photos.with_full(
            town.images, {"camera": np.full(40, 3), "cameras": np.array([b"PINHOLE 4 4 1 1 2 2"] * 2)}, "x"
        )
