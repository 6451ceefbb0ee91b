"""7Scenes: `<scene>/{TrainSplit,TestSplit}.txt`, `seq-01/frame-000000.{color.png,depth.png,pose.txt}`.

Poses are camera-to-world; y points down. Columns: `depth` (name of the depth image, 16-bit millimetres, 0 and 65535
invalid, not registered to colour: see `covis.labels.clouds.DepthCamera`), `sequence`, `frame_number`. Intrinsics are those
of the colour camera.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.core.foreign import foreign, read_foreign_text
from covis.images import ImageSet, concatenate
from covis.poses import Poses
from covis.reading.readers import READERS, Reader
from covis.reading.textfile import cells_of

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


def _is_seven_scenes(path: Path) -> bool:
    return path.is_dir() and ((path / "TrainSplit.txt").is_file() or any(path.glob("frame-*.pose.txt")))


READERS.register("seven-scenes")(Reader(_is_seven_scenes, read_seven_scenes))
