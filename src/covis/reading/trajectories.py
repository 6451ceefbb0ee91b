"""Trajectories of SLAM and their benchmarks: TUM, KITTI, EuRoC and 7Scenes folders, each with images, 6DOF poses, intrinsics.

Poses between two of a trajectory are interpolated (slerp); further apart than `_MAX_GAP_S` they are unknown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.core.files import check_regular, foreign, read_foreign_text
from covis.core.progress import warn
from covis.images import ImageSet, concatenate
from covis.poses import Axis, Poses, quaternion_matrices
from covis.reading.cameras import Camera, calibration, pinhole
from covis.reading.decoding import open_image

_MAX_GAP_S = 0.5
"""Between two poses further apart than this nothing is interpolated."""
TUM_CAMERAS = {
    "freiburg1": (517.3, 516.5, 318.6, 255.3),
    "freiburg2": (520.9, 521.0, 325.1, 249.7),
    "freiburg3": (535.4, 539.2, 320.1, 247.6),
}
"""fx, fy, cx, cy of the TUM RGB-D benchmark's three cameras, at 640 × 480."""
TUM_DEPTH_SCALE_M = 1 / 5000
_MAX_YAML_BYTES = 1 << 20


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Poses of a body in time order."""

    time_s: Floats
    """(N,) seconds, ascending."""
    matrices: Floats
    """(N, 3, 4) body-to-world."""

    @classmethod
    def of(cls, time_s: Floats, matrices: Floats, source: str) -> Trajectory:
        """In time order; poses after which the clock jumped back are left out and counted."""
        if not len(time_s):
            raise InputError(f"{source} has no pose")
        later = np.concatenate([[True], time_s[1:] > np.maximum.accumulate(time_s)[:-1]])
        if not later.all():
            first = int(np.flatnonzero(~later)[0])
            back = float(time_s[:first].max() - time_s[first])
            how = f"goes backwards by {back:.3f} s" if back else "does not advance"
            warn(f"{source}: time {how} at pose {first}; {int((~later).sum())} left out")
        return cls(time_s[later], matrices[later])

    def at(self, when_s: Floats, max_gap_s: float = _MAX_GAP_S) -> Floats:
        """(M, 3, 4) interpolated; NaN outside the trajectory and in gaps. A pose's own time gives it unchanged."""
        right = np.clip(np.searchsorted(self.time_s, when_s), 0, len(self.time_s) - 1)
        result = np.full((len(when_s), 3, 4), np.nan)
        exact = self.time_s[right] == when_s
        result[exact] = self.matrices[right[exact]]
        left = np.maximum(right - 1, 0)
        span = self.time_s[right] - self.time_s[left]
        inside = ~exact & (when_s > self.time_s[0]) & (when_s < self.time_s[-1]) & (span <= max_gap_s)
        if inside.any():
            i, j = left[inside], right[inside]
            share = (when_s[inside] - self.time_s[i]) / span[inside]
            result[inside] = _between(self.matrices[i], self.matrices[j], share)
        return result


def _between(first: Floats, second: Floats, share: Floats) -> Floats:
    from scipy.spatial.transform import Rotation

    start = Rotation.from_matrix(first[:, :, :3])
    turn = (start.inv() * Rotation.from_matrix(second[:, :, :3])).as_rotvec()
    rotation = (start * Rotation.from_rotvec(share[:, None] * turn)).as_matrix()
    place = first[:, :, 3] + share[:, None] * (second[:, :, 3] - first[:, :, 3])
    return np.concatenate([rotation, place[:, :, None]], axis=2)


def compose(first: Floats, second: Floats) -> Floats:
    """first @ second of (…, 3, 4) rigid matrices."""
    rotation = first[..., :3] @ second[..., :3]
    place = first[..., :3] @ second[..., 3:] + first[..., 3:]
    joined: Floats = np.concatenate([rotation, place], axis=-1)
    return joined


