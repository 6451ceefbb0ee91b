"""Bags written by `rosbags`, in ROS 1, ROS 2 (SQLite) and MCAP, read by covis."""

import io

import numpy as np
import pytest
from PIL import Image
from scipy.spatial.transform import Rotation

from covis.core.errors import InputError
from covis.poses import Poses
from covis.reading.formats.bag import OPTICAL, import_bag
from covis.reading.frames import Every
from covis.reading.sources import is_bag

pytest.importorskip("rosbags", reason="writes the bags")
from rosbags.rosbag1 import Writer as Writer1
from rosbags.rosbag2 import StoragePlugin
from rosbags.rosbag2 import Writer as Writer2
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

N = 12
RNG = np.random.default_rng(0)
PICTURES = np.kron(RNG.integers(0, 255, (N, 3, 4, 3), dtype=np.uint8), np.ones((1, 8, 8, 1), np.uint8))
TIMES = 1700000000.0 + 0.5 * np.arange(N)
XYZ = np.column_stack([2.0 * np.arange(N), np.sin(np.arange(N)), np.full(N, 0.5)])
YAW = np.linspace(0, 1.0, N)
MOUNT = np.array([0.3, 0.0, 1.2])


class Messages:
    """Messages of one type store (ROS 1 headers count, ROS 2's do not)."""

    def __init__(self, store):
        self.store, self.ros1 = store, store.fielddefs["std_msgs/msg/Header"][1][0][0] == "seq"

    def make(self, kind, **cells):
        return self.store.types[kind](**cells)

    def header(self, when, frame):
        sec = int(when)
        stamp = self.make("builtin_interfaces/msg/Time", sec=sec, nanosec=round((when - sec) * 1e9))
        return self.make("std_msgs/msg/Header", **({"seq": 0} if self.ros1 else {}), stamp=stamp, frame_id=frame)

    def image(self, i):
        cells = {"height": 24, "width": 32, "encoding": "bgr8", "is_bigendian": 0, "step": 96}
        pixels = PICTURES[i][:, :, ::-1].reshape(-1)
        return self.make("sensor_msgs/msg/Image", header=self.header(TIMES[i], "cam"), data=pixels.copy(), **cells)

    def compressed(self, i):
        buffer = io.BytesIO()
        Image.fromarray(PICTURES[i]).save(buffer, "JPEG", quality=95)
        data = np.frombuffer(buffer.getvalue(), np.uint8)
        kind = "sensor_msgs/msg/CompressedImage"
        return self.make(kind, header=self.header(TIMES[i], "cam"), format="jpeg", data=data)

    def odometry(self, i):
        point = self.make("geometry_msgs/msg/Point", **dict(zip("xyz", map(float, XYZ[i]), strict=True)))
        turn = Rotation.from_euler("z", YAW[i]).as_quat()
        turn = self.make("geometry_msgs/msg/Quaternion", **dict(zip("xyzw", map(float, turn), strict=True)))
        pose = self.make("geometry_msgs/msg/Pose", position=point, orientation=turn)
        pose = self.make("geometry_msgs/msg/PoseWithCovariance", pose=pose, covariance=np.zeros(36))
        zero = self.make("geometry_msgs/msg/Vector3", x=0.0, y=0.0, z=0.0)
        twist = self.make("geometry_msgs/msg/Twist", linear=zero, angular=zero)
        twist = self.make("geometry_msgs/msg/TwistWithCovariance", twist=twist, covariance=np.zeros(36))
        head = self.header(TIMES[i], "odom")
        return self.make("nav_msgs/msg/Odometry", header=head, child_frame_id="base_link", pose=pose, twist=twist)

    def fix(self, i, lat, lon, status=0):
        state = self.make("sensor_msgs/msg/NavSatStatus", status=status, service=1)
        cells = {"latitude": lat, "longitude": lon, "altitude": 50.0}
        cells |= {"position_covariance": np.zeros(9), "position_covariance_type": 0}
        return self.make("sensor_msgs/msg/NavSatFix", header=self.header(TIMES[i], "gps"), status=state, **cells)

    def info(self):
        roi = {"x_offset": 0, "y_offset": 0, "height": 0, "width": 0, "do_rectify": False}
        roi = self.make("sensor_msgs/msg/RegionOfInterest", **roi)
        arrays = {"d": np.array([0.1, 0.2, 0.01, 0.02, 0.0]), "k": np.array([30.0, 0, 16, 0, 31, 12, 0, 0, 1])}
        arrays |= {"r": np.eye(3).ravel(), "p": np.zeros(12)}
        if self.ros1:
            arrays = {key.upper(): value for key, value in arrays.items()}
        cells = {"height": 24, "width": 32, "distortion_model": "plumb_bob", "binning_x": 0, "binning_y": 0, "roi": roi}
        return self.make("sensor_msgs/msg/CameraInfo", header=self.header(TIMES[0], "cam"), **cells, **arrays)

    def static(self):
        turn = Rotation.from_matrix(OPTICAL[:, :3]).as_quat()
        turn = self.make("geometry_msgs/msg/Quaternion", **dict(zip("xyzw", map(float, turn), strict=True)))
        shift = self.make("geometry_msgs/msg/Vector3", **dict(zip("xyz", map(float, MOUNT), strict=True)))
        part = self.make("geometry_msgs/msg/Transform", translation=shift, rotation=turn)
        kind = "geometry_msgs/msg/TransformStamped"
        whole = self.make(kind, header=self.header(TIMES[0], "base_link"), child_frame_id="cam", transform=part)
        return self.make("tf2_msgs/msg/TFMessage", transforms=[whole])


