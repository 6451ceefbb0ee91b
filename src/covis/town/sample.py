"""Sample photos: a few walks through the simulated town as ordinary JPEG files with position, heading and time in EXIF."""

from __future__ import annotations

import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from covis.core.arrays import Floats
from covis.core.compiling import numba
from covis.core.errors import InputError
from covis.core.files import replacing
from covis.core.machine import cpu_count
from covis.core.progress import Meter
from covis.poses import Poses
from covis.town.config import TownConfig
from covis.town.traversals import MAP
from covis.town.view import View

_FRAME = "+proj=tmerc +lat_0=58.35 +lon_0=2.5 +datum=WGS84 +units=m +no_defs +type=crs"
"""The town lies in the North Sea, where no street map shows another town below it."""
_CONFIG = TownConfig(seed=11, width=320, height=240, test_blocks=(1, 1), map_spacing_m=9.0, query_spacing_m=22.0)


@dataclass(frozen=True)
class Walk:
    """One walk: its folder, its weather and the day it was taken."""

    folder: str
    condition: str
    began: datetime


WALKS = (
    Walk("photos/summer", MAP.name, datetime(2025, 7, 5, 12, 0)),
    Walk("photos/autumn", "autumn-evening", datetime(2025, 10, 11, 16, 30)),
    Walk("photos/winter", "winter-haze", datetime(2026, 1, 18, 10, 15)),
    Walk("new", "dusk-rain", datetime(2026, 3, 2, 18, 0)),
)


def write_sample(folder: Path, config: TownConfig = _CONFIG) -> dict[str, int]:
    """Renders the walks into `folder`; what is there is kept, so that an interrupted run resumes. Photos by folder."""
    if folder.exists() and (not folder.is_dir() or {p.name for p in folder.iterdir()} - {"photos", "new"}):
        raise InputError(f"{folder} holds other files; choose another folder for the sample photos")
    jobs = [job for walk in WALKS for job in _photos(View.of(config, "test", walk.condition), walk, folder)]
    missing = [job for job in jobs if not job[2].exists()]
    if missing and numba is None:
        raise InputError("rendering photos needs numba; install it with: pip install 'covis[labels]'")
    with Meter("render", len(missing), "photos") as meter, ThreadPoolExecutor(cpu_count()) as pool:
        for _ in pool.map(lambda job: _write(*job), missing):
            meter.advance()
    new = sum(file.parent == folder / WALKS[-1].folder for _, _, file, _ in jobs)
    return {"photos": len(jobs) - new, "new": new}


def _photos(view: View, walk: Walk, folder: Path) -> Iterator[tuple[View, int, Path, dict[int, Any]]]:
    """Each photo of a walk: what renders it, its file and its tags."""
    forward = view.drive.rotation[:, :, 2]
    heading = np.degrees(np.arctan2(forward[:, 0], forward[:, 1])) % 360.0
    degrees = Poses(view.drive.position[:, :2], heading, frame=_FRAME).latlon()
    for i in range(len(view.drive)):
        file = folder / walk.folder / f"IMG_{walk.began:%m%d}_{i:03d}.jpg"
        yield view, i, file, _tags(degrees[i], float(heading[i]), walk.began + timedelta(seconds=8 * i))


def _write(view: View, i: int, file: Path, tags: dict[int, Any]) -> None:
    from PIL import Image

    exif = Image.Exif()
    exif[0x010F], exif[0x0110], exif[0x0132] = "covis", "simulated camera", tags[0x9003]
    exif.get_ifd(0x8769).update({0x9003: tags[0x9003], 0x9011: "+00:00", 0xA405: 18})
    exif.get_ifd(0x8825).update({tag: value for tag, value in tags.items() if tag < 0x100})
    content = io.BytesIO()
    Image.fromarray(view.image(i)).save(content, "JPEG", quality=88, exif=exif)
    with replacing(file) as partial:
        partial.write_bytes(content.getvalue())


def _tags(place: Floats, heading: float, taken: datetime) -> dict[int, Any]:
    """GPS tags by number, and the time."""
    lat, lon = (_sexagesimal(float(v)) for v in place[:2])
    return {1: "N", 2: lat, 3: "E", 4: lon, 16: "T", 17: round(heading, 2), 0x9003: f"{taken:%Y:%m:%d %H:%M:%S}"}


def _sexagesimal(value: float) -> tuple[float, float, float]:
    return float(value // 1), float(value * 60 // 1 % 60), round(value * 3600 % 60, 4)
