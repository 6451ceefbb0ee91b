"""ROS bags and MCAP without ROS (`rosbags`): images with the poses and positions that the bag has.

Poses come from odometry or stamped poses, through the static transforms to the camera; where there are fixes of a
satellite receiver as well, they place the path on Earth. Extra: `pip install 'covis[ros]'`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.core.foreign import check_regular, first_line, foreign
from covis.core.progress import say, warn
from covis.images import ImageSet
from covis.poses import Poses, quaternion_matrices
from covis.reading.cameras import Camera, calibration
from covis.reading.decoding import Reject, Rejected, decode_bytes
from covis.reading.frames import Every, Frame, Travelled, distance_along, extract
from covis.reading.georeference import LEAST, georeference

_IMAGES = ("sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage")
_POSES = ("nav_msgs/msg/Odometry", "geometry_msgs/msg/PoseStamped", "geometry_msgs/msg/PoseWithCovarianceStamped")
_FIX, _INFO, _STATIC = "sensor_msgs/msg/NavSatFix", "sensor_msgs/msg/CameraInfo", "tf2_msgs/msg/TFMessage"
OPTICAL = np.array([[0.0, 0.0, 1.0, 0.0], [-1.0, 0.0, 0.0, 0.0], [0.0, -1.0, 0.0, 0.0]])
"""A camera that looks along a body's x axis (x ahead, y left, z up, as ROS has it)."""
_CHANNELS = {"rgb8": (3, 1), "bgr8": (3, -1), "rgba8": (4, 1), "bgra8": (4, -1), "mono8": (1, 1), "8UC1": (1, 1)}
_MAX_GAP_S, _MAX_FIX_GAP_S = 0.5, 5.0
"""Between two poses, or two fixes, further apart than this nothing is interpolated."""


@dataclass
class Recording:
    """What a bag holds besides its pictures."""

    images: str
    """The topic of the images."""
    camera: Camera | None = None
    camera_frame: str = ""
    body_frame: str = ""
    poses: list[list[float]] = field(default_factory=list)
    """time, x, y, z, qx, qy, qz, qw."""
    fixes: list[list[float]] = field(default_factory=list)
    """time, lat, lon, altitude."""
    static: dict[str, tuple[str, Floats]] = field(default_factory=dict)
    """Child frame → parent and parent-from-child (4, 4)."""


@foreign("a bag")
def import_bag(
    path: Path, folder: Path, every: Every | None = None, *, topic: str | None = None, poses: str | None = None
) -> tuple[ImageSet, list[Rejected]]:
    """Writes a bag's pictures into `folder`: all of them, or one per `every`; blurred ones and duplicates are left out.

    `topic`: that of the images, `poses`: that of odometry or poses, where the bag has several.
    """
    recording = _read_recording(path, topic, poses)
    config = {"source": path.name, "topic": recording.images}
    taken = extract(_frames(path, recording.images), folder, _travelled(recording, every), every, config)
    if not taken.kept:
        raise InputError(
            f"{path}: no picture of {recording.images} lies within its path; check the clocks or give --every 2s"
        )
    when = np.array([frame.time_s for frame in taken.kept])
    intrinsics, columns = calibration([recording.camera] * len(when))
    images = ImageSet.of(
        folder,
        [frame.name for frame in taken.kept],
        Poses(np.full((len(when), 2), np.nan), np.full(len(when), np.nan)),
        path.stem,
        intrinsics=intrinsics,
        columns=columns | {"time": when},
    )
    return _with_poses(images, recording, path), taken.left_out


def _travelled(recording: Recording, every: Every | None) -> Travelled:
    """Metres or seconds gone at a time; without `every`, one more for each picture."""
    if every is None:
        count = itertools.count()
        return lambda when: float(next(count))
    if every.unit == "s":
        return float
    if recording.poses:
        rows = np.array(sorted(recording.poses))
        return distance_along(rows[:, 0], rows[:, 1:3])
    rows = np.array(sorted(recording.fixes)).reshape(-1, 4)
    return distance_along(rows[:, 0], Poses.from_latlon(rows[:, 1], rows[:, 2]).xy)


@contextmanager
def _open_bag(path: Path) -> Iterator[Any]:
    try:
        from rosbags.highlevel import AnyReader, AnyReaderError
        from rosbags.typesys import Stores, get_typestore
    except ImportError:
        raise InputError(f"{path} is a ROS bag; reading it needs rosbags: pip install 'covis[ros]'") from None
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        check_regular(file)
    try:
        with AnyReader([path], default_typestore=get_typestore(Stores.ROS2_HUMBLE)) as reader:
            yield reader
    except (AnyReaderError, OSError, AssertionError) as error:
        raise InputError(f"{path} cannot be read as a bag ({first_line(error)}); record or copy it again") from None


