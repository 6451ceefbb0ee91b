"""`covis list`, `data check`, `doctor`, `cache`: what there is, whether a dataset is complete, what this installation has and keeps."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from covis.cli.common import Json, emit, existing, named, table
from covis.cli.names import known_names
from covis.core.errors import InputError, unknown_name

EXTRAS: dict[str, tuple[tuple[str, ...], str]] = {
    "onnx": (("onnx", "onnxscript", "onnxruntime"), "covis export, and faster index, locate and embed on a CPU"),
    "serve": (("fastapi", "uvicorn", "multipart", "prometheus_client"), "covis serve"),
    "milvus": (("pymilvus",), "maps and search on Milvus"),
    "postgres": (("psycopg", "pgvector"), "maps on PostgreSQL"),
    "heic": (("pillow_heif",), "HEIC photos (iPhone)"),
    "sfm": (("pycolmap",), "COLMAP models and databases, 6DOF poses"),
    "local": (("cv2", "onnxruntime", "pycolmap"), "re-ranking by local features (--rerank local:NAME)"),
    "ros": (("rosbags",), "ROS bags and MCAP files"),
    "video": (("av",), "videos"),
    "gis": (("pyogrio",), "GeoPackage"),
}
"""Extra → the modules it brings, and what needs them."""
_LIBRARIES = ("numpy", "scipy", "numba", "torch", "timm", "faiss-cpu", "pyarrow", "pillow", "onnxruntime")
CACHED = {
    "descriptors": "descriptors of images, by model",
    "features": "outputs of frozen network parts, for training",
    "local": "local features of images, for re-ranking",
    "onnx": "models in the ONNX format",
    "folders": "which folders of photos were given to which map",
    "town": "the simulated town",
}
"""Kinds of entries in the cache, by the folder that they lie in or the start of their name."""


def doctor(json: Json = False) -> None:
    """Show versions, devices, the cache and which extras are missing.

    \b
    Examples:
      covis doctor
      covis doctor --json
    """
    from covis.core.machine import cpu_count

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
    gpus = ", ".join(facts["gpus"]) or "none (everything runs on the CPU)"
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
        f"CPU cores: {facts['processors']}, GPUs: {gpus}",
        f"cache: {facts['cache']['folder']}, {_size(facts['cache']['bytes'])}; {_size(facts['free_bytes'])} free on its disk",
        "pretrained weights: downloaded on first use; offline, give a file (covis index --weights FILE, "
        "covis train --set model.weights=FILE)",
        "",
        table(extras),
    ]
    return "\n".join(lines)


def cache(
    clear: Annotated[str | None, typer.Option(help=f"Delete entries of a kind ({', '.join(CACHED)}) or `all`.")] = None,
    keep_gb: Annotated[
        float | None, typer.Option(help="Delete the least recently used entries down to this size.")
    ] = None,
    json: Json = False,
) -> None:
    """List the cache, with sizes, or clear it. Everything in it is made again when needed.

    --json lists every entry.

    \b
    Examples:
      covis cache
      covis cache --clear features
      covis cache --keep-gb 5
    """
    folder = _cache_folder()
    present = entries(folder)
    if clear is not None and clear not in (*CACHED, "all"):
        raise unknown_name("kind of cache entry", clear, (*CACHED, "all"))
    if keep_gb is not None and not keep_gb >= 0:
        raise InputError(f"--keep-gb is {keep_gb}; expected 0 or more gigabytes")
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
        """As plain values for JSON."""
        return {"kind": self.kind, "name": self.path.name, "bytes": self.size, "days": round(self.days, 2)}

    @property
    def days(self) -> float:
        """Days since it was last written or read."""
        return max(0.0, time.time() - self.used) / 86400


def entries(folder: Path) -> list[Entry]:
    """What the cache holds, largest first; links and files of others are left alone."""
    present = []
    for kind in CACHED:
        inside = folder.glob(f"{kind}-*") if kind == "town" else (folder / kind).glob("[!.]*")
        for path in inside:
            if not path.is_symlink():
                present.append(_entry(kind, path))
    return sorted(present, key=lambda entry: (-entry.size, entry.path.name))


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
    """One line per kind: the names of entries are fingerprints, which mean nothing to people."""
    rows = []
    for kind, contents in CACHED.items():
        alike = [entry for entry in kept if entry.kind == kind]
        if alike:
            size, days = sum(entry.size for entry in alike), min(entry.days for entry in alike)
            used = "today" if days < 1 else f"{days:.0f} days ago"
            rows.append(
                {"kind": kind, "entries": len(alike), "size": _size(size), "last used": used, "contents": contents}
            )
    lines = [f"{folder}: {_size(sum(entry.size for entry in kept))}"]
    if doomed:
        lines.append(f"deleted {len(doomed)} entries, {_size(sum(entry.size for entry in doomed))}")
    return "\n".join([*lines, *([table(rows)] if rows else [])])


def _cache_folder() -> Path:
    from covis.core.machine import cache_folder

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


# `covis data check`: whether a dataset is complete.


def check(
    name: Annotated[str, typer.Argument(callback=named("dataset"), help="Dataset, as `covis list datasets` names it.")],
    path: Annotated[Path, typer.Argument(callback=existing, help="Its folder, in the official layout.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for rejects.csv and report.json. [default: check-NAME]"),
    ] = None,
    quick: Annotated[
        bool, typer.Option(help="Check only the beginning and end of each file, without decoding.")
    ] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes. [default: all processors]")] = None,
    json: Json = False,
) -> None:
    """Check a dataset's files. Counts, what is missing or looks wrong, terms of use.

    Re-run an interrupted check to resume it. The exit code is 2 if an error is found.

    \b
    Examples:
      covis data check msls /data/msls
      covis data check pitts30k /data/pitts --quick --json
    """
    from covis.datasets.doctor import check as examine

    report = examine(name, path, output or Path(f"check-{name}"), quick=quick, workers=workers)
    whole = not any(finding["level"] == "error" for finding in report["findings"])
    emit(report, json, _report_text(report), _after_check(name, path) if whole else "")
    if not whole:
        raise typer.Exit(2)


def _after_check(name: str, path: Path) -> str:
    """The next command for a complete dataset: training on it if a recipe does, else its benchmark."""
    from covis.evaluation import BENCHMARKS

    if any(make().dataset == name for make in known_names("recipe").values()):
        return f"covis train RECIPE --data {name}={path} -o RUN (covis list recipes --match {name})"
    benchmark = next((b for b in BENCHMARKS if BENCHMARKS[b].dataset == name), "")
    return f"covis evaluate MODEL {benchmark} --data {name}={path}" if benchmark else ""


def _report_text(report: dict[str, Any]) -> str:
    rows = []
    for split, facts in report["splits"].items():
        for side in ("queries", "database"):
            if side in facts:
                counts = {k: facts[side][k] for k in ("images", "groups", "positions", "headings")}
                rows.append({"split": split, "side": "one set" if facts["one_set"] else side, **counts})
    lines = [f"{report['dataset']} at {report['path']}", f"terms: {report['licence']}", "", table(rows), ""]
    if report["published"]:
        published = [
            {"count": r["count"], "published": f"{'' if r['exact'] else '≥ '}{r['published']}", "found": r["found"]}
            for r in report["published"]
        ]
        lines += [table(published), ""]
    lines += [f"{f['level']}: {f['text']}" for f in report["findings"]] or ["no problems found"]
    bad = sum(report["rejects"].values())
    lines.append(
        f"{report['images']} files {'looked at' if report['quick'] else 'decoded'}, {bad} rejected: {report['rejects_file']}"
    )
    return "\n".join(lines)


# `covis list`: what there is, by kind.


def list_names(
    kind: Annotated[str | None, typer.Argument(help="What to list. [default: the kinds themselves]")] = None,
    match: Annotated[str, typer.Option(help="Only names that contain this.")] = "",
    json: Json = False,
) -> None:
    """List datasets, benchmarks, recipes, models and other names.

    \b
    Examples:
      covis list
      covis list recipes
      covis list backbones --match dinov2
    """
    if kind is None:
        emit({name: about for name, (about, _) in LISTS.items()}, json, _kinds())
        return
    if kind not in LISTS:
        raise unknown_name("kind", kind, LISTS)
    listed = {name: about for name, about in LISTS[kind][1]().items() if match in name}
    emit(list(listed), json, _described(listed))


def _kinds() -> str:
    return table([{"kind": name, "covis list KIND shows": about} for name, (about, _) in LISTS.items()])


def _described(listed: dict[str, str]) -> str:
    width = min(40, max((len(name) for name in listed), default=0))
    return "\n".join(f"{name:<{width}}  {about}".rstrip() for name, about in listed.items())


START_WITH = {
    "town_quick": "start here: a minute, no data needed",
    "own_photos": "start here: your own photos, best",
    "own_photos_small": "start here: your own photos, small and fast",
    "msls_vgg16_gem_gcl": "start here: the method's main experiment",
}
"""Recipes that are listed first, and why."""


def _registered(kind: str) -> Callable[[], dict[str, str]]:
    """Name → what it is, of a registry."""

    def names() -> dict[str, str]:
        registered = known_names(kind)
        return {name: registered.about(name) for name in registered}

    return names


def _recipes() -> dict[str, str]:
    """Recipes by dataset, those to start with first."""
    about = _registered("recipe")()
    first = [name for name in START_WITH if name in about]
    rest = sorted((name for name in about if name not in first), key=lambda name: (about[name].partition(":")[0], name))
    return {name: about[name] + (f" ({START_WITH[name]})" if name in first else "") for name in (*first, *rest)}


def _backbones() -> dict[str, str]:
    from covis.models import backbone_names

    return dict.fromkeys(backbone_names(), "")


def _indexes() -> dict[str, str]:
    from covis.search import KINDS

    return {"exact": "every descriptor is looked at", **{name: kind.description for name, kind in KINDS.items()}}


LISTS: dict[str, tuple[str, Callable[[], dict[str, str]]]] = {
    "datasets": ("supported datasets, with their splits", _registered("dataset")),
    "benchmarks": ("named evaluation protocols", _registered("benchmark")),
    "recipes": ("training recipes, by dataset", _recipes),
    "backbones": ("networks to build a model from", _backbones),
    "rules": ("label rules", _registered("rule")),
    "models": ("published models that can be imported", _registered("published model")),
    "batches": ("ways to compose training batches", _registered("kind of batches")),
    "losses": ("training losses", _registered("loss")),
    "pools": ("poolings of feature maps into a descriptor", _registered("pooling")),
    "rerankers": ("ways to re-rank results (covis evaluate --rerank)", _registered("re-ranker")),
    "indexes": ("kinds of index (covis search build --kind, covis index --kind)", _indexes),
    "tables": ("tables and figures that covis reproduce makes", _registered("table")),
}
"""What can be listed → its description, and its names with what they are."""
