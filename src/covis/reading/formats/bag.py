"""ROS bags and MCAP without ROS (`rosbags`): images with the poses and positions that the bag has.

Poses come from odometry or stamped poses, through the static transforms to the camera; where there are fixes of a
satellite receiver as well, they place the path on Earth. Extra: `pip install 'covis[ros]'`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
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
from covis.reading.decoding import Reject, decode_bytes
from covis.reading.frames import Every, Extracted, Frame, distance_gone, extract
from covis.reading.georeference import LEAST, georeference, warn_of_course
from covis.reading.trajectory import Trajectory, compose

_IMAGES = ("sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage")
POSES = ("nav_msgs/msg/Odometry", "geometry_msgs/msg/PoseStamped", "geometry_msgs/msg/PoseWithCovarianceStamped")
FIX, INFO, STATIC = "sensor_msgs/msg/NavSatFix", "sensor_msgs/msg/CameraInfo", "tf2_msgs/msg/TFMessage"
OPTICAL = np.array([[0.0, 0.0, 1.0, 0.0], [-1.0, 0.0, 0.0, 0.0], [0.0, -1.0, 0.0, 0.0]])
"""A camera that looks along a body's x axis (x ahead, y left, z up, as ROS has it)."""
_CHANNELS = {"rgb8": (3, 1), "bgr8": (3, -1), "rgba8": (4, 1), "bgra8": (4, -1), "mono8": (1, 1), "8UC1": (1, 1)}
_CHANNELS |= {"8UC3": (3, -1)}


@dataclass
class Recording:
    """What a bag holds besides its pictures."""

    images: str
    """The topic of the images."""
    camera: Camera | None = None
    camera_frame: str = ""
    body_frame: str = ""
    pose_rows: list[list[float]] = field(default_factory=list)
    """time, x, y, z, qx, qy, qz, qw."""
    fixes: list[list[float]] = field(default_factory=list)
    """time, lat, lon, altitude."""
    static: dict[str, tuple[str, Floats]] = field(default_factory=dict)
    """Child frame → parent and parent-from-child."""
    times: list[float] = field(default_factory=list)


@foreign("a bag")
def import_bag(
    path: Path | str,
    folder: Path | str,
    every: Every | None = None,
    *,
    topic: str | None = None,
    poses: str | None = None,
) -> tuple[ImageSet, Extracted]:
    """Writes a bag's pictures into `folder`: all of them, or one per `every`; blurred ones and duplicates are left out.

    `topic`: that of the images, `poses`: that of odometry or poses, where the bag has several.
    """
    path, folder = Path(path), Path(folder)
    recording = _read_recording(path, topic, poses)
    path_on_ground = _ground_path(recording)
    if every is None:
        every, travelled = Every(1.0, "s"), _slot_per_picture(recording.times)
    elif every.unit == "m":
        travelled = distance_gone(*path_on_ground)
    else:
        start = recording.times[0]
        travelled = lambda when: when - start  # noqa: E731
    config = {"source": path.name, "bytes": _byte_count(path), "topic": recording.images}
    done = extract(_frames(path, recording.images), folder, travelled, every, config)
    if not done.kept:
        raise InputError(
            f"{path}: no picture of {recording.images} lies within its path; check the clocks or give --every 2s"
        )
    images = _image_set(recording, folder, done, path)
    warn_of_course(images, str(path))
    return images, done


def _slot_per_picture(times: list[float]) -> Any:
    """Gives each picture its own slot."""
    order = np.sort(np.array(times))
    return lambda when: float(np.searchsorted(order, when, side="right") - 1)