def _choose_topic(reader: Any, path: Path, kinds: tuple[str, ...], given: str | None, flag: str) -> Any:
    """The connection of a topic: the one that was given, or the one with most messages; None where there is none."""
    fitting = [c for c in reader.connections if c.msgtype in kinds and given in (None, c.topic)]
    fitting.sort(key=lambda c: (-c.msgcount, c.topic))
    if given is not None and not fitting:
        known = ", ".join(sorted({c.topic for c in reader.connections if c.msgtype in kinds})) or "none"
        raise InputError(f"{path} has no topic {given!r} for {flag}; known: {known}")
    if len(fitting) > 1:
        say(f"{path}: {fitting[0].topic} is used, of {', '.join(c.topic for c in fitting)}; choose with {flag}")
    return fitting[0] if fitting else None


def _read_recording(path: Path, topic: str | None, poses: str | None) -> Recording:
    """Everything but the pixels, in one pass."""
    with _open_bag(path) as reader:
        images = _choose_topic(reader, path, _IMAGES, topic, "--topic")
        if images is None:
            raise InputError(f"{path} has no images (sensor_msgs Image or CompressedImage)")
        body = _choose_topic(reader, path, _POSES, poses, "--poses")
        recording = Recording(images.topic)
        base = images.topic.removesuffix("/compressed").rpartition("/")[0]
        wanted = [
            c
            for c in reader.connections
            if c in (images, body)
            or c.msgtype == _FIX
            or (c.msgtype == _INFO and c.topic.startswith(base))
            or (c.msgtype == _STATIC and c.topic.endswith("tf_static"))
        ]
        for connection, _, raw in reader.messages(connections=wanted):
            if connection != images or not recording.camera_frame:
                _record(recording, connection.msgtype, reader.deserialize(raw, connection.msgtype))
    return recording


def _stamp_seconds(header: Any) -> float:
    return float(header.stamp.sec) + 1e-9 * float(header.stamp.nanosec)


def _record(recording: Recording, kind: str, message: Any) -> None:
    if kind in _IMAGES:
        recording.camera_frame = message.header.frame_id.lstrip("/")
    elif kind == _FIX:
        place = [message.latitude, message.longitude, message.altitude]
        if message.status.status >= 0 and np.isfinite(place[:2]).all() and place[:2] != [0.0, 0.0]:
            recording.fixes.append([_stamp_seconds(message.header), *place])
    elif kind == _INFO:
        recording.camera = _camera(message)
    elif kind == _STATIC:
        for part in message.transforms:
            shift, turn = part.transform.translation, part.transform.rotation
            matrix = _matrices(np.array([[shift.x, shift.y, shift.z, turn.x, turn.y, turn.z, turn.w]]))[0]
            recording.static[part.child_frame_id.lstrip("/")] = part.header.frame_id.lstrip("/"), matrix
    else:
        pose = message.pose.pose if hasattr(message.pose, "pose") else message.pose
        recording.body_frame = getattr(message, "child_frame_id", "").lstrip("/")
        p, q = pose.position, pose.orientation
        recording.poses.append([_stamp_seconds(message.header), p.x, p.y, p.z, q.x, q.y, q.z, q.w])


def _camera(message: Any) -> Camera | None:
    """From CameraInfo: `plumb_bob` is OpenCV's first coefficients, `equidistant` its fisheye; None if not calibrated."""
    k = message.k if hasattr(message, "k") else message.K
    lens = [float(v) for v in (message.d if hasattr(message, "d") else message.D)]
    params = (float(k[0]), float(k[4]), float(k[2]), float(k[5]))
    size = int(message.width), int(message.height)
    if params[0] == 0.0:
        return None
    if message.distortion_model == "equidistant" and len(lens) >= 4:
        return Camera("OPENCV_FISHEYE", *size, (*params, *lens[:4]))
    full = [*lens, *[0.0] * 8][:8]
    model, count = ("FULL_OPENCV", 8) if any(full[4:]) else ("OPENCV", 4) if any(full) else ("PINHOLE", 0)
    return Camera(model, *size, (*params, *full[:count]))


def _frames(path: Path, topic: str) -> Iterator[Frame]:
    with _open_bag(path) as reader:
        wanted = [c for c in reader.connections if c.topic == topic]
        for connection, _, raw in reader.messages(connections=wanted):
            yield _decode(path, reader.deserialize(raw, connection.msgtype))


