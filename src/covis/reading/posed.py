"""The one place that tells formats with camera poses apart: path → reader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from covis.images import ImageSet
from covis.reading import colmap, scenes, trajectories
from covis.reading.georeference import warn_of_course

Reader = Callable[[Path], ImageSet]


def _colmap(path: Path) -> ImageSet:
    return colmap.read_model(path).image_set()


def _tum_file(path: Path) -> ImageSet:
    return trajectories.read_tum(path.parent, path)


def _is_tum_file(path: Path) -> bool:
    if path.suffix.lower() not in (".txt", ".tum") or not (path.parent / "rgb.txt").is_file() or path.name == "rgb.txt":
        return False
    rows = trajectories.cells_of(path)
    return bool(rows) and len(rows[0][1]) == 8


def _is_kitti(path: Path) -> bool:
    return (path / "calib.txt").is_file() and any((path / f"image_{n}").is_dir() for n in range(4))


FORMATS: dict[str, tuple[Callable[[Path], bool], Reader]] = {
    "COLMAP model": (lambda p: p.is_dir() and colmap.find_model(p) is not None, _colmap),
    "nerfstudio transforms": (lambda p: p.is_file() and p.name == "transforms.json", scenes.read_nerfstudio),
    "nerfstudio folder": (
        lambda p: (p / "transforms.json").is_file(),
        lambda p: scenes.read_nerfstudio(p / "transforms.json"),
    ),
    "kapture": (lambda p: (p / "sensors" / "records_camera.txt").is_file(), scenes.read_kapture),
    "nuScenes": (lambda p: p.is_dir() and any(p.glob("v1.0-*/sample_data.json")), scenes.read_nuscenes),
    "EuRoC": (lambda p: any((p / i / "cam0" / "data.csv").is_file() for i in ("mav0", ".")), trajectories.read_euroc),
    "KITTI": (_is_kitti, trajectories.read_kitti),
    "TUM": (lambda p: (p / "rgb.txt").is_file() and (p / "groundtruth.txt").is_file(), trajectories.read_tum),
    "TUM trajectory": (lambda p: p.is_file() and _is_tum_file(p), _tum_file),
    "hloc query list": (lambda p: p.suffix == ".txt" and scenes.is_query_list(p), scenes.read_query_list),
}
"""Name → (whether a path holds it, its reader)."""


def posed_format(path: Path) -> str | None:
    """The name of the format with camera poses that lies at `path`."""
    return next((name for name, (holds, _) in FORMATS.items() if holds(path)), None)


def read_posed(path: Path | str) -> ImageSet | None:
    """The images with their poses; None where the path holds none of these formats."""
    path = Path(path)
    name = posed_format(path)
    if name is None:
        return None
    images = FORMATS[name][1](path)
    warn_of_course(images, str(path))
    return images
