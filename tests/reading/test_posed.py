"""Formats with camera poses: each written by its own library where one installs, read by covis, compared."""

import json

import numpy as np
import pytest
from PIL import Image
from scipy.spatial.transform import Rotation, Slerp

from covis.core.errors import InputError
from covis.poses import UNSCALED
from covis.reading import cameras, colmap, scenes, trajectories
from covis.reading.sources import FORMATS, posed_format, read_posed


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


# COLMAP


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
    assert posed_format(tmp_path) == "COLMAP model"


# Trajectories, written by evo


@pytest.fixture
def evo_path():
    evo = pytest.importorskip("evo.core.trajectory", reason="evo writes trajectories")
    rotation, place = walk()
    quaternion = np.roll(Rotation.from_matrix(rotation).as_quat(), 1, axis=1)
    return evo.PoseTrajectory3D(place, quaternion, 1305031102.0 + 0.1 * np.arange(len(place)))


def test_tum_folders(evo_path, tmp_path):
    from evo.tools import file_interface

    folder = tmp_path / "rgbd_dataset_freiburg1_room"
    folder.mkdir()
    file_interface.write_tum_trajectory_file(folder / "groundtruth.txt", evo_path)
    stamps = [*evo_path.timestamps, evo_path.timestamps[0] + 0.05, evo_path.timestamps[-1] + 9]
    lines = [f"{t:.6f} rgb/{i:03d}.png" for i, t in enumerate(stamps)]
    (folder / "rgb.txt").write_text("# color images\n" + "\n".join(lines))
    (folder / "depth.txt").write_text("".join(f"{t + 0.01:.6f} depth/{i:03d}.png\n" for i, t in enumerate(stamps[:5])))
    images = read_posed(folder)
    n = len(evo_path.timestamps)
    np.testing.assert_allclose(images.poses.centre[:n], evo_path.positions_xyz, atol=1e-6)
    np.testing.assert_allclose(images.poses.rotation[:n], np.array(evo_path.poses_se3)[:, :3, :3], atol=1e-6)
    between = Slerp([0, 1], Rotation.from_matrix(images.poses.rotation[:2]))(0.5).as_matrix()
    np.testing.assert_allclose(images.poses.rotation[n], between, atol=1e-6)
    assert not images.poses.known[-1]
    assert np.isnan(images.poses.rotation[-1]).all()
    np.testing.assert_array_equal(images.intrinsics[0], (517.3, 516.5, 318.6, 255.3, 640, 480))
    assert images.columns["depth"][0] == b"depth/000.png"
    assert images.columns["depth"][8] == b""


@pytest.mark.parametrize(("repeated", "how"), [(1.5, "goes backwards by 1.500 s"), (3.0, "does not advance")])
def test_a_clock_that_does_not_advance_is_reported(tmp_path, capsys, repeated, how):
    rows = [f"{t} {t} 0 0 0 0 0 1" for t in (1.0, 2.0, 3.0, repeated, 4.0)]
    (tmp_path / "t.txt").write_text("\n".join(rows))
    path = trajectories.read_tum_trajectory(tmp_path / "t.txt")
    assert path.time_s.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert f"time {how} at pose 3; 1 left out" in capsys.readouterr().err


def test_kitti_sequences(evo_path, tmp_path):
    from evo.tools import file_interface

    base = tmp_path / "sequences" / "04"
    for i in range(len(evo_path.timestamps)):
        photo(base / "image_2" / f"{i:06d}.png", (124, 37))
    (tmp_path / "poses").mkdir()
    turn = np.array([[1.0, 0, 0], [0, 0, -1], [0, 1, 0]])  # the walk with KITTI's world: y down, z ahead
    evo_path.transform(np.block([[turn, np.zeros((3, 1))], [np.zeros((1, 3)), 1.0]]))
    file_interface.write_kitti_poses_file(tmp_path / "poses" / "04.txt", evo_path)
    projection = [707.1, 0, 60.1, 46.9, 0, 707.1, 18.3, -0.1, 0, 0, 1, 0.005]
    (base / "calib.txt").write_text(f"P0: {'0 ' * 11}1\nP2: {' '.join(map(str, projection))}\n")
    (base / "times.txt").write_text("".join(f"{0.1 * i:e}\n" for i in range(len(evo_path.timestamps))))
    images = read_posed(base)
    theirs = np.array(evo_path.poses_se3)
    matrix = np.array(projection).reshape(3, 4)
    offset = -np.linalg.inv(matrix[:, :3]) @ matrix[:, 3]
    centre = theirs[:, :3, 3] + theirs[:, :3, :3] @ offset
    ground = np.column_stack([centre[:, 2], -centre[:, 0], -centre[:, 1]])  # any right-handed frame with z up
    np.testing.assert_allclose(images.poses.centre, ground, atol=1e-6)
    np.testing.assert_array_equal(images.intrinsics[0], (707.1, 707.1, 60.1, 18.3, 124, 37))
    assert (
        np.abs(images.poses.heading[3] - np.degrees(np.arctan2(*np.diff(images.poses.xy[[3, 4]], axis=0)[0])) % 360)
        < 20
    )
    (tmp_path / "poses" / "04.txt").write_text("1 0 0 0 0 1 0 0 0 0 1 0\n")
    with pytest.raises(InputError, match=r"04\.txt has 1 poses"):
        read_posed(base)


