"""How much one reads to follow a thing through covis: files, their lines, and jumps between them, printed and bounded by nothing.

    python benchmarks/walks.py

Each walk is really made. A file counts where one of its functions ran, whatever ran at import left out; a jump is a change
of file in the order in which functions are first called. Services (`covis.core`), which one knows after the first walk,
count as files and lines but not as jumps.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import itertools
import os
import pkgutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from PIL import Image

import covis
from covis.cli import main

SOURCE = Path(covis.__file__).parent
TESTS = Path(__file__).resolve().parents[1] / "tests"


class Walk:
    """The functions of covis in the order of their first call."""

    def __init__(self) -> None:
        self.functions: dict[tuple[str, str, int], None] = {}

    def note(self, frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(str(SOURCE)):
            file = str(Path(code.co_filename).relative_to(SOURCE))
            self.functions.setdefault((file, code.co_qualname, code.co_firstlineno))

    def row(self, name: str) -> str:
        files = list(dict.fromkeys(file for file, _, _ in self.functions))
        lines = sum(len((SOURCE / file).read_text(encoding="utf-8").splitlines()) for file in files)
        path = [file for file, _, _ in self.functions if not file.startswith("core")]
        jumps = sum(a != b for a, b in itertools.pairwise(path))
        return f"{name:<28}{len(files):>8}{len(self.functions):>12}{lines:>9,}{jumps:>8}"


@contextlib.contextmanager
def watched() -> Iterator[Walk]:
    """A walk of what runs inside; torch's exporter, which calls millions of its own functions, runs unwatched."""
    walk, export = Walk(), torch.onnx.export

    def unwatched(*args: Any, **options: Any) -> Any:
        sys.setprofile(None)
        try:
            return export(*args, **options)
        finally:
            sys.setprofile(walk.note)

    gc.collect()
    gc.disable()
    torch.onnx.export = unwatched
    threading.setprofile(walk.note)
    sys.setprofile(walk.note)
    try:
        yield walk
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        torch.onnx.export = export
        gc.enable()


def run(*args: object) -> None:
    """A command in this process; its results are not shown."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            main([str(a) for a in args])
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"covis {args[0]} ended with {end.code}") from None


def photo(path: Path, at_m: float, seed: int) -> None:
    """A photo with a position and a heading in its EXIF."""
    from layouts import builders

    builders.image(path, (32, 32), seed)
    parts = [(int(v), int(v % 1 * 60), round(v * 60 % 1 * 60, 4)) for v in (55.70, 13.19 + at_m / 62_000)]
    exif = Image.Exif()
    exif[0x8825] = {1: "N", 2: parts[0], 3: "E", 4: parts[1], 16: "T", 17: float(80 + seed % 20)}
    with Image.open(path) as opened:
        opened.save(path, exif=exif)


def photos_to_map(folder: Path) -> Walk:
    """A folder of photos with EXIF → a calibrated map."""
    from covis.models import ModelConfig, PlaceModel

    PlaceModel.build(ModelConfig("tiny", image_size=(32, 32)), seed=0).save(folder / "model")
    for w in range(4):
        for i in range(15):
            photo(folder / "photos" / f"walk-{w}" / f"{i}.jpg", 15.0 * i + w, seed=i)
    with watched() as walk:
        run("index", folder / "photos", "-o", folder / "map", "--model", folder / "model")
    return walk


def photo_to_answer(folder: Path) -> Walk:
    """A photo → what that map says of it."""
    with watched() as walk:
        run("locate", folder / "map", folder / "photos" / "walk-1" / "3.jpg")
    return walk


def row_to_gradient(folder: Path) -> Walk:
    """The CSV files of MSLS → labels, a batch, one step of training."""
    from layouts import builders

    builders._street = lambda city, n: np.column_stack([6.0 * np.arange(n), np.zeros(n)])
    builders.msls(folder / "msls", cities=("amman",), queries=30, database=36)
    small = ("model.backbone=tiny", "model.weights=none", "model.image_size=16,16", "model.trainable=last1")
    changes = [f"--set={s}" for s in (*small, "steps=1", "validation=", "whiten=0")]
    recipe = ("train", "msls_resnet50_gem_gcl", "--data", folder / "msls", "-o", folder / "run", "--workers", 0)
    with watched() as walk:
        run(*recipe, *changes)
    return walk


def ranking_to_report(folder: Path) -> Walk:
    """A ranking → figures, a saved evaluation, a page."""
    from covis.evaluation import evaluate, load_benchmark
    from covis.evaluation.result import Evaluation
    from covis.ranking import Ranking
    from covis.report import write_report
    from layouts import builders

    benchmark = load_benchmark("table", builders.lane(folder / "lane") / "lane.csv")
    other = np.where(np.arange(12)[:, None] < 6, np.arange(6, 12), np.arange(6))
    ranking = Ranking(other, np.tile(np.linspace(0, 1, 6, dtype=np.float32), (12, 1)))
    with watched() as walk:
        evaluate(ranking, benchmark).save(folder / "eval")
        write_report(folder / "report.html", {"one": [Evaluation.open(folder / "eval")]}, benchmark)
    return walk


def load_everything() -> None:
    """All modules, so that what runs at import is not taken for a step of a walk."""
    for module in pkgutil.walk_packages(covis.__path__, "covis."):
        if module.name != "covis.__main__":
            with contextlib.suppress(ImportError):  # an extra that is not installed
                importlib.import_module(module.name)


WALKS: dict[str, Callable[[Path], Walk]] = {
    "photos → map": photos_to_map,
    "photo → answer": photo_to_answer,
    "CSV row → gradient": row_to_gradient,
    "ranking → report": ranking_to_report,
}


def walk_all() -> None:
    """Makes each walk and prints its row."""
    sys.path.insert(0, str(TESTS))
    load_everything()
    print(f"{'walk':<28}{'files':>8}{'functions':>12}{'lines':>9}{'jumps':>8}")
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["COVIS_CACHE"] = f"{temporary}/cache"
        for name, make in WALKS.items():
            print(make(Path(temporary)).row(name), flush=True)


if __name__ == "__main__":
    walk_all()
