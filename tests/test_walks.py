"""How many files one has to read to follow a thing through covis: three walks, really made, and counted.

A file counts where one of its functions ran (kernels included), whatever ran while modules were imported left out.
Counted without and with the services that every module may use, from `errors` to `artifacts`, which one knows after the
first walk.
"""

import contextlib
import gc
import importlib
import pkgutil
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import covis
from covis.cli import main
from covis.evaluation import evaluate, load_benchmark
from covis.evaluation.result import Evaluation
from covis.models import ModelConfig, PlaceModel
from covis.ranking import Ranking
from covis.report import write_report
from layouts import builders
from test_architecture import LAYERS, SOURCE

SERVICES = LAYERS[:1]
FIRST = np.array([55.70, 13.19])


@pytest.fixture(scope="module", autouse=True)
def everything():
    """All modules, so that what runs at import is not taken for a step of a walk."""
    for module in pkgutil.walk_packages(covis.__path__, "covis."):
        if module.name != "covis.__main__":
            with contextlib.suppress(ImportError):  # an extra that is not installed
                importlib.import_module(module.name)


@pytest.fixture
def export_unwatched(monkeypatch):
    """torch's exporter calls millions of its own functions; watched, each of them, it would take minutes."""
    export = torch.onnx.export

    def unwatched(*args, **options):
        watcher = sys.getprofile()
        sys.setprofile(None)
        try:
            return export(*args, **options)
        finally:
            sys.setprofile(watcher)

    monkeypatch.setattr(torch.onnx, "export", unwatched)


@contextlib.contextmanager
def walk():
    """Fills a set with the files of covis whose functions run inside."""
    passed = set()

    def note(frame, event, _argument):
        code = frame.f_code
        if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(str(SOURCE)):
            file = Path(code.co_filename).relative_to(SOURCE)
            if file.suffix == ".py":
                passed.add(str(file))

    gc.collect()
    gc.disable()  # what other tests left behind is no step of this walk
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield passed
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        gc.enable()


def hold(passed, steps, files):
    """Bounds on the files of a walk, without services and with them."""
    assert len([file for file in passed if file.removesuffix(".py") not in SERVICES]) <= steps, "\n".join(
        sorted(passed)
    )
    assert len(passed) <= files, "\n".join(sorted(passed))


def run(*args):
    with pytest.raises(SystemExit) as end:
        main([str(a) for a in args])
    assert end.value.code == 0


def photo(path, at_m, seed):
    """A photo with a position and a heading in its EXIF."""
    builders.image(path, (32, 32), seed)
    lat, lon = FIRST + np.array([0.0, at_m / 62_000])
    parts = [(int(v), int(v % 1 * 60), round(v * 60 % 1 * 60, 4)) for v in (lat, lon)]
    exif = Image.Exif()
    exif[0x8825] = {1: "N", 2: parts[0], 3: "E", 4: parts[1], 16: "T", 17: float(80 + seed % 20)}
    with Image.open(path) as opened:
        opened.save(path, exif=exif)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COVIS_CACHE", str(tmp_path / "cache"))


def test_a_photo_to_its_answer(tmp_path, cache, export_unwatched):
    """From a folder of photos with EXIF to a calibrated map and what it says of a photo: at most 40 files, services included."""
    PlaceModel.build(ModelConfig("tiny", image_size=(32, 32)), seed=0).save(tmp_path / "model")
    for w in range(4):
        for i in range(15):
            photo(tmp_path / "photos" / f"walk-{w}" / f"{i}.jpg", 15.0 * i + w, seed=i)
    with walk() as passed:
        run("index", tmp_path / "photos", "-o", tmp_path / "map", "--model", tmp_path / "model")
        run("locate", tmp_path / "map", tmp_path / "photos" / "walk-1" / "3.jpg")
    assert {"reading/photos.py", "maps/calibration.py", "maps/locating.py"} <= passed
    hold(passed, 32, 40)


def test_a_row_of_a_csv_file_to_its_gradient(tmp_path, cache, monkeypatch):
    """From the CSV files of MSLS through labels and a batch to one step of training: at most 30 files."""
    monkeypatch.setattr(builders, "_street", lambda city, n: np.column_stack([6.0 * np.arange(n), np.zeros(n)]))
    builders.msls(tmp_path / "msls", cities=("amman",), queries=30, database=36)
    small = ("model.backbone=tiny", "model.weights=none", "model.image_size=16,16", "model.trainable=last1")
    changes = [f"--set={s}" for s in (*small, "steps=1", "validation=", "whiten=0")]
    with walk() as passed:
        run(
            "train",
            "msls_resnet50_gem_gcl",
            "--data",
            tmp_path / "msls",
            "-o",
            tmp_path / "run",
            "--workers",
            0,
            *changes,
        )
    assert {"datasets/msls.py", "labels/city.py", "sampling/pairs.py", "losses/pairs.py"} <= passed
    hold(passed, 30, 36)


def test_a_ranking_to_its_report(tmp_path):
    """From a ranking through figures and a saved evaluation to a page: at most 16 files."""
    benchmark = load_benchmark("table", builders.lane(tmp_path) / "lane.csv")
    other = np.where(np.arange(12)[:, None] < 6, np.arange(6, 12), np.arange(6))
    ranking = Ranking(other, np.tile(np.linspace(0, 1, 6, dtype=np.float32), (12, 1)))
    with walk() as passed:
        evaluate(ranking, benchmark).save(tmp_path / "eval")
        write_report(tmp_path / "report.html", {"one": [Evaluation.open(tmp_path / "eval")]}, benchmark)
    assert {"evaluation/scoring.py", "report/page.py"} <= passed
    assert "Recall" in (tmp_path / "report.html").read_text()
    hold(passed, 14, 18)
