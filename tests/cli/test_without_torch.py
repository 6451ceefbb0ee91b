"""Using a map needs no torch: every verb that takes an ONNX file or no model runs where torch cannot be imported."""

import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from covis.models import ModelConfig, PlaceModel, export_onnx

pytest.importorskip("onnxscript")
BLOCKED = """
import sys
for name in ("torch", "torchvision", "timm", "matplotlib", "tensorboard", "faiss", "h5py", "numba", "scipy", "pyarrow"):
    sys.modules[name] = None
from covis.cli import main
main(sys.argv[1:])
"""
ELSEWHERE = (
    """
import os, sys
for name in ("fcntl", "resource", "pwd", "grp", "posix_ipc", "termios"):
    sys.modules[name] = None
for name in ("fork", "forkpty", "geteuid", "getuid", "mkfifo", "sched_getaffinity", "O_NONBLOCK", "O_DIRECTORY", "O_NOFOLLOW"):
    if hasattr(os, name):
        delattr(os, name)
"""
    + BLOCKED
)
"""The core as far as POSIX can be taken from it: what Windows lacks is missing."""


@pytest.fixture(scope="module")
def walk(tmp_path_factory):
    """Blobs of colour along a street, an ONNX file of a small model, and its model folder."""
    folder = tmp_path_factory.mktemp("walk")
    lines = ["image,lat,lon,heading"]
    for i in range(24):
        small = np.random.default_rng(i).integers(0, 256, (4, 5, 3), np.uint8)
        Image.fromarray(small).resize((48, 36)).save(folder / f"{i}.png")
        lines.append(f"{i}.png,{55.7 + 0.0002 * i},13.19,{(10 * i) % 360}")
    (folder / "photos.csv").write_text("\n".join(lines), encoding="utf-8")
    model = PlaceModel.build(ModelConfig("tiny", image_size=(32, 32)), seed=1)
    model.save(folder / "model")
    export_onnx(model, folder / "place.onnx")
    return folder


def run(folder, *arguments, program=BLOCKED):
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280)


def test_maps_descriptors_pairs_and_labels_need_no_torch(walk):
    commands = [
        "index photos.csv -o town.map --model place.onnx --json",
        "locate town.map 3.png --json",
        "map check town.map --json",
        "embed place.onnx photos.csv -o photos.store --json",
        "pairs photos.csv --model place.onnx -o pairs.txt --json",
        "label --queries photos.csv -o labels --json",
        "doctor --json",
    ]
    answers = {}
    for command in commands:
        done = run(walk, *command.split())
        assert done.returncode == 0, (command, done.stderr)
        answers[command.split()[0]] = json.loads(done.stdout)
    assert answers["locate"][0]["matches"][0]["image"] == "3.png"
    assert answers["embed"]["rows"] == answers["index"]["photos"] == 24


def test_maps_are_made_and_asked_without_what_only_posix_has(walk, monkeypatch):
    monkeypatch.setenv("COVIS_CACHE", str(walk / "cache"))  # locks of POSIX look held to the kind that is used then
    for command in ("index photos.csv -o plain.map --model place.onnx --json", "locate plain.map 3.png --json"):
        done = run(walk, *command.split(), program=ELSEWHERE)
        assert done.returncode == 0, (command, done.stderr)
    assert json.loads(done.stdout)[0]["matches"][0]["image"] == "3.png"


def test_descriptors_without_torch_are_those_of_torch(walk):
    import covis

    images = covis.open_images(walk / "photos.csv")
    done = run(walk, "embed", "place.onnx", "photos.csv", "-o", "again.store")
    assert done.returncode == 0, done.stderr
    found = covis.DescriptorStore.open(walk / "again.store")
    expected = covis.embed(PlaceModel.load(walk / "model"), images, workers=0)
    np.testing.assert_allclose(found[found.rows(images.names)], expected, atol=1e-4)


@pytest.mark.parametrize("command", ["index photos.csv -o other.map --model model", "index photos.csv -o other.map"])
def test_what_needs_torch_says_so_in_one_line(walk, command):
    done = run(walk, *command.split())
    assert done.returncode == 2
    assert "pip install 'covis[train]'" in done.stderr.splitlines()[-1]


def test_sample_photos_say_which_extra_renders_them(walk):
    done = run(walk, "sample", "rendered")
    assert done.returncode == 2
    assert "pip install 'covis[labels]'" in done.stderr.splitlines()[-1]


def test_hdf5_says_which_extra_it_needs(walk):
    done = run(walk, *["pairs", "photos.csv", "--model", "place.onnx", "-o", "pairs2.txt", "-o", "features.h5"])
    assert done.returncode == 2, done.stderr
    assert "pip install 'covis[hdf5]'" in done.stderr.splitlines()[-1]


def test_search_is_exact_without_faiss():
    program = (
        "import sys; sys.modules['faiss'] = None; from covis.search.kinds import choose; print(choose('auto', 10**6))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=280)
    assert done.stdout.strip() == "exact"
