"""Formats with camera poses: each written by its own library where one installs, read by covis, compared."""

import numpy as np
import pytest
from PIL import Image
from scipy.spatial.transform import Rotation

from covis.core.errors import InputError
from covis.poses import UNSCALED
from covis.reading import cameras
from covis.reading.formats import colmap
from covis.reading.readers import READERS, Reader
from covis.reading.sources import open_images, posed_format, read_posed
from covis.reading.trajectory import Trajectory


def photo(path, size=(64, 48)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (90, 120, 60)).save(path)


def walk(n=12, seed=0):
    """Camera-to-world rotations (x right, y down, z forward; looking along the path) and centres of a winding walk."""
    t = np.linspace(0, 3, n)
    place = np.column_stack([10 * np.sin(t), 8 * t, 1.6 + 0.1 * np.cos(t)])
    ahead = np.gradient(place, axis=0)
    ahead /= np.linalg.norm(ahead, axis=1, keepdims=True)
    right = np.cross(ahead, [0.0, 0.0, 1.0])
    right /= np.linalg.norm(right, axis=1, keepdims=True)
    return np.stack([right, np.cross(ahead, right), ahead], axis=2), place


@pytest.fixture(scope="module")
def reconstruction():
    pycolmap = pytest.importorskip("pycolmap", reason="COLMAP's own library writes the model")
    pycolmap.set_random_seed(3)
    options = pycolmap.SyntheticDatasetOptions(
        num_rigs=2, num_cameras_per_rig=2, num_frames_per_rig=4, num_points3D=80, num_points2D_without_point3D=5
    )
    return pycolmap.synthesize_dataset(options)


@pytest.mark.parametrize("kind", ["text", "binary"])
def test_colmap_models_are_read_as_colmap_reads_them(reconstruction, tmp_path, kind):
    getattr(reconstruction, f"write_{kind}")(tmp_path)
    model = colmap.read_reconstruction(tmp_path)
    images = model.image_set(up="z")
    assert sorted(model.names) == sorted(i.name for i in reconstruction.images.values())
    for k, i in enumerate(model.ids):
        theirs = reconstruction.images[int(i)]
        np.testing.assert_allclose(images.poses.centre[k], theirs.projection_center(), atol=1e-12)
        turn = theirs.cam_from_world().rotation.matrix().T
        np.testing.assert_allclose(images.poses.rotation[k], turn, atol=1e-12)
        camera = reconstruction.cameras[theirs.camera_id]
        assert cameras.camera_of(images, k) == (camera.model_name, camera.width, camera.height, tuple(camera.params))
        fx = camera.focal_length_x if len(camera.focal_length_idxs()) > 1 else camera.focal_length
        assert images.intrinsics[k, 0] == fx
        np.testing.assert_array_equal(model.keypoints[k], [p.xy for p in theirs.points2D])
        seen = [p.point3D_id if p.has_point3D() else -1 for p in theirs.points2D]
        np.testing.assert_array_equal(model.observed[k], seen)
    for i, xyz in zip(model.point_ids, model.points, strict=True):
        np.testing.assert_array_equal(xyz, reconstruction.points3D[int(i)].xyz)
    assert images.poses.frame == UNSCALED
    assert not images.poses.metric


def test_every_camera_model_of_colmap_is_known():
    pycolmap = pytest.importorskip("pycolmap")
    for name, number in pycolmap.CameraModelId.__members__.items():
        if name != "INVALID":
            theirs = pycolmap.Camera.create_from_model_id(1, number, 100.0, 640, 480)
            expected = theirs.params_info.replace(",", " ").split()
            assert cameras.MODELS[name] == (int(number), " ".join(expected))


def test_tracks_are_counted_as_colmap_counts_shared_points(reconstruction, tmp_path):
    reconstruction.write_binary(tmp_path)
    model = colmap.read_reconstruction(tmp_path)
    seen = model.incidence()
    shared = (seen @ seen.T).toarray()
    sets = [{p.point3D_id for p in reconstruction.images[int(i)].points2D if p.has_point3D()} for i in model.ids]
    expected = [[len(a & b) for b in sets] for a in sets]
    np.testing.assert_array_equal(shared, expected)


def test_points_turn_with_the_poses(reconstruction, tmp_path):
    reconstruction.write_binary(tmp_path)
    model = colmap.read_reconstruction(tmp_path)
    for up in ("z", "-y", "x"):
        images = model.image_set(up=up, scale=2.0)
        assert images.poses.metric
        points = model.world_points(up, 2.0)
        turned = np.einsum("nji,npj->npi", images.poses.rotation, points[None] - images.poses.centre[:, None])
        for k, i in enumerate(model.ids):
            theirs = reconstruction.images[int(i)].cam_from_world()
            expected = 2.0 * np.array([theirs * p for p in model.points])
            np.testing.assert_allclose(turned[k], expected, atol=1e-9)


