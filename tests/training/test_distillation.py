"""A student that learns a teacher's similarities, and 8-bit exports, each judged by photos that were held out."""

import json
import signal

import numpy as np
import pytest
import torch

from covis import cli, open_images
from covis.core.errors import InputError
from covis.describing.describers import ModelDescriber
from covis.models import ModelConfig, PlaceModel
from covis.models.onnx import OnnxPlaceModel, export_int8
from covis.training import distillation
from covis.training.distillation import teacher_agreement
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
    same = teacher_agreement(teacher, teacher @ np.linalg.qr(rng.standard_normal((8, 8)))[0].astype(np.float32), held)
    assert (same.nearest, same.among_five) == (100, 100)
    assert same.correlation == pytest.approx(1, abs=1e-5)
    other = teacher_agreement(teacher, np.roll(teacher, 1, axis=0), held)
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
    assert not list((tmp_path / "cache" / "distillations").iterdir())
    for change, code, words in (([], 0, "is done"), (["--seed", 1], 2, "settings.seed: 0 → 1")):
        with pytest.raises(SystemExit) as stopped:
            cli.main(list(map(str, command + change)))
        out, err = capsys.readouterr()
        assert stopped.value.code == code
        assert words in err
        if not change:
            assert json.loads(out) == told


def test_an_interrupted_student_goes_on_and_ends_the_same(photos, tmp_path, monkeypatch):
    build = lambda seed: PlaceModel.build(ModelConfig("tiny", "gem", SIZE, "all"), seed=seed)  # noqa: E731
    teacher, images = ModelDescriber(build(0), workers=0), open_images(photos)
    settings, difference = distillation.Distillation(steps=6, size=16), distillation._difference
    whole, _ = distillation.distil(teacher, build(1), images, settings, workers=0)
    calls = []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return difference(*arguments)

    monkeypatch.setattr(distillation, "_difference", interrupted)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a command before this test may have set another
    with pytest.raises(KeyboardInterrupt):
        distillation.distil(teacher, build(1), images, settings, workers=0)
    resumed, _ = distillation.distil(teacher, build(1), images, settings, workers=0)
    assert len(calls) == 6
    assert all(torch.equal(value, resumed.state_dict()[key]) for key, value in whole.state_dict().items())


def test_eight_bits_are_near_and_told_apart(photos, tmp_path, capsys, caplog):
    pytest.importorskip("onnxscript", reason="exports")
    onnx = pytest.importorskip("onnx", reason="exports")
    model = PlaceModel.build(ModelConfig("tiny", "gem", SIZE), seed=0)
    model.save(tmp_path / "model")
    with pytest.raises(SystemExit) as stopped:
        cli.main(
            ["export", str(tmp_path / "model"), "--onnx", str(tmp_path / "small.onnx"), "--int8", str(photos), "--json"]
        )
    out, err = capsys.readouterr()
    assert stopped.value.code == 0, err
    loss = json.loads(out)
    assert loss["photos"] == 36
    assert not [r for r in caplog.records if r.levelname == "WARNING"]  # the quantiser's advice about its own steps
    assert 0.99 < loss["least_cosine"] <= loss["mean_cosine"] <= 1.0001
    assert loss["bytes"] < 0.5 * loss["bytes_before"]
    opened = OnnxPlaceModel.open(tmp_path / "small.onnx")
    assert opened.signed
    assert opened.fingerprint() != model.fingerprint()
    judged = torch.stack([model.preprocessing.pixels(path) for path in sorted(photos.glob("*.jpg"))[1::2]])
    with torch.inference_mode():
        exact = model(model.normalise(judged))
    assert float((opened(judged) * exact).sum(1).mean()) == pytest.approx(loss["mean_cosine"], abs=1e-3)
    tensors = onnx.load(tmp_path / "small.onnx").graph.initializer
    weights = [onnx.numpy_helper.to_array(t).astype(int) for t in tensors if t.data_type == onnx.TensorProto.INT8]
    largest = [int(abs(w).max()) for w in weights if w.ndim > 1]
    assert max(largest) in (63, 64), "a sum of two products must fit 16 bits"
    with pytest.raises(InputError, match="too few"):
        export_int8(model, tmp_path / "none.onnx", judged[:4])
