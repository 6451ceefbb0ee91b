"""Formats with camera poses: each written by its own library where one installs, read by covis, compared."""

import numpy as np
import pytest
from PIL import Image

from covis.core.errors import InputError
from covis.poses import UNSCALED
from covis.reading import cameras
from covis.reading.formats import colmap
from covis.reading.sources import READERS, Reader, open_images, read_posed


def photo(path, size=(64, 48)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (90, 120, 60)).save(path)


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
        images = model.image_set(up=up)
        points = model.world_points(up)
        turned = np.einsum("nji,npj->npi", images.poses.rotation, points[None] - images.poses.centre[:, None])
        for k, i in enumerate(model.ids):
            theirs = reconstruction.images[int(i)].cam_from_world()
            expected = np.array([theirs * p for p in model.points])
            np.testing.assert_allclose(turned[k], expected, atol=1e-9)


def test_a_cut_model_names_its_file(reconstruction, tmp_path):
    reconstruction.write_binary(tmp_path)
    whole = (tmp_path / "images.bin").read_bytes()
    (tmp_path / "images.bin").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"images\.bin cannot be read"):
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
    assert colmap.is_model(tmp_path)


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