def test_euroc_sequences(evo_path, tmp_path):
    body = tmp_path / "MH_01" / "mav0"
    (body / "cam0").mkdir(parents=True)
    (body / "state_groundtruth_estimate0").mkdir()
    stamps = (evo_path.timestamps * 1e9).astype(np.int64)
    rows = np.column_stack([evo_path.positions_xyz, evo_path.orientations_quat_wxyz])
    text = "#timestamp, p_RS_R_x [m], ...\n"
    text += "".join(f"{t},{','.join(repr(float(v)) for v in row)},0,0,0\n" for t, row in zip(stamps, rows, strict=True))
    (body / "state_groundtruth_estimate0" / "data.csv").write_text(text)
    (body / "cam0" / "data.csv").write_text("#timestamp [ns],filename\n" + "".join(f"{t},{t}.png\r\n" for t in stamps))
    extrinsic = np.eye(4)
    extrinsic[:3, :3] = Rotation.from_euler("xyz", [10, 20, 30], degrees=True).as_matrix()
    extrinsic[:3, 3] = (0.1, -0.2, 0.3)
    (body / "cam0" / "sensor.yaml").write_text(
        f"sensor_type: camera\nT_BS:\n  cols: 4\n  rows: 4\n  data: {extrinsic.ravel().tolist()}\n"
        "resolution: [752, 480]\nintrinsics: [458.654, 457.296, 367.215, 248.375]\n"
        "distortion_model: radial-tangential\ndistortion_coefficients: [-0.28, 0.07, 0.0002, 1.8e-05]\n"
    )
    from evo.tools import file_interface

    theirs = file_interface.read_euroc_csv_trajectory(str(body / "state_groundtruth_estimate0" / "data.csv"))
    images = read_posed(tmp_path / "MH_01")
    camera = np.array(theirs.poses_se3) @ extrinsic
    np.testing.assert_allclose(images.poses.centre, camera[:, :3, 3], atol=1e-9)
    np.testing.assert_allclose(images.poses.rotation, camera[:, :3, :3], atol=1e-9)
    assert cameras.camera_of(images, 0).model == "OPENCV"
    assert cameras.camera_of(images, 0).params[4:] == (-0.28, 0.07, 0.0002, 1.8e-05)


# Scenes


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


def transforms(n=5):
    rotation, place = walk(n)
    matrices = np.tile(np.eye(4), (n, 1, 1))
    matrices[:, :3, :3], matrices[:, :3, 3] = rotation @ np.diag([1, -1, -1]), place  # OpenGL axes
    frames = [{"file_path": f"images/{i}.png", "transform_matrix": m.tolist()} for i, m in enumerate(matrices)]
    return frames, rotation, place


def test_nerfstudio_transforms(tmp_path):
    frames, rotation, place = transforms()
    frames[1] |= {"fl_x": 99.0, "fl_y": 98.0}
    told = {
        "camera_model": "OPENCV",
        "fl_x": 70.0,
        "fl_y": 71.0,
        "cx": 32.0,
        "cy": 24.0,
        "w": 64,
        "h": 48,
        "k1": 0.1,
        "p2": 0.3,
    }
    (tmp_path / "transforms.json").write_text(json.dumps({**told, "frames": frames}))
    images = read_posed(tmp_path / "transforms.json")
    np.testing.assert_array_equal(images.poses.centre, place)
    np.testing.assert_array_equal(images.poses.rotation, rotation)
    np.testing.assert_array_equal(images.intrinsics[:2, 0], (70.0, 99.0))
    assert cameras.camera_of(images, 0).params[4:] == (0.1, 0.0, 0.0, 0.3)
    assert not images.poses.metric
    frames[0]["depth_file_path"] = "depth/0.png"
    (tmp_path / "transforms.json").write_text(json.dumps({**told, "applied_scale": 0.5, "frames": frames}))
    images = read_posed(tmp_path)
    assert images.poses.metric
    np.testing.assert_allclose(images.poses.centre, 2 * place)  # depth is in metres, positions in half metres