def _byte_count(path: Path) -> int:
    return (
        sum(f.stat().st_size for f in sorted(path.rglob("*")) if f.is_file()) if path.is_dir() else path.stat().st_size
    )


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
    """The connection of a topic: the one that was given, or the one with most messages."""
    fitting = [c for c in reader.connections if c.msgtype in kinds]
    if given is not None:
        named = [c for c in fitting if c.topic == given]
        if not named:
            known = ", ".join(sorted({c.topic for c in fitting})) or "none"
            raise InputError(f"{path} has no topic {given!r} for {flag}; known: {known}")
        return named[0]
    order = sorted(fitting, key=lambda c: (kinds.index(c.msgtype) if flag == "--poses" else 0, -c.msgcount, c.topic))
    if len(order) > 1:
        say(f"{path}: {order[0].topic} is used, of {', '.join(c.topic for c in order)}; choose with {flag}")
    return order[0] if order else None


def _read_recording(path: Path, topic: str | None, poses: str | None) -> Recording:
    """Everything but the pixels, in one pass."""
    with _open_bag(path) as reader:
        images = _choose_topic(reader, path, _IMAGES, topic, "--topic")
        if images is None:
            raise InputError(f"{path} has no images (sensor_msgs Image or CompressedImage)")
        path_topic = _choose_topic(reader, path, POSES, poses, "--poses")
        recording = Recording(images.topic)
        base = images.topic.removesuffix("/compressed").rpartition("/")[0]
        wanted = [
            c for c in reader.connections if c.msgtype in (FIX, INFO) or _is_static(c) or c in (images, path_topic)
        ]
        for connection, _, raw in reader.messages(connections=wanted):
            if connection == images:
                message = reader.deserialize(raw, connection.msgtype)
                recording.times.append(_stamp_seconds(message.header))
                recording.camera_frame = recording.camera_frame or message.header.frame_id
            elif connection.msgtype != INFO or (recording.camera is None and connection.topic.startswith(base)):
                _record(recording, connection.msgtype, reader.deserialize(raw, connection.msgtype))
    return recording


def _is_static(connection: Any) -> bool:
    return bool(connection.msgtype == STATIC and connection.topic.endswith("tf_static"))


def _stamp_seconds(header: Any) -> float:
    return float(header.stamp.sec) + 1e-9 * float(header.stamp.nanosec)


def _record(recording: Recording, kind: str, message: Any) -> None:
    if kind == FIX:
        fixed = message.status.status >= 0 and (message.latitude, message.longitude) != (0.0, 0.0)
        if fixed and np.isfinite([message.latitude, message.longitude]).all():
            recording.fixes.append(
                [_stamp_seconds(message.header), message.latitude, message.longitude, message.altitude]
            )
    elif kind == INFO:
        recording.camera = _camera(message)
    elif kind == STATIC:
        for part in message.transforms:
            shift, turn = part.transform.translation, part.transform.rotation
            matrix = quaternion_matrices([[turn.x, turn.y, turn.z, turn.w]], "xyzw")[0]
            parent_from_child = np.column_stack([matrix, [shift.x, shift.y, shift.z]])
            recording.static[part.child_frame_id.lstrip("/")] = part.header.frame_id.lstrip("/"), parent_from_child
    else:
        pose = message.pose.pose if hasattr(message.pose, "pose") else message.pose
        recording.body_frame = recording.body_frame or getattr(message, "child_frame_id", "")
        p, q = pose.position, pose.orientation
        recording.pose_rows.append([_stamp_seconds(message.header), p.x, p.y, p.z, q.x, q.y, q.z, q.w])


def _camera(message: Any) -> Camera | None:
    """From CameraInfo: `plumb_bob` is OpenCV's five coefficients, `equidistant` its fisheye."""
    k = message.k if hasattr(message, "k") else message.K
    lens = [float(v) for v in (message.d if hasattr(message, "d") else message.D)]
    params = (float(k[0]), float(k[4]), float(k[2]), float(k[5]))
    if params[0] == 0.0:
        return None  # not calibrated
    size = int(message.width), int(message.height)
    if message.distortion_model == "equidistant" and len(lens) >= 4:
        return Camera("OPENCV_FISHEYE", *size, (*params, *lens[:4]))
    if any(lens):
        full = [*lens, *[0.0] * 8][:8]
        if not any(full[4:]):
            return Camera("OPENCV", *size, (*params, *full[:4]))
        return Camera("FULL_OPENCV", *size, (*params, *full))
    return Camera("PINHOLE", *size, params)


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


