"""kapture folders: images, cameras, rigs, trajectories and depth maps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.core.foreign import foreign
from covis.core.progress import warn
from covis.images import ImageSet
from covis.poses import Poses, quaternion_matrices
from covis.reading.cameras import MODELS, Camera, calibration, camera
from covis.reading.readers import READERS, Reader
from covis.reading.textfile import cells_of
from covis.reading.trajectory import compose


@foreign("a kapture folder")
def read_kapture(folder: Path) -> ImageSet:
    """A kapture folder: `sensors/{sensors,records_camera,trajectories,rigs}.txt`; trajectories are world-to-device.

    Columns: `time` (the timestamp as kapture has it), `device`, and `depth` where depth maps are recorded.
    """
    base = folder / "sensors"
    sensors = {cells[0]: cells[1:] for _, cells in cells_of(base / "sensors.txt", ",")}
    records = [cells for _, cells in cells_of(base / "records_camera.txt", ",")]
    if not records:
        raise InputError(f"{base / 'records_camera.txt'} lists no image")
    trajectory = _kapture_trajectory(base)
    matrices = np.array([trajectory.get((int(r[0]), r[1]), _UNKNOWN) for r in records])
    cameras = {name: _kapture_camera(base, name, sensor) for name, sensor in sensors.items() if sensor[1] == "camera"}
    lost = next((r[1] for r in records if r[1] not in cameras), None)
    if lost is not None:
        raise InputError(f"{base / 'sensors.txt'} has no camera {lost!r}, which records_camera.txt names")
    intrinsics, columns = calibration([cameras[r[1]] for r in records])
    columns["time"] = np.array([int(r[0]) for r in records], np.int64)
    columns["device"] = np.array([r[1] for r in records], dtype=str)
    columns |= _kapture_depth(base, records)
    poses = Poses.from_matrices(matrices, world_to_camera=True)
    names = [r[2] for r in records]
    if not poses.known.all():
        warn(f"{folder}: {int((~poses.known).sum())} of {len(names)} images have no pose in trajectories.txt")
    group = [name.rpartition("/")[0] for name in names]
    return ImageSet.of(base / "records_data", names, poses, group, intrinsics=intrinsics, columns=columns)


_UNKNOWN = np.full((3, 4), np.nan)


def _kapture_pose(cells: list[str]) -> Floats:
    """(3, 4) from qw qx qy qz tx ty tz; NaN where the rotation is left empty."""
    if len(cells) < 7 or not all(cells[:7]):
        return _UNKNOWN
    values = np.array(cells[:7], np.float64)
    return np.column_stack([quaternion_matrices(values[None, :4], "wxyz")[0], values[4:]])


def _kapture_trajectory(base: Path) -> dict[tuple[int, str], Floats]:
    """(timestamp, device) → world-to-device, also for the cameras of rigs."""
    if not (base / "trajectories.txt").is_file():
        return {}
    poses = {(int(c[0]), c[1]): _kapture_pose(c[2:]) for _, c in cells_of(base / "trajectories.txt", ",")}
    if not (base / "rigs.txt").is_file():
        return poses
    rigs: dict[str, list[tuple[str, Floats]]] = {}
    for _, cells in cells_of(base / "rigs.txt", ","):
        rigs.setdefault(cells[0], []).append((cells[1], _kapture_pose(cells[2:])))
    for _ in range(4):  # a rig may carry rigs
        level = {
            (when, sensor): compose(sensor_from_rig, pose)
            for (when, device), pose in poses.items()
            for sensor, sensor_from_rig in rigs.get(device, [])
            if (when, sensor) not in poses
        }
        if not level:
            break
        poses |= level
    return poses


def _kapture_camera(base: Path, name: str, sensor: list[str]) -> Camera | None:
    """The camera of `name, camera, MODEL, width, height, parameters…`."""
    model, *rest = sensor[2:]
    if model == "UNKNOWN_CAMERA" or model not in MODELS or len(rest) < 2:
        return None
    return camera(model, rest[0], rest[1], rest[2:], f"{base / 'sensors.txt'}: {name}")


def _kapture_depth(base: Path, records: list[list[str]]) -> dict[str, NDArray[Any]]:
    """Depth maps (float32 metres, row by row) of the same time and device, or of the device's `_depth` twin."""
    file = base / "records_depth.txt"
    if not file.is_file():
        return {}
    listed = {(c[0], c[1]): c[2] for _, c in cells_of(file, ",")}
    names = [listed.get((r[0], r[1]), listed.get((r[0], f"{r[1]}_depth"), "")) for r in records]
    if not any(names):
        by_time = {when: name for (when, _), name in listed.items()}
        names = [by_time.get(r[0], "") for r in records]
    return {"depth": np.array([n.encode() for n in names]), "depth_scale_m": np.ones(len(records))}


READERS.register("kapture")(Reader(lambda path: (path / "sensors" / "records_camera.txt").is_file(), read_kapture))
