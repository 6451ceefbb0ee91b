"""The town as a dataset: rendered once into a folder of ordinary image files, then loaded like any other.

    FOLDER/town.json                    the configuration
    FOLDER/SPLIT/CONDITION/             one artefact a traversal: manifest, poses.csv, 00000.jpg, …

Each traversal is written whole or not at all, so a killed run goes on with the next one.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from covis import artifacts, images
from covis.errors import InputError, unknown_name
from covis.images import ImageSet, Split
from covis.machine import cache_folder, cpu_count
from covis.poses import Poses
from covis.progress import Meter, say
from covis.town.config import SPLITS, TownConfig
from covis.town.render import View, intrinsics
from covis.town.traversals import MAP, QUERIES

NAME = "town"
KIND = "town-traversal"
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
        found = folder_config(folder)
        if found != config:
            raise InputError(f"{folder} holds a town of another configuration; choose another folder")
    elif folder.is_dir() and any(p.name != ".lock" for p in folder.iterdir()):
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
    """Conditions whose traversal is not there, or not whole."""
    for condition in (MAP, *QUERIES):
        try:
            manifest = artifacts.open_manifest(folder / split / condition.name, KIND)
            if manifest["town"] != config.fingerprint():
                yield condition.name
        except InputError:
            yield condition.name


class _patient_lock:  # noqa: N801 - used like a function
    """`artifacts.lock`, but waits for the other process instead of giving up."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.held = folder, artifacts.lock(folder)

    def __enter__(self) -> None:
        told = False
        while True:
            try:
                self.held.__enter__()
                return
            except artifacts.InUse as error:
                if not told:
                    say(f"waiting: {error}")
                told = True
                time.sleep(0.5)
                self.held = artifacts.lock(self.folder)

    def __exit__(self, *details: object) -> None:
        self.held.__exit__(*details)  # type: ignore[arg-type]


def _write(folder: Path, view: View, meter: Meter) -> None:
    """Renders one traversal with a thread for each core (the kernels run without the interpreter's lock)."""
    drive = view.drive
    target = folder / drive.split / drive.condition.name
    facts = {"town": view.config.fingerprint(), "images": len(drive)}
    with artifacts.create(target, KIND, facts, replace=True, durable=False) as draft:
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
    with file.open("w", newline="", encoding="utf-8") as handle:
        table = csv.writer(handle)
        table.writerow(["image", "easting", "northing", "heading", "group"])
        for i, ((x, y), heading) in enumerate(zip(shots.poses.xy, shots.poses.heading, strict=True)):
            table.writerow([_file(i), repr(float(x)), repr(float(y)), repr(float(heading)), shots.group_names[0]])


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
