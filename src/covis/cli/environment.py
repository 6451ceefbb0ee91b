"""`covis doctor` and `covis cache`: what this installation can do, and what it keeps on disk."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from covis.cli.common import Json, emit, table
from covis.errors import InputError, unknown_name

EXTRAS: dict[str, tuple[tuple[str, ...], str]] = {
    "onnx": (("onnx", "onnxscript", "onnxruntime"), "covis export, and faster index, locate and embed on a processor"),
    "serve": (("fastapi", "uvicorn", "multipart", "prometheus_client"), "covis serve"),
    "milvus": (("pymilvus",), "maps and search on Milvus"),
    "postgres": (("psycopg", "pgvector"), "maps on PostgreSQL"),
    "heic": (("pillow_heif",), "photos in HEIC, as iPhones take them"),
    "sfm": (("pycolmap",), "COLMAP models and databases, 6DOF poses"),
    "local": (("cv2", "onnxruntime", "pycolmap"), "re-ranking by local features (--rerank local:NAME)"),
    "ros": (("rosbags",), "ROS bags and MCAP files"),
    "video": (("av",), "videos"),
    "gis": (("pyogrio",), "GeoPackage and GeoParquet"),
}
"""Extra → the modules it brings, and what needs them."""
_LIBRARIES = ("numpy", "scipy", "numba", "torch", "timm", "faiss-cpu", "pyarrow", "pillow", "onnxruntime")
KINDS = {
    "descriptors": "descriptors of images, by model",
    "features": "outputs of frozen network parts, for training",
    "local": "local features of images, for re-ranking",
    "onnx": "models in the ONNX format",
    "folders": "which folders of photos were given to which map",
    "town": "the simulated town",
}
"""Kinds of entries in the cache, by the folder that they lie in or the start of their name."""


def doctor(json: Json = False) -> None:
    """Show versions, devices, the cache and which verbs lack a library.

    \b
    Examples:
      covis doctor
      covis doctor --json
    """
    from covis.machine import cpu_count

    folder = _cache_folder()
    facts: dict[str, Any] = {
        "covis": version("covis") if _installed("covis") else "from a source tree",
        "python": sys.version.split()[0],
        "libraries": {name: version(name) if _installed(name) else None for name in _LIBRARIES},
        "processors": cpu_count(),
        "gpus": _gpus(),
        "cache": {"folder": str(folder), "bytes": sum(entry.size for entry in entries(folder))},
        "free_bytes": shutil.disk_usage(_existing(folder)).free,
        "extras": {name: not _missing(modules) for name, (modules, _) in EXTRAS.items()},
    }
    emit(facts, json, _report(facts))


def _report(facts: dict[str, Any]) -> str:
    libraries = ", ".join(f"{name} {number or '(missing)'}" for name, number in facts["libraries"].items())
    gpus = ", ".join(facts["gpus"]) or "none (everything runs on the processor)"
    extras = [
        {
            "extra": name,
            "installed": "yes" if there else f"no: pip install 'covis[{name}]'",
            "needed for": EXTRAS[name][1],
        }
        for name, there in facts["extras"].items()
    ]
    lines = [
        f"covis {facts['covis']}, Python {facts['python']}",
        f"libraries: {libraries}",
        f"processors: {facts['processors']}, GPUs: {gpus}",
        f"cache: {facts['cache']['folder']}, {_size(facts['cache']['bytes'])}; {_size(facts['free_bytes'])} free on its disk",
        "pretrained weights: fetched by name where the model hub can be reached; else give a file (--weights FILE, or "
        "--set model.weights=FILE for covis train)",
        "",
        table(extras),
    ]
    return "\n".join(lines)


def cache(
    clear: Annotated[str | None, typer.Option(help=f"Delete entries of a kind ({', '.join(KINDS)}) or `all`.")] = None,
    keep_gb: Annotated[
        float | None, typer.Option(help="Delete the entries used longest ago down to this size.")
    ] = None,
    json: Json = False,
) -> None:
    """List what is kept in the cache, with sizes, and delete what is not wanted; everything can be made again.

    \b
    Examples:
      covis cache
      covis cache --clear features
      covis cache --keep-gb 5
    """
    folder = _cache_folder()
    present = entries(folder)
    if clear is not None and clear not in (*KINDS, "all"):
        raise unknown_name("kind of cache entry", clear, (*KINDS, "all"))
    if keep_gb is not None and not keep_gb >= 0:
        raise InputError(f"--keep-gb is {keep_gb}; expected gigabytes from 0 on")
    doomed = [entry for entry in present if clear in (entry.kind, "all")]
    if keep_gb is not None:
        doomed += _oldest_over([entry for entry in present if entry not in doomed], keep_gb * 1e9)
    for entry in doomed:
        _delete(entry.path)
    kept = [entry for entry in present if entry not in doomed]
    data = {
        "folder": str(folder),
        "deleted": [entry.to_dict() for entry in doomed],
        "entries": [entry.to_dict() for entry in kept],
        "bytes": sum(entry.size for entry in kept),
    }
    emit(data, json, _listing(folder, kept, doomed))


class Entry(NamedTuple):
    """One thing in the cache."""

    kind: str
    path: Path
    size: int
    used: float
    """Seconds since the epoch."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"kind": self.kind, "name": self.path.name, "bytes": self.size, "days": round(self.days, 2)}

    @property
    def days(self) -> float:
        """Since it was last written or read."""
        return max(0.0, time.time() - self.used) / 86400


def entries(folder: Path) -> list[Entry]:
    """What the cache holds, largest first; links and files of others are left alone."""
    found = []
    for kind in KINDS:
        inside = folder.glob(f"{kind}-*") if kind == "town" else (folder / kind).glob("[!.]*")
        for path in inside:
            if not path.is_symlink():
                found.append(_entry(kind, path))
    return sorted(found, key=lambda entry: (-entry.size, entry.path.name))


def _entry(kind: str, path: Path) -> Entry:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    stats = [file.lstat() for file in files]
    used = max((max(stat.st_mtime, stat.st_atime) for stat in stats), default=path.lstat().st_mtime)
    return Entry(kind, path, sum(stat.st_size for stat in stats), used)


def _oldest_over(present: list[Entry], most: float) -> list[Entry]:
    """The entries used longest ago that have to go so that the rest takes at most `most` bytes."""
    left = sum(entry.size for entry in present)
    doomed = []
    for entry in sorted(present, key=lambda entry: entry.used):
        if left <= most:
            break
        doomed.append(entry)
        left -= entry.size
    return doomed


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _listing(folder: Path, kept: list[Entry], doomed: list[Entry]) -> str:
    rows = [
        {"kind": e.kind, "name": e.path.name, "size": _size(e.size), "last used": f"{e.days:.0f} days ago"}
        for e in kept
    ]
    lines = [f"{folder}: {_size(sum(entry.size for entry in kept))}"]
    if doomed:
        lines.append(f"deleted {len(doomed)} entries, {_size(sum(entry.size for entry in doomed))}")
    return "\n".join([*lines, *([table(rows)] if rows else [])])


def _cache_folder() -> Path:
    from covis.machine import cache_folder

    return cache_folder()


def _existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def _missing(modules: tuple[str, ...]) -> list[str]:
    return [name for name in modules if importlib.util.find_spec(name) is None]


def _gpus() -> list[str]:
    import torch

    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
