"""The town as a dataset: rendered once into a folder of ordinary image files, then loaded like any other.

    FOLDER/town.json                    the configuration
    FOLDER/SPLIT/CONDITION/             one artefact per traversal: manifest, poses.csv, 00000.jpg, …

Each traversal is written whole or not at all, so a killed run resumes with the next one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covis import images
from covis.core import artifacts
from covis.core.arrays import Floats
from covis.core.errors import InputError, unknown_name
from covis.core.files import is_transient
from covis.core.machine import cache_folder, cpu_count
from covis.core.progress import Meter, say
from covis.core.settings import above
from covis.graph import SimilarityGraph
from covis.images import ImageSet, Split
from covis.labels.assembly import Advance
from covis.labels.rules import RULES, LabelRule, require_positions
from covis.poses import Poses
from covis.reading.columns import write_columns
from covis.town import layout
from covis.town.config import SPLITS, TownConfig
from covis.town.layout import TownScene
from covis.town.render import Shot, measure, sees
from covis.town.traversals import MAP, QUERIES
from covis.town.view import View, intrinsics

NAME = "town"
_KIND = "town-traversal"
_RECORD = "town.json"


def default_folder(config: TownConfig | None = None) -> Path:
    """Where a town lies if no folder is given: below COVIS_CACHE, or XDG_CACHE_HOME/covis, or ~/.cache/covis."""
    config = config or TownConfig()
    return cache_folder() / f"town-{config.fingerprint()}"


def load(path: Path | str | None, split: str, config: TownConfig | None = None) -> Split:
    """Queries and map of `split`, rendered into `path` (default: the user's cache) where that has not been done.

    Without `config`, the folder's own configuration holds, or the default one for a new folder.
    """
    if split not in SPLITS:
        raise unknown_name(f"split of {NAME}", split, SPLITS)
    if config is None:
        config = folder_config(Path(path)) if path is not None and (Path(path) / _RECORD).exists() else TownConfig()
    folder = default_folder(config) if path is None else Path(path)
    _prepare(folder, config, split)
    queries = [_image_set(folder, config, split, c.name) for c in QUERIES]
    return Split(images.concatenate(queries), _image_set(folder, config, split, MAP.name))


def folder_config(folder: Path) -> TownConfig:
    """The configuration that the town in `folder` was made with."""
    record = artifacts.read_json(folder / _RECORD)
    try:
        stored: dict[str, Any] = dict(record["config"])
        if set(stored) != {f.name for f in fields(TownConfig)}:
            raise KeyError(_RECORD)
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in stored.items()}
        config = TownConfig(**values)
        same = record["fingerprint"] == config.fingerprint()
    except (KeyError, TypeError):
        same = False
    if not same:
        raise InputError(f"{folder} holds a town of another version of covis; remove it or choose another folder")
    return config


def _prepare(folder: Path, config: TownConfig, split: str) -> None:
    """Renders what is missing of `split`, waiting for another process that does the same."""
    if (folder / _RECORD).exists():
        existing = folder_config(folder)
        if existing != config:
            raise InputError(f"{folder} holds a town of another configuration; choose another folder")
    elif folder.is_dir() and not all(map(is_transient, folder.iterdir())):
        raise InputError(f"{folder} holds other files; choose another folder for the town")
    if not any(_missing(folder, config, split)):
        return
    folder.mkdir(parents=True, exist_ok=True)
    with _patient_lock(folder):
        artifacts.write_json(folder / _RECORD, {"config": asdict(config), "fingerprint": config.fingerprint()})
        missing = list(_missing(folder, config, split))
        views = [View.of(config, split, name) for name in missing]
        if missing:
            say(f"rendering the {split} streets of the town into {folder}")
        with Meter(f"town {split}", sum(len(v.drive) for v in views), "images") as meter:
            for view in views:
                _write(folder, view, meter)


def _missing(folder: Path, config: TownConfig, split: str) -> Iterator[str]:
    """Conditions whose traversal does not exist, or is not whole."""
    for condition in (MAP, *QUERIES):
        try:
            manifest = artifacts.open_manifest(folder / split / condition.name, _KIND)
            if manifest["town"] != config.fingerprint():
                yield condition.name
        except InputError:
            yield condition.name


@contextmanager
def _patient_lock(folder: Path) -> Iterator[None]:
    """`artifacts.lock`, but waits for the other process instead of giving up."""
    with ExitStack() as held:
        for attempt in count():
            try:
                held.enter_context(artifacts.lock(folder))
                break
            except artifacts.InUse as error:
                if not attempt:
                    say(f"waiting: {error}")
                time.sleep(0.5)
        yield


def _write(folder: Path, view: View, meter: Meter) -> None:
    """Renders one traversal with a thread for each core (the kernels run without the interpreter's lock)."""
    drive = view.drive
    target = folder / drive.split / drive.condition.name
    facts = {"town": view.config.fingerprint(), "images": len(drive)}
    with artifacts.create(target, _KIND, facts, replace=True, durable=False) as draft:
        _write_table(draft.path / "poses.csv", _image_set(folder, view.config, drive.split, drive.condition.name))
        with ThreadPoolExecutor(cpu_count()) as pool:
            for _ in pool.map(lambda i: _write_image(view, i, draft.path / _file(i)), range(len(drive))):
                meter.advance(note=drive.condition.name)


def _write_image(view: View, i: int, file: Path) -> None:
    import simplejpeg

    pixels = np.ascontiguousarray(view.image(i))
    file.write_bytes(simplejpeg.encode_jpeg(pixels, quality=view.config.jpeg_quality, colorsubsampling="444"))


def _write_table(file: Path, shots: ImageSet) -> None:
    """The poses as a table that any covis verb reads."""
    columns: dict[str, Any] = {"image": [_file(i) for i in range(len(shots))]}
    columns["easting"], columns["northing"] = shots.poses.xy.T
    write_columns(columns | {"heading": shots.poses.heading, "group": [shots.group_names[0]] * len(shots)}, file)


def _file(i: int) -> str:
    return f"{i:05d}.jpg"


def _image_set(folder: Path, config: TownConfig, split: str, condition: str) -> ImageSet:
    drive = View.of(config, split, condition).drive
    n = len(drive)
    forward = drive.rotation[:, :, 2]
    heading = np.degrees(np.arctan2(forward[:, 0], forward[:, 1]))
    return ImageSet.of(
        folder,
        [f"{split}/{condition}/{_file(i)}" for i in range(n)],
        Poses(drive.position[:, :2], heading, drive.position[:, 2], drive.rotation),
        split,
        intrinsics=np.tile(intrinsics(config), (n, 1)),
        columns={
            "condition": np.full(n, condition.encode(), "S16"),
            "street": drive.street,
            "frame": np.arange(n, dtype=np.int32),
        },
    )


# What a simulated world knows exactly: depth, surfaces, and which of them two cameras share.


_SKY = -2


def picture(images: ImageSet, i: int, size: tuple[int, int] | None = None) -> NDArray[np.uint8]:
    """(height, width, 3) image `i` of a town's set, rendered again at any `size` (width, height)."""
    view, frame = _frame(images, i)
    return view.image(frame, size)


def point_cloud(split: str, config: TownConfig | None = None, *, spacing_m: float = 1.0) -> Floats:
    """(P, 3) points of the surfaces that the map of `split` saw, one in each cube of `spacing_m`."""
    view = View.of(config or TownConfig(), split, MAP.name)
    with ThreadPoolExecutor(cpu_count()) as pool:
        points: Floats = np.concatenate(list(pool.map(lambda i: _surface(view, i, (48, 36)), range(len(view.drive)))))
    _, first = np.unique(np.floor(points / spacing_m).astype(np.int64), axis=0, return_index=True)
    return points[np.sort(first)]


def covisibility(
    queries: ImageSet, database: ImageSet, pairs: ArrayLike, *, size: tuple[int, int] = (32, 24)
) -> Floats:
    """(P, 2) for each of the (P, 2) index pairs: the share of either image's fixed surfaces that the other one sees.

    Exact up to the raster: each of `size` = (width, height) rays of one camera ends on a surface point, and a ray of
    the other camera finds out whether anything, houses or passing cars, stands between.
    """
    ids = np.asarray(pairs, np.int64).reshape(-1, 2)
    eyes = {(side, i): None for side, column in enumerate(ids.T) for i in np.unique(column).tolist()}
    sets = (queries, database)
    with ThreadPoolExecutor(cpu_count()) as pool:
        eye_by_key = dict(zip(eyes, pool.map(lambda key: _eye(sets[key[0]], key[1], size), eyes), strict=True))
        rows = pool.map(lambda ij: _share(eye_by_key[0, ij[0]], eye_by_key[1, ij[1]]), ids.tolist())
        return np.array(list(rows), np.float64).reshape(-1, 2)


@RULES.register("town")
@dataclass(frozen=True)
class TrueCovisibility(LabelRule):
    """Label rule of the town: ψ = mean of both shares of surface seen by the other camera."""

    estimate_sample: ClassVar[tuple[int, int | None]] = (8, None)
    """Few, because every pair is traced."""

    radius_m: float = 100.0
    """Cameras farther apart count as sharing nothing."""
    size: tuple[int, int] = (24, 18)
    """Rays across and down each image."""

    def __post_init__(self) -> None:
        above(0, radius_m=self.radius_m, rays=min(self.size))

    def __call__(self, queries: ImageSet, database: ImageSet, advance: Advance = None) -> SimilarityGraph:
        """True labels of every pair within `radius_m`; one set gives both directions and no diagonal."""
        from scipy.spatial import cKDTree

        require_positions(queries, database)
        one_set = queries is database
        near = cKDTree(queries.poses.xy).sparse_distance_matrix(
            cKDTree(database.poses.xy), self.radius_m, output_type="ndarray"
        )
        pairs = np.column_stack([near["i"], near["j"]])
        pairs = pairs[pairs[:, 0] < pairs[:, 1]] if one_set else pairs
        psi = covisibility(queries, database, pairs, size=self.size).mean(axis=1)
        if one_set:
            pairs, psi = np.concatenate([pairs, pairs[:, ::-1]]), np.tile(psi, 2)
        if advance is not None:
            advance(len(queries))
        shape, facts = (len(queries), len(database)), self.facts(queries, database)
        return SimilarityGraph.from_edges(pairs[:, 0], pairs[:, 1], psi, shape, facts)

    def facts(self, queries: ImageSet, database: ImageSet) -> dict[str, Any]:
        """What travels with the graph."""
        return super().facts(queries, database) | {"measure": "true-covisibility", "size": list(self.size)}


_Eye = tuple[Shot, Floats]
"""A camera, and the points (P, 3) of fixed surfaces that it sees."""


def _eye(images: ImageSet, i: int, size: tuple[int, int]) -> _Eye:
    view, frame = _frame(images, i)
    return view.shot(frame, size), _surface(view, frame, size)


def _share(a: _Eye, b: _Eye) -> tuple[float, float]:
    """The share of the points of each that the other sees."""
    by_b, by_a = (sees(shot, points) for shot, points in ((b[0], a[1]), (a[0], b[1])))
    return (float(by_b.mean()) if len(by_b) else 0.0, float(by_a.mean()) if len(by_a) else 0.0)


def _surface(view: View, frame: int, size: tuple[int, int]) -> Floats:
    """(P, 3) points of the fixed surfaces in one image."""
    depth_m, items, _ = measure(view.shot(frame, size))
    keep = fixed(view.scene, items)
    fx, fy, cx, cy, _, _ = intrinsics(view.config, size)
    row, column = np.nonzero(keep)
    z = depth_m[keep]
    local = np.column_stack([(column + 0.5 - cx) / fx * z, (row + 0.5 - cy) / fy * z, z])
    points: Floats = view.drive.position[frame] + local @ view.drive.rotation[frame].T
    return points


def fixed(scene: TownScene, items: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Which items are there in every traversal: neither sky nor cars nor people."""
    first = len(scene.walls)
    movable = np.concatenate([scene.solids[:, layout.MATERIAL] >= layout.MOVABLE, [True]])
    goes: NDArray[np.bool_] = (items >= first) & movable[np.clip(items - first, 0, len(scene.solids))]
    return (items > _SKY) & ~goes


def _frame(images: ImageSet, i: int) -> tuple[View, int]:
    """The view and number within its traversal of image `i` of a set that `load` returned."""
    config = folder_config(Path(images.root))
    condition = bytes(images.columns["condition"][i]).decode()
    return View.of(config, images.group_names[int(images.group[i])], condition), int(images.columns["frame"][i])