def write_bag(path, kind, *, fixes=False, static=True, compressed=False):
    store = get_typestore(Stores.ROS1_NOETIC if kind == "ros1" else Stores.ROS2_HUMBLE)
    if kind == "ros1":
        text = "geometry_msgs/TransformStamped[] transforms"
        store.register(get_types_from_msg(text, "tf2_msgs/msg/TFMessage"))
    make = Messages(store)
    plugin = StoragePlugin.MCAP if kind == "mcap" else StoragePlugin.SQLITE3
    writer = Writer1(path) if kind == "ros1" else Writer2(path, version=9, storage_plugin=plugin)
    with writer:

        def add(topic, message, when):
            if topic not in topics:
                topics[topic] = writer.add_connection(topic, message.__msgtype__, typestore=store)
            pack = store.serialize_ros1 if kind == "ros1" else store.serialize_cdr
            writer.write(topics[topic], int(when * 1e9), pack(message, message.__msgtype__))

        topics = {}
        add("/front/camera_info", make.info(), TIMES[0])
        if static:
            add("/tf_static", make.static(), TIMES[0])
        for i in range(N):
            add("/front/image_raw", make.compressed(i) if compressed else make.image(i), TIMES[i])
            add("/odom", make.odometry(i), TIMES[i])
            if fixes:
                lat, lon = 52.0 + XYZ[i, 0] * 1e-5, 13.0 + XYZ[i, 1] * 1e-5
                add("/fix", make.fix(i, 0.0 if i == 2 else lat, 0.0 if i == 2 else lon, -1 if i == 2 else 0), TIMES[i])
    return path


@pytest.mark.parametrize("kind", ["ros1", "ros2", "mcap"])
def test_bags_give_images_poses_and_intrinsics(tmp_path, kind):
    path = write_bag(tmp_path / ("run.bag" if kind == "ros1" else "run"), kind)
    assert is_bag(path)
    images, left_out = import_bag(path, tmp_path / "frames")
    assert len(images) == N
    assert not left_out
    body = Rotation.from_euler("z", YAW[:, None])
    np.testing.assert_allclose(images.poses.centre, XYZ + body.apply(MOUNT), atol=1e-9)
    np.testing.assert_allclose(images.poses.rotation, body.as_matrix() @ OPTICAL[:, :3], atol=1e-9)
    np.testing.assert_allclose(images.poses.heading, (90 - np.degrees(YAW)) % 360, atol=1e-9)
    np.testing.assert_array_equal(images.intrinsics[0], (30, 31, 16, 12, 32, 24))
    assert images.columns["lens"][0] == "OPENCV 32 24 30.0 31.0 16.0 12.0 0.1 0.2 0.01 0.02"
    np.testing.assert_allclose(images.columns["time"], TIMES)
    with Image.open(images.path(3)) as image:
        assert (
            np.abs(np.asarray(image).astype(float) - PICTURES[3]).mean() < 10
        )  # JPEG; red and blue exchanged would be 60


def test_a_lone_mcap_file_is_read(tmp_path):
    folder = write_bag(tmp_path / "run", "mcap")
    file = next(folder.glob("*.mcap"))
    assert len(import_bag(file, tmp_path / "frames")[0]) == N


def test_compressed_images_are_kept_byte_for_byte(tmp_path):
    images, _ = import_bag(write_bag(tmp_path / "run", "mcap", compressed=True), tmp_path / "frames")
    buffer = io.BytesIO()
    Image.fromarray(PICTURES[0]).save(buffer, "JPEG", quality=95)
    assert images.path(0).read_bytes() == buffer.getvalue()


def test_fixes_place_the_path_on_earth_and_those_without_a_fix_are_left_out(tmp_path):
    images, _ = import_bag(write_bag(tmp_path / "run", "ros2", fixes=True), tmp_path / "frames")
    assert images.poses.frame
    expected = Poses.from_latlon(52.0 + XYZ[:, 0] * 1e-5, 13.0 + XYZ[:, 1] * 1e-5, frame=images.poses.frame)
    off = np.linalg.norm(images.poses.xy - expected.xy, axis=1)
    assert np.median(off) < 2.0  # the made-up track is not quite the odometry's, and the camera sits ahead


def test_every_so_many_metres_and_a_missing_transform(tmp_path, capsys):
    images, _ = import_bag(write_bag(tmp_path / "run", "ros2", static=False), tmp_path / "frames", Every.parse("4m"))
    assert 5 <= len(images) <= 7
    assert "is assumed to face forward" in capsys.readouterr().err.replace("\n", " ")


def test_errors_name_the_bag(tmp_path):
    (tmp_path / "bad.bag").write_bytes(b"no bag")
    with pytest.raises(InputError, match=r"bad\.bag cannot be read as a bag"):
        import_bag(tmp_path / "bad.bag", tmp_path / "f")
    path = write_bag(tmp_path / "run", "ros2")
    with pytest.raises(InputError, match="no topic '/left'"):
        import_bag(path, tmp_path / "f", topic="/left")