def centred_matrices(quaternions: Floats, centres: Floats) -> Floats:
    """(N, 3, 4) camera-to-world matrices from world-to-camera quaternions (w first) and camera centres."""
    rotation = quaternion_matrices(quaternions, "wxyz").transpose(0, 2, 1)
    return np.concatenate([rotation, centres[:, :, None]], axis=2)


# Text files of numbers, line by line


def lines(path: Path) -> list[tuple[int, str]]:
    """(line number, text) of each line that is neither empty nor a comment."""
    if not path.exists():
        raise InputError(f"{path} does not exist; check that the dataset is unpacked completely")
    numbered = ((i, line.strip()) for i, line in enumerate(read_foreign_text(path).splitlines(), 1))
    return [(i, line) for i, line in numbered if line and not line.startswith("#")]


def cells_of(path: Path, separator: str | None = None) -> list[tuple[int, list[str]]]:
    """(line number, cells) of each line that is neither empty nor a comment."""
    return [(i, [cell.strip() for cell in line.split(separator)]) for i, line in lines(path)]


def number_rows(path: Path, width: int, separator: str | None = None) -> Floats:
    """(N, width) numbers of a text file without its comments; further columns are ignored."""
    rows = []
    for number, cells in cells_of(path, separator):
        rows.append(_floats(path, number, cells[:width]))
        if len(rows[-1]) != width:
            raise InputError(f"{path}: line {number} has {len(cells)} columns; expected {width}")
    return np.array(rows, np.float64).reshape(-1, width)


class Named(NamedTuple):
    """Names and the numbers behind them."""

    names: list[str]
    values: Floats
    """(N, width)."""


@foreign("a list of numbers")
def read_named(path: Path, width: int | Sequence[int], separator: str | None = None) -> Named:
    """Lines of one name and `width` numbers each, all alike (several widths: whichever the first line has)."""
    allowed = (width,) if isinstance(width, int) else tuple(width)
    names: list[str] = []
    rows: list[list[float]] = []
    for number, cells in cells_of(path, separator):
        if len(cells) - 1 not in allowed or (rows and len(cells) - 1 != len(rows[0])):
            expected = " or ".join(str(w) for w in allowed)
            raise InputError(f"{path}: line {number} has {len(cells) - 1} numbers behind the name; expected {expected}")
        names.append(cells[0])
        rows.append(_floats(path, number, cells[1:]))
    return Named(names, np.array(rows, np.float64).reshape(len(rows), len(rows[0]) if rows else max(allowed)))


def _floats(path: Path, number: int, cells: list[str]) -> list[float]:
    try:
        return [float(cell) for cell in cells if cell]
    except ValueError as error:
        raise InputError(f"{path}: line {number}: {error}; fix that line") from None


@foreign("a trajectory")
def read_tum_trajectory(path: Path) -> Trajectory:
    """`timestamp tx ty tz qx qy qz qw` lines."""
    rows = number_rows(path, 8)
    rotation = quaternion_matrices(rows[:, 4:], "xyzw")
    return Trajectory.of(rows[:, 0], np.concatenate([rotation, rows[:, 1:4, None]], axis=2), str(path))


@foreign("a TUM sequence")
def read_tum(folder: Path, trajectory: Path | None = None, *, up: Axis = "z") -> ImageSet:
    """A TUM RGB-D sequence: `rgb.txt`, `groundtruth.txt`, and `depth.txt` where it is there (column `depth`)."""
    listed = cells_of(folder / "rgb.txt")
    if not listed:
        raise InputError(f"{folder / 'rgb.txt'} lists no image")
    time_s, names = np.array([float(c[0]) for _, c in listed]), [c[1] for _, c in listed]
    matrices = read_tum_trajectory(trajectory or folder / "groundtruth.txt").at(time_s)
    columns: dict[str, NDArray[Any]] = {"time": time_s}
    if (folder / "depth.txt").is_file():
        columns |= _tum_depth(folder / "depth.txt", time_s)
    one = _tum_camera(folder)
    intrinsics, model = calibration([one] * len(names))
    poses = Poses.from_matrices(matrices, up=up)
    return _checked_poses(
        ImageSet.of(folder, names, poses, folder.resolve().name, intrinsics=intrinsics, columns=columns | model), folder
    )


