"""TB-Places: `W17.json` (also `W17/W17.json`) with names and 6DOF poses.

Labels (`W17_similarity.h5`) are read by `covis.labels.exchange`.

Poses are tx ty tz qx qy qz qw of a robot whose x axis looks ahead and whose z axis points up.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from covis.core.artifacts import read_json
from covis.core.errors import InputError, unknown_name
from covis.core.listings import Listing
from covis.datasets.dataset import DATASETS, Dataset
from covis.images import ImageSet, Split
from covis.labels.rules import FovOverlap
from covis.poses import Poses, quaternion_matrices

_NAME = "tb_places"
PAIRS = {"w17_w18": ("W18", "W17"), "w18": ("W18_query", "W18_map")}
"""Split → lists of queries and map."""
_SPLITS = (*PAIRS, "w17_train", "w18_all")
_BODY_FROM_CAMERA = np.array([[0.0, 0.0, 1.0], [-1.0, 0.0, 0.0], [0.0, -1.0, 0.0]])
"""Camera axes (right, down, ahead) in the robot's (ahead, left, up)."""
_ONE_SET = {"w16_train": "W16", "w17_train": "W17", "w18_all": "W18"}


def load(path: Path, split: str) -> Split:
    """`w17_w18`: queries W18, map W17; `w18`: its published halves; `w17_train` and the like: a set with itself."""
    if split in _ONE_SET:
        images = read_set(path, _ONE_SET[split])
        return Split(images, images)
    if split not in PAIRS:
        raise unknown_name(f"split of {_NAME}", split, _SPLITS)
    queries, database = PAIRS[split]
    return Split(read_set(path, queries), read_set(path, database))


def read_set(path: Path | str, name: str) -> ImageSet:
    """The images that `<name>.json` lists."""
    path = Path(path)
    file = _find(path, f"{name}.json")
    data = read_json(file)
    if not isinstance(data, dict) or not {"im_paths", "poses"} <= set(data):
        raise InputError(f"{file} has no im_paths and poses; take the file of the TB-Places release")
    names = [str(n) for n in data["im_paths"]]
    poses = np.array(data["poses"], np.float64)
    if poses.shape != (len(names), 7):
        raise InputError(f"{file}: poses are {poses.shape}; expected ({len(names)}, 7)")
    rotation = quaternion_matrices(poses[:, 3:], "xyzw") @ _BODY_FROM_CAMERA
    matrices = np.concatenate([rotation, poses[:, :3, None]], axis=2)
    prefix = _prefix(path, names, str(data.get("im_prefix", "")))
    return ImageSet.of(path, [prefix + n for n in names], Poses.from_matrices(matrices), name.split("_")[0])


def _find(path: Path, name: str) -> Path:
    for candidate in (path / name, path / name.split("_")[0].split(".")[0] / name):
        if candidate.is_file():
            return candidate
    raise InputError(f"{path / name} does not exist; get it from the TB-Places release")


def _prefix(path: Path, names: list[str], stated: str) -> str:
    """What lies between `path` and the listed names on this disk: nothing, or the list's own prefix."""
    listing = Listing(path)
    stated = f"{stated.strip('/')}/" if stated.strip("/") else ""
    first = names[0] if names else ""
    return stated if stated and not listing.has(first) and listing.has(stated + first) else ""


DATASETS.register(_NAME)(
    Dataset(
        name=_NAME,
        load=load,
        splits=_SPLITS,
        licence="research use; cite Leyva-Vallina et al. 2019 (IEEE Access)",
        more_splits=True,
        published={"w17_train": (10948, None), "w17_w18": (23043, 10948)},
        positive_radius_m=3.5,
        groups_apart=False,
        rule=FovOverlap(radius_m=3.5),
    )
)
