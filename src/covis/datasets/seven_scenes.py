"""7Scenes: seven rooms, each with its training frames (the map) and test frames (the queries)."""

from __future__ import annotations

from pathlib import Path

from covis.core.errors import unknown_name
from covis.datasets.dataset import DATASETS, Dataset
from covis.images import ImageSet, Split
from covis.labels.rules import SurfaceOverlap
from covis.reading.formats.seven_scenes import read_seven_scenes

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


def load(path: Path, split: str) -> Split:
    """`<scene>`: test frames against training frames; `<scene>/train`: the training frames with themselves."""
    scene, _, part = split.partition("/")
    if scene not in SCENES or part not in ("", "train"):
        raise unknown_name(f"split of {_NAME}", split, [*SCENES, *(f"{s}/train" for s in SCENES)])
    database = read_scene(path, scene, "Train")
    return Split(database, database) if part else Split(read_scene(path, scene, "Test"), database)


def read_scene(path: Path | str, scene: str, part: str) -> ImageSet:
    """The frames of one scene in `TrainSplit` or `TestSplit`; `path` holds the scenes, or is the scene itself."""
    path = Path(path)
    inside = "" if (path / f"{part}Split.txt").is_file() else f"{scene}/"
    return read_seven_scenes(path, scene, f"{inside}{part}Split.txt")


DATASETS.register(_NAME)(
    Dataset(
        name=_NAME,
        load=load,
        splits=(*SCENES, *(f"{scene}/train" for scene in SCENES)),
        licence="Microsoft Research licence: non-commercial; cite Shotton et al. 2013",
        published={
            f"{scene}/{side}": n
            for scene, both in SCENES.items()
            for side, n in zip(("queries", "database"), both, strict=True)
        },
        volume=lambda name: f"{name.rsplit('/', 1)[0]}.zip",
        positive_radius_m=None,
        rule=SurfaceOverlap(cloud_up="-y"),
    )
)