def _tum_camera(folder: Path) -> Camera | None:
    """The benchmark's camera by the folder's name, or `calibration.txt` (fx fy cx cy, optional distortion)."""
    file = folder / "calibration.txt"
    if file.is_file():
        row = number_rows(file, 4)[0]
        return Camera("PINHOLE", 640, 480, tuple(row.tolist()))
    camera_params = next((params for name, params in TUM_CAMERAS.items() if name in folder.resolve().name), None)
    return None if camera_params is None else Camera("PINHOLE", 640, 480, camera_params)


def _tum_depth(path: Path, time_s: Floats, most_s: float = 0.02) -> dict[str, NDArray[Any]]:
    """The depth image nearest in time to each colour image, at most `most_s` apart."""
    listed = cells_of(path)
    times = np.array([float(c[0]) for _, c in listed])
    right = np.clip(np.searchsorted(times, time_s), 1, max(1, len(times) - 1))
    left = right - 1
    near = (
        np.where(np.abs(times[left] - time_s) <= np.abs(times[right] - time_s), left, right) if len(times) > 1 else left
    )
    close = np.abs(times[near] - time_s) <= most_s
    names = [listed[i][1][1].encode() if ok else b"" for i, ok in zip(near, close, strict=True)]
    return {"depth": np.array(names), "depth_scale_m": np.full(len(time_s), TUM_DEPTH_SCALE_M)}


@foreign("a KITTI sequence")
def read_kitti(folder: Path, poses_file: Path | None = None) -> ImageSet:
    """A KITTI odometry sequence: `image_2` (or 3, 0, 1), `calib.txt`, `times.txt`, and `poses/NN.txt` above it.

    Poses are those of camera 0 (x right, y down, z forward, world the same); the camera's own offset is added.
    """
    side = next((f"image_{n}" for n in (2, 3, 0, 1) if (folder / f"image_{n}").is_dir()), None)
    if side is None:
        raise InputError(f"{folder} has no folder image_0 to image_3; expected a KITTI odometry sequence")
    names = sorted(f"{side}/{p.name}" for p in (folder / side).iterdir() if p.suffix.lower() in (".png", ".jpg"))
    file = poses_file or _kitti_poses(folder)
    matrices = number_rows(file, 12).reshape(-1, 3, 4)
    if len(matrices) != len(names):
        raise InputError(
            f"{file} has {len(matrices)} poses, {folder / side} has {len(names)} images; one is incomplete"
        )
    columns: dict[str, NDArray[Any]] = {}
    if (folder / "times.txt").is_file():
        columns["time"] = number_rows(folder / "times.txt", 1)[: len(names), 0]
    one, offset = _kitti_camera(folder, side)
    intrinsics, model = calibration([one] * len(names))
    placed = compose(matrices, np.broadcast_to(offset, matrices.shape))
    poses = Poses.from_matrices(placed, up="-y")
    group = folder.resolve().name
    return ImageSet.of(folder, names, poses, group, intrinsics=intrinsics, columns=columns | model)


def _kitti_poses(folder: Path) -> Path:
    whole = folder.resolve()
    candidates = (folder / "poses.txt", whole.parent.parent / "poses" / f"{whole.name}.txt")
    file = next((c for c in candidates if c.is_file()), None)
    if file is None:
        raise InputError(f"{folder} has no poses; expected {candidates[1]} (only sequences 00 to 10 have them)")
    return file


def _kitti_camera(folder: Path, side: str) -> tuple[Camera | None, Floats]:
    """The camera, and its pose in the axes of camera 0, from the projection P = K [I | −K⁻¹…]."""
    file = folder / "calib.txt"
    if not file.is_file():
        return None, np.eye(3, 4)
    rows = {cells[0].rstrip(":"): cells[1:] for _, cells in cells_of(file)}
    key = f"P{side[-1]}"
    if key not in rows or len(rows[key]) != 12:
        raise InputError(f"{file} has no line {key}: with 12 numbers; take the file of the benchmark")
    projection = np.array(rows[key], np.float64).reshape(3, 4)
    centre = -np.linalg.solve(projection[:, :3], projection[:, 3])
    first = next(p for p in sorted((folder / side).iterdir()) if p.suffix.lower() in (".png", ".jpg"))
    return pinhole(*image_size(first), projection[:, :3]), np.column_stack([np.eye(3), centre])