@pytest.mark.parametrize(
    ("told", "model", "params"),
    [
        ({"camera_model": "OPENCV", "k1": 0.1, "k3": 0.2}, "FULL_OPENCV", (0.1, 0, 0, 0, 0.2, 0, 0, 0)),
        (
            {"camera_model": "OPENCV_FISHEYE", "k1": 0.1, "k2": 0.2, "k3": 0.3, "k4": 0.4},
            "OPENCV_FISHEYE",
            (0.1, 0.2, 0.3, 0.4),
        ),
        ({"camera_model": "PINHOLE", "k1": 0.1}, "OPENCV", (0.1, 0, 0, 0)),
        ({"camera_model": "SIMPLE_PINHOLE"}, "PINHOLE", ()),
        ({}, "PINHOLE", ()),
    ],
)
def test_nerfstudio_lenses(tmp_path, told, model, params):
    """By the fields that its parser reads (`get_distortion_params` takes k1 to k4, p1 and p2 whatever the model is called)."""
    frames, *_ = transforms()
    size = {"fl_x": 70.0, "fl_y": 71.0, "cx": 32.0, "cy": 24.0, "w": 64, "h": 48}
    (tmp_path / "transforms.json").write_text(json.dumps({**size, **told, "frames": frames}))
    one = cameras.camera_of(read_posed(tmp_path), 0)
    assert (one.model, one.params[:4], one.params[4:]) == (model, (70.0, 71.0, 32.0, 24.0), params)


def test_instant_ngp_transforms_by_angle(tmp_path):
    frames, *_ = transforms()
    for frame in frames:
        photo(tmp_path / frame["file_path"])
        frame["file_path"] = "./" + frame["file_path"].removesuffix(".png")
    (tmp_path / "transforms.json").write_text(json.dumps({"camera_angle_x": 2 * np.arctan(0.5), "frames": frames}))
    images = read_posed(tmp_path)
    np.testing.assert_allclose(images.intrinsics[0], (64, 64, 32, 24, 64, 48))
    assert images.path(0).is_file()


def nuscenes_tables(root, places=("singapore-onenorth",)):
    """Tables as nuScenes' schema has them: four images of a walk at each place, one scene each; the walk and the mount."""
    rotation, place = walk(4)
    ego, mount = Rotation.from_matrix(rotation), Rotation.from_euler("xyz", [-90, 0, -90], degrees=True)
    base = root / "v1.0-mini"
    base.mkdir()

    def table(name, rows=()):
        (base / f"{name}.json").write_text(json.dumps(list(rows)))

    def wxyz(turn):
        return np.roll(turn.as_quat(), 1).tolist()

    table("sensor", [{"token": "s0", "channel": "CAM_FRONT", "modality": "camera"},
                     {"token": "s1", "channel": "LIDAR_TOP", "modality": "lidar"}])  # fmt: skip
    camera = {"translation": [1.7, 0.0, 1.5], "rotation": wxyz(mount), "sensor_token": "s0"}
    table("calibrated_sensor", [{"token": "c0", **camera, "camera_intrinsic": [[126, 0, 80], [0, 127, 45], [0, 0, 1]]}])
    rows = [(p, i, f"{p}-{i}") for p in range(len(places)) for i in range(4)]
    times = {key: 10**15 + 10**9 * p + i * 500_000 for p, i, key in rows}
    table("ego_pose", [{"token": f"e{key}", "rotation": wxyz(ego[i]), "translation": place[i].tolist(),
                        "timestamp": times[key]} for _, i, key in rows])  # fmt: skip
    row = {"calibrated_sensor_token": "c0", "width": 160, "height": 90, "is_key_frame": True, "fileformat": "jpg",
           "prev": "", "next": ""}  # fmt: skip
    table("sample_data", [row | {"token": f"d{key}", "ego_pose_token": f"e{key}", "sample_token": f"p{key}",
                                 "timestamp": times[key], "filename": f"samples/CAM_FRONT/{key}.jpg"}
                          for _, _, key in rows])  # fmt: skip
    table("sample", [{"token": f"p{key}", "scene_token": f"z{p}", "timestamp": times[key], "prev": "", "next": ""}
                     for p, _, key in rows])  # fmt: skip
    table("scene", [{"token": f"z{p}", "name": f"scene-{61 + p:04d}", "log_token": f"l{p}", "description": "",
                     "nbr_samples": 4, "first_sample_token": f"p{p}-0", "last_sample_token": f"p{p}-3"}
                    for p in range(len(places))])  # fmt: skip
    table("log", [{"token": f"l{p}", "location": name, "logfile": "", "vehicle": "", "date_captured": ""}
                  for p, name in enumerate(places)])  # fmt: skip
    photo(root / "maps" / "mask.png")
    table("map", [{"token": "m", "log_tokens": [f"l{p}" for p in range(len(places))], "category": "semantic_prior",
                   "filename": "maps/mask.png"}])  # fmt: skip
    for name in ("category", "attribute", "visibility", "instance", "sample_annotation"):
        table(name)
    return place, ego, mount