def _ground_path(recording: Recording) -> tuple[Floats, Floats]:
    """Times and positions along the way, from poses or, without them, from fixes."""
    if recording.pose_rows:
        rows = np.array(recording.pose_rows)
        return rows[:, 0], rows[:, 1:3]
    rows = np.array(recording.fixes).reshape(-1, 4)
    return rows[:, 0], Poses.from_latlon(rows[:, 1], rows[:, 2]).xy if len(rows) else np.zeros((0, 2))


def _image_set(recording: Recording, folder: Path, done: Extracted, path: Path) -> ImageSet:
    when = np.array([k.time_s for k in done.kept])
    fixes = _fixes_at(recording, when)
    if recording.pose_rows:
        rows = np.array(recording.pose_rows)
        body = np.concatenate([quaternion_matrices(rows[:, 4:], "xyzw"), rows[:, 1:4, None]], axis=2)
        matrices = Trajectory.of(rows[:, 0], body, str(path)).at(when)
        on_body = _camera_on_body(recording, path)
        poses = Poses.from_matrices(compose(matrices, np.broadcast_to(on_body, matrices.shape)))
    else:
        poses = fixes if fixes is not None else Poses(np.full((len(when), 2), np.nan), np.full(len(when), np.nan))
    intrinsics, columns = calibration([recording.camera] * len(when))
    columns["time"] = when
    names = [k.name for k in done.kept]
    images = ImageSet.of(folder, names, poses, path.stem, intrinsics=intrinsics, columns=columns)
    if recording.pose_rows and fixes is not None and (fixes.known & poses.known).sum() >= LEAST:
        images = georeference(images, fixes, scale=1.0)
    return images


def _fixes_at(recording: Recording, when: Floats) -> Poses | None:
    """Satellite positions at the times of pictures, between fixes at most 5 s apart."""
    if not recording.fixes:
        return None
    rows = np.array(sorted(recording.fixes))
    gap = np.interp(when, rows[:, 0], np.arange(len(rows)), left=np.nan, right=np.nan)
    left = np.floor(np.nan_to_num(gap)).astype(int)
    right = np.minimum(left + 1, len(rows) - 1)
    near = ~np.isnan(gap) & (rows[right, 0] - rows[left, 0] <= 5.0)
    lat, lon, height = (np.where(near, np.interp(when, rows[:, 0], rows[:, c]), np.nan) for c in (1, 2, 3))
    return Poses.from_latlon(lat, lon, z=None if np.isnan(rows[:, 3]).any() else height)


def _camera_on_body(recording: Recording, path: Path) -> Floats:
    """Body-from-camera by the static transforms; without them a camera that looks ahead."""
    camera, body = recording.camera_frame.lstrip("/"), recording.body_frame.lstrip("/")
    if camera and camera == body:
        return np.eye(3, 4)
    up, down = _ancestors(recording, camera), _ancestors(recording, body)
    shared = next((name for name in up if name in down), None)
    if shared is not None and camera and body:
        turn, shift = down[shared][:, :3], down[shared][:, 3]
        return compose(np.column_stack([turn.T, -turn.T @ shift]), up[shared])
    warn(
        f"{path}: no static transform leads from {body or 'the body'} to {camera or 'the camera'}; the camera is assumed "
        "to face forward, along the body's x axis"
    )
    return OPTICAL


def _ancestors(recording: Recording, name: str) -> dict[str, Floats]:
    """Ancestor → ancestor-from-`name`, itself first."""
    transforms: dict[str, Floats] = {name: np.eye(3, 4)}
    while name in recording.static and recording.static[name][0] not in transforms:
        parent, parent_from_child = recording.static[name]
        transforms[parent] = compose(parent_from_child, transforms[name])
        name = parent
    return transforms