def image_size(path: Path) -> tuple[int, int]:
    """Width and height from a file's header."""
    from PIL import Image

    try:
        check_regular(path)
        with open_image(path) as image:
            return image.size
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(f"{path} is not an image ({error})") from None


@foreign("a EuRoC sequence")
def read_euroc(folder: Path, side: str = "cam0") -> ImageSet:
    """A EuRoC (or TUM-VI) sequence: `mav0/cam0` with `data.csv`, `sensor.yaml`, and the ground truth beside it."""
    inside = "mav0/" if (folder / "mav0").is_dir() else ""
    base = folder / inside
    listed = cells_of(base / side / "data.csv", ",")
    if not listed:
        raise InputError(f"{base / side / 'data.csv'} lists no image")
    stamps = np.array([int(c[0]) for _, c in listed], np.int64)
    names = [f"{inside}{side}/data/{c[1]}" for _, c in listed]
    truth = _euroc_truth(base)
    camera, in_body = _euroc_camera(base / side / "sensor.yaml")
    when: Floats = stamps.astype(np.float64) * 1e-9
    body = truth.at(when)
    poses = Poses.from_matrices(compose(body, np.broadcast_to(in_body, body.shape)), up="z")
    intrinsics, model = calibration([camera] * len(names))
    columns: dict[str, NDArray[Any]] = {"time": when, "stamp_ns": stamps}
    group = folder.resolve().name
    return _checked_poses(
        ImageSet.of(folder, names, poses, group, intrinsics=intrinsics, columns=columns | model), folder
    )


def _euroc_truth(base: Path) -> Trajectory:
    """`timestamp [ns], p (3), q (w x y z), …` of the body."""
    candidates = [base / f"{name}/data.csv" for name in ("state_groundtruth_estimate0", "mocap0", "gt0")]
    file = next((c for c in candidates if c.is_file()), None)
    if file is None:
        raise InputError(f"{base} has no ground truth; expected {candidates[0]}")
    when: Floats = np.array([int(c[0]) for _, c in cells_of(file, ",")], np.int64).astype(np.float64) * 1e-9
    rows = number_rows(file, 8, ",")
    rotation = quaternion_matrices(rows[:, 4:8], "wxyz")
    return Trajectory.of(when, np.concatenate([rotation, rows[:, 1:4, None]], axis=2), str(file))


def _euroc_camera(file: Path) -> tuple[Camera, Floats]:
    """The camera and its pose (3, 4) on the body."""
    import yaml

    try:
        document = yaml.safe_load(read_foreign_text(file, _MAX_YAML_BYTES))
        matrix = np.array(document["T_BS"]["data"], np.float64).reshape(4, 4)[:3]
        params, size = [float(v) for v in document["intrinsics"]], document["resolution"]
        lens = [float(v) for v in document.get("distortion_coefficients", [])]
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, RecursionError, yaml.YAMLError) as error:
        raise InputError(
            f"{file} is not a EuRoC sensor file ({error!r}); expected T_BS, intrinsics, resolution"
        ) from None
    kind = {"radial-tangential": "OPENCV", "equidistant": "OPENCV_FISHEYE"}.get(document.get("distortion_model", ""))
    if kind and len(lens) >= 4:
        return Camera(kind, int(size[0]), int(size[1]), (*params, *lens[:4])), matrix
    return Camera("PINHOLE", int(size[0]), int(size[1]), tuple(params)), matrix


