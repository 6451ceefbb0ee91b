"""7Scenes: seven rooms, each with its training frames (the map) and test frames (the queries).

`<scene>/{TrainSplit,TestSplit}.txt`, `seq-01/frame-000000.{color.png,depth.png,pose.txt}`. Poses are camera-to-world; y
points down. Columns: `depth` (name of the depth image, 16-bit millimetres, 0 and 65535 invalid, not registered to colour:
see `covis.labels.clouds.DepthCamera`), `sequence`, `frame_number`. Intrinsics are those of the colour camera.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.core.foreign import read_foreign_text
from covis.datasets.dataset import DATASETS, Dataset
from covis.images import ImageSet, Split, concatenate
from covis.labels.rules import SurfaceOverlap
from covis.poses import Poses
from covis.reading.textfile import lines

_NAME = "7scenes"
SCENES = {
    "chess": (2000, 4000),
    "fire": (2000, 2000),
    "heads": (1000, 1000),
    "office": (4000, 6000),
    "pumpkin": (2000, 4000),
    "redkitchen": (5000, 7000),
    "stairs": (1000, 2000),
}
"""Scene → published frames of test (queries) and training (map)."""
_COLOUR_CAMERA = (525.0, 525.0, 320.0, 240.0, 640.0, 480.0)
_FRAME = re.compile(r"^(frame-(\d+))\.color\.(png|jpg|jpeg)$")


def load(path: Path, split: str) -> Split:
    """`<scene>`: test frames against training frames; `<scene>/train`: the training frames with themselves."""
    scene, _, part = split.partition("/")
    database = read_scene(path, scene, "Train")
    return Split(database, database) if part else Split(read_scene(path, scene, "Test"), database)


def read_scene(path: Path | str, scene: str, part: str) -> ImageSet:
    """The frames of one scene in `TrainSplit` or `TestSplit`; `path` holds the scenes, or is the scene itself."""
    path = Path(path)
    inside = "" if (path / f"{part}Split.txt").is_file() else f"{scene}/"
    return concatenate(
        [_sequence(path, f"{inside}{one}", scene) for one in _sequences(path / f"{inside}{part}Split.txt")]
    )


def _sequences(path: Path) -> list[str]:
    """`sequence1` → `seq-01`."""
    folders = []
    for number, line in lines(path):
        digits = re.fullmatch(r"(?:sequence|seq-)(\d+)", line)
        if not digits:
            raise InputError(f"{path}: line {number} is {line!r}; expected sequence<number>")
        folders.append(f"seq-{int(digits[1]):02d}")
    if not folders:
        raise InputError(f"{path} lists no sequence; take the file of the 7Scenes release")
    return folders


def _sequence(path: Path, folder: str, scene: str) -> ImageSet:
    if not (path / folder).is_dir():
        raise InputError(f"{path / folder} does not exist; unpack {folder.rpartition('/')[2]}.zip of {scene}")
    present = {entry.name for entry in (path / folder).iterdir()}
    frames = sorted((m for m in map(_FRAME.match, present) if m), key=lambda m: m[1])
    lost = [m[1] for m in frames if f"{m[1]}.pose.txt" not in present]
    if lost or not frames:
        raise InputError(
            f"{path / folder}: {lost[0] + '.pose.txt' if lost else 'every frame'} is missing; unpack again"
        )
    matrices = np.stack([_pose(path / folder / f"{m[1]}.pose.txt") for m in frames])
    columns = {
        "depth": np.array([f"{folder}/{m[1]}.depth.png".encode() for m in frames]),
        "sequence": np.full(len(frames), int(folder[-2:])),
        "frame_number": np.array([int(m[2]) for m in frames]),
    }
    return ImageSet.of(
        path,
        [f"{folder}/{m[0]}" for m in frames],
        Poses.from_matrices(matrices, up="-y"),
        scene,
        intrinsics=np.tile(_COLOUR_CAMERA, (len(frames), 1)),
        columns=columns,
    )


def _pose(path: Path) -> Floats:
    """(4, 4); exponents such as `e-001` are read as they are."""
    numbers = read_foreign_text(path).split()
    try:
        return np.array(numbers, np.float64).reshape(4, 4)
    except ValueError:
        raise InputError(f"{path} is not a 4×4 matrix ({len(numbers)} numbers); it may be cut short") from None


DATASETS.register(_NAME)(
    Dataset(
        name=_NAME,
        load=load,
        splits=(*SCENES, *(f"{scene}/train" for scene in SCENES)),
        licence="Microsoft Research licence: non-commercial; cite Shotton et al. 2013",
        published=SCENES,
        volume=lambda name: f"{name.rsplit('/', 1)[0]}.zip",
        positive_radius_m=None,
        rule=SurfaceOverlap(cloud_up="-y"),
    )
)