def test_nuscenes_tables(tmp_path):
    place, ego, mount = nuscenes_tables(tmp_path)
    images = read_posed(tmp_path)
    np.testing.assert_allclose(images.poses.centre, place + ego.apply([1.7, 0.0, 1.5]), atol=1e-12)
    np.testing.assert_allclose(images.poses.rotation, (ego * mount).as_matrix(), atol=1e-12)
    np.testing.assert_array_equal(images.intrinsics[0], (126, 127, 80, 45, 160, 90))
    assert images.group_names == ("scene-0061",)


def test_nuscenes_as_its_devkit_reads_it(tmp_path):
    devkit = pytest.importorskip("nuscenes.nuscenes", reason="the devkit asks for an older numpy; install it apart")
    from nuscenes.utils.geometry_utils import transform_matrix
    from pyquaternion import Quaternion

    nuscenes_tables(tmp_path)
    theirs = devkit.NuScenes("v1.0-mini", str(tmp_path), verbose=False)
    images = read_posed(tmp_path)
    for i, row in enumerate(theirs.sample_data):
        ego, own = (theirs.get(kind, row[f"{kind}_token"]) for kind in ("ego_pose", "calibrated_sensor"))
        world = np.eye(4)
        for part in (ego, own):
            world = world @ transform_matrix(part["translation"], Quaternion(part["rotation"]))
        np.testing.assert_allclose(images.poses.centre[i], world[:3, 3], atol=1e-12)
        np.testing.assert_allclose(images.poses.rotation[i], world[:3, :3], atol=1e-12)
        assert str(images.path(i)) == theirs.get_sample_data_path(row["token"])
        assert images.columns["time"][i] == row["timestamp"] * 1e-6


def test_nuscenes_places_are_not_mixed(tmp_path):
    """Each place has an origin of its own: Boston and Singapore are not three metres apart."""
    nuscenes_tables(tmp_path, ("boston-seaport", "singapore-onenorth"))
    with pytest.raises(InputError, match="--topic CAM_FRONT@boston-seaport"):
        read_posed(tmp_path)
    images = scenes.read_nuscenes(tmp_path, "CAM_FRONT@singapore-onenorth")
    assert (len(images), images.group_names) == (4, ("scene-0062",))
    with pytest.raises(InputError, match="images of boston-seaport, singapore-onenorth"):
        scenes.read_nuscenes(tmp_path, "CAM_FRONT@paris")


def test_query_lists_round_trip(tmp_path):
    lines = "q/a.jpg SIMPLE_RADIAL 640 480 500.25 320 240 0.1\nq/b.jpg PINHOLE 64 48 50 51 32.5 24\n"
    (tmp_path / "queries.txt").write_text(lines)
    images = read_posed(tmp_path / "queries.txt")
    assert not images.poses.known.any()
    assert images.intrinsics[:, 0].tolist() == [500.25, 50.0]
    scenes.write_query_list(tmp_path / "again.txt", images)
    again = scenes.read_query_list(tmp_path / "again.txt")
    np.testing.assert_array_equal(again.intrinsics, images.intrinsics)
    assert [cameras.camera_of(again, i) for i in (0, 1)] == [cameras.camera_of(images, i) for i in (0, 1)]
    (tmp_path / "queries.txt").write_text("q/a.jpg SIMPLE_RADIAL 640 480 500 320\n")
    with pytest.raises(InputError, match="has 2 parameters"):
        scenes.read_query_list(tmp_path / "queries.txt")


def test_other_paths_are_none_of_these(tmp_path):
    photo(tmp_path / "a.jpg")
    (tmp_path / "notes.txt").write_text("hello\n")
    assert read_posed(tmp_path) is None
    assert read_posed(tmp_path / "notes.txt") is None
    assert len(FORMATS) == 11
