"""A student that learns a teacher's similarities, and 8-bit exports, each judged by photos that were held out."""

import json

import numpy as np
import pytest
import torch

from covis import cli
from covis.errors import InputError
from covis.models import ModelConfig, PlaceModel
from covis.models.onnx import OnnxPlaceModel, export_int8
from covis.training.distillation import agreement
from layouts import builders

SIZE = (32, 32)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos")
    for i in range(72):
        builders.image(root / f"{i:02d}.jpg", (40, 40), seed=i)
    return root


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COVIS_CACHE", str(tmp_path / "cache"))


def test_agreement_is_counted_among_all_others():
    rng = np.random.default_rng(0)
    teacher = rng.standard_normal((40, 8)).astype(np.float32)
    teacher /= np.linalg.norm(teacher, axis=1, keepdims=True)
    held = np.array([3, 17, 39])
    same = agreement(teacher, teacher @ np.linalg.qr(rng.standard_normal((8, 8)))[0].astype(np.float32), held)
    assert (same.nearest, same.among_five) == (100, 100)
    assert same.correlation == pytest.approx(1, abs=1e-5)
    other = agreement(teacher, np.roll(teacher, 1, axis=0), held)
    assert other.correlation < 0.6


def test_a_student_comes_closer_to_its_teacher(photos, tmp_path, capsys):
    for name, seed in (("teacher", 0), ("student", 1)):
        model = PlaceModel.build(ModelConfig("tiny", "gem", SIZE, "all", batchnorm="frozen"), seed=seed)
        model.save(tmp_path / name)
    command = ["distil", tmp_path / "teacher", tmp_path / "student", photos, "-o", tmp_path / "small", "--steps", 8,
               "--rate", 1e-3, "--size", 16, "--workers", 0, "--json"]  # fmt: skip
    with pytest.raises(SystemExit) as stopped:
        cli.main(list(map(str, command)))
    out, err = capsys.readouterr()
    assert stopped.value.code == 0, err
    told = json.loads(out)
    assert told["held_out"] == 9
    assert told["after"]["correlation"] > told["before"]["correlation"]
    assert PlaceModel.load(tmp_path / "small").card["distilled"]["teacher"]["label"] == "teacher"


def test_eight_bits_are_near_and_told_apart(tmp_path):
    pytest.importorskip("onnxscript", reason="exports")
    model = PlaceModel.build(ModelConfig("tiny", "gem", SIZE), seed=0)
    pixels = torch.randint(0, 256, (24, 3, *SIZE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    loss = export_int8(model, tmp_path / "small.onnx", pixels)
    assert loss.photos == 12
    assert 0.9 < loss.least_cosine <= loss.mean_cosine <= 1.0001
    assert loss.bytes < 0.5 * loss.bytes_before
    opened = OnnxPlaceModel.open(tmp_path / "small.onnx")
    assert opened.signed
    assert opened.fingerprint() != model.fingerprint()
    with torch.inference_mode():
        exact = model(model.normalise(pixels[1::2]))
    assert float((opened(pixels[1::2]) * exact).sum(1).mean()) == pytest.approx(loss.mean_cosine, abs=1e-3)
    with pytest.raises(InputError, match="too few"):
        export_int8(model, tmp_path / "none.onnx", pixels[:4])