def test_a_cut_model_names_its_file(reconstruction, tmp_path):
    reconstruction.write_binary(tmp_path)
    whole = (tmp_path / "images.bin").read_bytes()
    (tmp_path / "images.bin").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"images\.bin ends after"):
        colmap.read_reconstruction(tmp_path)
    with pytest.raises(InputError, match="holds no COLMAP model"):
        colmap.read_reconstruction(tmp_path / "elsewhere")


def test_a_project_folder_finds_model_and_images(reconstruction, tmp_path):
    (tmp_path / "sparse/0").mkdir(parents=True)
    reconstruction.write_binary(tmp_path / "sparse/0")
    first = next(iter(reconstruction.images.values())).name
    photo(tmp_path / "images" / first)
    images = read_posed(tmp_path)
    assert images.root.resolve() == (tmp_path / "images").resolve()
    assert posed_format(tmp_path) == "colmap"


@pytest.mark.parametrize(("repeated", "how"), [(1.5, "goes backwards by 1.500 s"), (3.0, "does not advance")])
def test_a_clock_that_does_not_advance_is_reported(capsys, repeated, how):
    path = Trajectory.of(np.array([1.0, 2.0, 3.0, repeated, 4.0]), np.zeros((5, 3, 4)), "drive.bag")
    assert path.time_s.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert f"time {how} at pose 3; 1 left out" in capsys.readouterr().err


def test_kapture_folders(tmp_path):
    kapture = pytest.importorskip("kapture", reason="kapture writes its own folders")
    from kapture.io.csv import kapture_to_dir

    rotation, place = walk(6)
    sensors = kapture.Sensors()
    sensors["left"] = kapture.Camera(kapture.CameraType.OPENCV, [640, 480, 500, 501, 320, 240, 0.1, 0.2, 0.01, 0.02])
    sensors["right"] = kapture.Camera(kapture.CameraType.SIMPLE_PINHOLE, [640, 480, 510, 320, 240])
    rigs, records, trajectory = kapture.Rigs(), kapture.RecordsCamera(), kapture.Trajectories()
    on_rig = kapture.PoseTransform([0.9, 0.1, 0.2, 0.3], [0.5, 0.0, 0.1])
    rigs["car", "left"], rigs["car", "right"] = kapture.PoseTransform([1, 0, 0, 0], [0, 0, 0]), on_rig
    for i in range(6):
        quaternion = np.roll(Rotation.from_matrix(rotation[i].T).as_quat(), 1)
        trajectory[i * 100, "car"] = kapture.PoseTransform(quaternion, -rotation[i].T @ place[i])
        records[i * 100, "left"] = f"left/{i}.jpg"
        records[i * 100, "right"] = f"right/{i}.jpg"
    whole = kapture.Kapture(sensors=sensors, rigs=rigs, records_camera=records, trajectories=trajectory)
    kapture_to_dir(str(tmp_path), whole)
    images = read_posed(tmp_path)
    flat = kapture.rigs_remove(trajectory, rigs)
    for k in range(len(images)):
        theirs = flat[int(images.columns["time"][k]), str(images.columns["device"][k])].inverse()
        np.testing.assert_allclose(images.poses.centre[k], theirs.t_raw, atol=1e-9)
        quaternion = np.roll(np.array(theirs.r_raw), -1)
        np.testing.assert_allclose(images.poses.rotation[k], Rotation.from_quat(quaternion).as_matrix(), atol=1e-9)
    left = images.columns["device"].tolist().index("left")
    assert cameras.camera_of(images, left).params == (500, 501, 320, 240, 0.1, 0.2, 0.01, 0.02)
    assert len(images) == 12


def test_other_paths_are_none_of_these(tmp_path):
    photo(tmp_path / "a.jpg")
    (tmp_path / "notes.txt").write_text("hello\n")
    assert read_posed(tmp_path) is None
    assert read_posed(tmp_path / "notes.txt") is None


def test_a_plugin_adds_a_reader(tmp_path, monkeypatch):
    photo(tmp_path / "a.jpg")
    expected = open_images(tmp_path / "a.jpg")
    monkeypatch.setattr(READERS, "_entries", dict(READERS))
    READERS.register("mine")(Reader(lambda path: path.suffix == ".mine", lambda path: expected))
    (tmp_path / "set.mine").touch()
    assert open_images(tmp_path / "set.mine") is expected
