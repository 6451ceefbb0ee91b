"""`covis model import|show` and `covis export`, as a user runs them."""

import json
import os

import pytest
import torch

from covis.cli import main
from covis.models import OnnxPlaceModel, PlaceModel, backbones


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    return stop.value.code, out, err


@pytest.fixture
def checkpoint(tmp_path):
    torch.manual_seed(3)
    net = backbones.create("resnet18", (64, 64)).net
    state = {f"module.backbone.{name}": tensor for name, tensor in net.state_dict().items()}
    torch.save({"state_dict": state | {"module.pool.p": torch.tensor([2.5])}}, tmp_path / "published.pth")
    return tmp_path / "published.pth"


def test_a_published_checkpoint_becomes_a_model(checkpoint, tmp_path, capsys):
    arguments = ["--backbone", "resnet18", "--image-size", "64x96", "--licence", "MIT", "-o", tmp_path / "m", "--json"]
    code, out, err = run(capsys, "model", "import", checkpoint, *arguments)
    assert code == 0, err
    facts = json.loads(out)
    model = PlaceModel.load(tmp_path / "m")
    assert facts["fingerprint"] == model.fingerprint()
    assert facts["dim"] == 512
    assert facts["image_size"] == [64, 96]
    assert model.pool.p.item() == 2.5
    code, out, _ = run(capsys, "model", "show", tmp_path / "m", "--json")
    card = json.loads(out)
    assert code == 0
    assert card["licence"] == "MIT"
    assert card["weights"]["file"] == "published.pth"
    code, out, _ = run(capsys, "model", "show", tmp_path / "m")
    assert "resnet18" in out


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_bad_input_is_one_line_and_nothing_is_written(checkpoint, tmp_path, capsys):
    torch.save({"state_dict": {}, "x": Bomb(tmp_path / "harmed")}, tmp_path / "bomb.pth")
    for file, options, message in (
        (tmp_path / "absent.pth", [], "is not there"),
        (tmp_path / "bomb.pth", [], "was not loaded"),
        (checkpoint, ["--backbone", "resnet34"], "does not fit backbone resnet34"),
        (checkpoint, ["--backbone", "resnt18"], "did you mean 'resnet18'"),
        (checkpoint, ["--pool", "gm"], "unknown pooling 'gm'"),
        (checkpoint, ["--image-size", "big"], "HEIGHTxWIDTH"),
        (checkpoint, ["--stride-on", "conv1"], "bottleneck"),
    ):
        arguments = ["--backbone", "resnet18", "--image-size", "64x64", *options, "-o", tmp_path / "m"]
        code, out, err = run(capsys, "model", "import", file, *arguments)
        assert code == 2
        assert message in err
        assert err.strip().count("\n") == 0
        assert not out
    assert not (tmp_path / "m").exists()
    assert not (tmp_path / "harmed").exists()


@pytest.mark.slow
def test_export_writes_a_file_that_runs_elsewhere(tmp_path, capsys):
    pytest.importorskip("onnxscript")
    from covis.models import ModelConfig

    model = PlaceModel.build(ModelConfig("tiny", "gem", (64, 64)))
    model.save(tmp_path / "m")
    code, out, err = run(capsys, "export", tmp_path / "m", "--onnx", tmp_path / "place.onnx", "--json")
    assert code == 0, err
    facts = json.loads(out)
    assert facts["largest_difference"] < 1e-5
    assert facts["bytes"] == (tmp_path / "place.onnx").stat().st_size
    exported = OnnxPlaceModel.open(tmp_path / "place.onnx")
    assert exported.fingerprint() == facts["fingerprint"] == model.fingerprint()
    code, _, err = run(capsys, "export", tmp_path / "nowhere", "--onnx", tmp_path / "x.onnx")
    assert code == 2
    assert "not a covis model" in err