def _checked_poses(images: ImageSet, source: Path) -> ImageSet:
    """The images, after a warning about those without a pose; an error where none has one."""
    unknown = int((~images.poses.known).sum())
    if unknown == len(images):
        raise InputError(f"{source}: no image lies within the trajectory; are both clocks the same?")
    if unknown:
        warn(f"{source}: {unknown} of {len(images)} images have no pose near their time; theirs stays unknown")
    return images


# 7Scenes: `<scene>/{TrainSplit,TestSplit}.txt`, `seq-01/frame-000000.{color.png,depth.png,pose.txt}`.
#
# Poses are camera-to-world; y points down. Columns: `depth` (name of the depth image, 16-bit millimetres, 0 and 65535
# invalid, not registered to colour: see `covis.labels.clouds.DepthCamera`), `sequence`, `frame_number`. Intrinsics are those
# of the colour camera.


SEVEN_SCENES_COLOUR = (525.0, 525.0, 320.0, 240.0, 640.0, 480.0)
_FRAME = re.compile(r"^(frame-(\d+))\.color\.(png|jpg|jpeg)$")


@foreign("a scene of 7Scenes")
def read_seven_scenes(folder: Path, scene: str = "", split: str = "TrainSplit.txt") -> ImageSet:
    """The frames of the sequences that `split` lists (default: the map's), or of the one sequence in `folder`."""
    if not (folder / split).is_file() and any(folder.glob("frame-*.pose.txt")):
        return _sequence(folder.parent, folder.name, scene or folder.resolve().parent.name)
    inside = split.rpartition("/")[0] + "/" if "/" in split else ""
    scene = scene or folder.resolve().name
    return concatenate([_sequence(folder, f"{inside}{one}", scene) for one in _sequences(folder / split)])


def _sequences(path: Path) -> list[str]:
    """`sequence1` → `seq-01`."""
    if not path.is_file():
        raise InputError(f"{path} does not exist; check that the dataset is unpacked completely")
    frames = []
    for number, cells in cells_of(path):
        digits = re.fullmatch(r"(?:sequence|seq-)(\d+)", " ".join(cells))
        if not digits:
            raise InputError(f"{path}: line {number} is {' '.join(cells)!r}; expected sequence<number>")
        frames.append(f"seq-{int(digits[1]):02d}")
    if not frames:
        raise InputError(f"{path} lists no sequence; take the file of the 7Scenes release")
    return frames


def _sequence(path: Path, folder: str, scene: str) -> ImageSet:
    if not (path / folder).is_dir():
        raise InputError(f"{path / folder} does not exist; unpack {folder.rsplit('/', maxsplit=1)[-1]}.zip of {scene}")
    inside = [entry.name for entry in (path / folder).iterdir()]
    matches = sorted((m for m in map(_FRAME.match, inside) if m), key=lambda m: m[1])
    present = set(inside)
    lost = [m[1] for m in matches if f"{m[1]}.pose.txt" not in present]
    if lost or not matches:
        raise InputError(
            f"{path / folder}: {lost[0] + '.pose.txt' if lost else 'every frame'} is missing; unpack again"
        )
    matrices = np.stack([_pose(path / folder / f"{m[1]}.pose.txt") for m in matches])
    columns = {
        "depth": np.array([f"{folder}/{m[1]}.depth.png".encode() for m in matches]),
        "sequence": np.full(len(matches), int("".join(c for c in folder[-2:] if c.isdigit()) or 0)),
        "frame_number": np.array([int(m[2]) for m in matches]),
    }
    return ImageSet.of(
        path,
        [f"{folder}/{m[0]}" for m in matches],
        Poses.from_matrices(matrices, up="-y"),
        scene,
        intrinsics=np.tile(SEVEN_SCENES_COLOUR, (len(matches), 1)),
        columns=columns,
    )


def _pose(path: Path) -> Floats:
    """(4, 4); exponents such as `e-001` are read as they are."""
    numbers = read_foreign_text(path).split()
    try:
        return np.array(numbers, np.float64).reshape(4, 4)
    except ValueError:
        raise InputError(f"{path} is not a 4×4 matrix ({len(numbers)} numbers); it may be cut short") from None