def _decode(path: Path, message: Any) -> Frame:
    when = _stamp_seconds(message.header)
    data = message.data.tobytes()
    if not hasattr(message, "encoding"):
        try:
            pixels = decode_bytes(data, name=f"{path}: an image").pixels
        except Reject as reject:
            raise InputError(f"{reject}; record it again") from None
        return Frame(when, pixels, data if data.startswith(b"\xff\xd8\xff") else None)
    if message.encoding not in _CHANNELS:
        raise InputError(f"{path}: images are in {message.encoding}; expected one of {', '.join(_CHANNELS)}")
    channels, order = _CHANNELS[message.encoding]
    rows = np.frombuffer(data, np.uint8).reshape(message.height, message.step)[:, : message.width * channels]
    pixels = rows.reshape(message.height, message.width, channels)[:, :, :3][:, :, ::order]
    return Frame(when, np.ascontiguousarray(np.broadcast_to(pixels, (message.height, message.width, 3))))


def _with_poses(images: ImageSet, recording: Recording, path: Path) -> ImageSet:
    """Images with the poses of their body, moved to the camera; on Earth where fixes say where that is."""
    when = images.columns["time"]
    fixes = _fixes_at(recording, when)
    if len(recording.poses) < 2:
        return images if fixes is None else replace(images, poses=fixes)
    matrices = _poses_at(recording, when) @ _body_from_camera(recording, path)
    images = replace(images, poses=Poses.from_matrices(matrices))
    if fixes is not None and (fixes.known & images.poses.known).sum() >= LEAST:
        return georeference(images, fixes, scale=1.0)
    return images


def _matrices(rows: Floats) -> Floats:
    """(N, 4, 4) from rows x, y, z, qx, qy, qz, qw."""
    matrices = np.tile(np.eye(4), (len(rows), 1, 1))
    matrices[:, :3, :3] = quaternion_matrices(rows[:, 3:], "xyzw")
    matrices[:, :3, 3] = rows[:, :3]
    return matrices


def _between(rows: Floats, when: Floats, max_gap_s: float) -> Any:
    """(M,) times that lie between two rows at most so far apart, or on one."""
    right = np.clip(np.searchsorted(rows[:, 0], when), 0, len(rows) - 1)
    left = np.maximum(right - 1, 0)
    near = rows[right, 0] - rows[left, 0] <= max_gap_s
    return (rows[0, 0] <= when) & (when <= rows[-1, 0]) & (near | (rows[right, 0] == when))


def _poses_at(recording: Recording, when: Floats) -> Floats:
    """(M, 4, 4) body-to-world, interpolated; NaN where unknown."""
    from scipy.spatial.transform import Rotation, Slerp

    rows = np.array(sorted(recording.poses))
    rows = rows[np.unique(rows[:, 0], return_index=True)[1]]
    inside = _between(rows, when, _MAX_GAP_S)
    matrices = np.full((len(when), 4, 4), np.nan)
    if inside.any():
        place = [np.interp(when[inside], rows[:, 0], rows[:, c]) for c in (1, 2, 3)]
        turn = Slerp(rows[:, 0], Rotation.from_quat(rows[:, 4:]))(when[inside]).as_quat()
        matrices[inside] = _matrices(np.column_stack([*place, turn]))
    return matrices


def _fixes_at(recording: Recording, when: Floats) -> Poses | None:
    """Satellite positions at the times of pictures."""
    if not recording.fixes:
        return None
    rows = np.array(sorted(recording.fixes))
    near = _between(rows, when, _MAX_FIX_GAP_S)
    lat, lon, height = (np.where(near, np.interp(when, rows[:, 0], rows[:, c]), np.nan) for c in (1, 2, 3))
    return Poses.from_latlon(lat, lon, z=None if np.isnan(rows[:, 3]).any() else height)


def _body_from_camera(recording: Recording, path: Path) -> Floats:
    """(4, 4) by the static transforms; without them a camera that looks ahead."""
    camera, body = _ancestors(recording, recording.camera_frame), _ancestors(recording, recording.body_frame)
    shared = next((name for name in camera if name and name in body), None)
    if shared is not None:
        return np.asarray(np.linalg.inv(body[shared]) @ camera[shared])
    warn(
        f"{path}: no static transform leads from {recording.body_frame or 'the body'} to "
        f"{recording.camera_frame or 'the camera'}; the camera is assumed to face forward, along the body's x axis"
    )
    return np.vstack([OPTICAL, [0.0, 0.0, 0.0, 1.0]])


def _ancestors(recording: Recording, name: str) -> dict[str, Floats]:
    """Ancestor → ancestor-from-`name`, itself first."""
    transforms: dict[str, Floats] = {name: np.eye(4)}
    while name in recording.static and recording.static[name][0] not in transforms:
        parent, parent_from_child = recording.static[name]
        transforms[parent] = parent_from_child @ transforms[name]
        name = parent
    return transforms
