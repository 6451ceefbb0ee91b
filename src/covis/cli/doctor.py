"""`covis doctor`: what this installation has."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from covis.cli.options import Json
from covis.cli.output import emit, size_text, table
from covis.cli.verbs import INSTALLATION, verb
from covis.core.cache import entries
from covis.core.machine import cache_folder, cpu_count

EXTRAS: dict[str, tuple[tuple[str, ...], str]] = {
    "train": (
        ("torch", "timm", "matplotlib", "tensorboard", "torchvision", "huggingface_hub"),
        "training, fitting a model to photos, model folders, reports",
    ),
    "search": (("faiss",), "approximate indexes (--kind), for maps of more than 20,000 photos"),
    "hdf5": (("h5py",), "HDF5 files: features for hloc, the authors' label files"),
    "labels": (("numba", "scipy"), "labels at full speed, 6DOF poses, confidence intervals of comparisons"),
    "parquet": (("pyarrow",), "Parquet tables"),
    "onnx": (("onnx", "onnxscript"), "covis export, and faster index and embed on a CPU"),
    "serve": (("fastapi", "uvicorn", "python_multipart"), "covis serve"),
    "milvus": (("pymilvus",), "maps and search on Milvus"),
    "postgres": (("psycopg", "pgvector"), "maps on PostgreSQL"),
    "heic": (("pillow_heif",), "HEIC photos (iPhone)"),
    "sfm": (("pycolmap",), "COLMAP models and databases, 6DOF poses"),
    "local": (("cv2", "pycolmap"), "re-ranking by local features (--rerank local:NAME)"),
    "ros": (("rosbags",), "ROS bags and MCAP files"),
    "video": (("av",), "videos"),
    "figures": (("sklearn",), "t-SNE in reports"),
}
"""Extra → the modules it brings, and what needs them."""
_LIBRARIES = ("numpy", "scipy", "numba", "torch", "timm", "faiss-cpu", "pyarrow", "pillow", "onnxruntime")


@verb("doctor", section=INSTALLATION, order=2)
def doctor(json: Json = False) -> None:
    """Show versions, devices, the cache and which extras are missing.

    \b
    Examples:
      covis doctor
      covis doctor --json
    """
    folder = cache_folder()
    libraries = {name: version(name) if _installed(name) else None for name in _LIBRARIES}
    facts: dict[str, Any] = {
        "covis": version("covis") if _installed("covis") else "from a source tree",
        "python": sys.version.split()[0],
        "libraries": libraries,
        "processors": cpu_count(),
        "gpus": _gpus(),
        "cache": {"folder": str(folder), "bytes": sum(entry.size for entry in entries(folder))},
        "free_bytes": shutil.disk_usage(_nearest_folder(folder)).free,
        "extras": {name: not _missing(modules) for name, (modules, _) in EXTRAS.items()},
    }
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
        "libraries: " + ", ".join(f"{name} {number or '(missing)'}" for name, number in libraries.items()),
        f"CPU cores: {facts['processors']}, GPUs: {', '.join(facts['gpus']) or 'none (everything runs on the CPU)'}",
        f"cache: {folder}, {size_text(facts['cache']['bytes'])}; {size_text(facts['free_bytes'])} free on its disk",
        "pretrained weights: downloaded on first use; offline, give a file (covis index --weights FILE, "
        "covis train --set model.weights=FILE)",
        "",
        table(extras),
    ]
    emit(facts, json, "\n".join(lines))


def _nearest_folder(path: Path) -> Path:
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
    if _missing(("torch",)):
        return []
    import torch

    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
