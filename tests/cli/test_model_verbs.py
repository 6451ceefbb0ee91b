"""`covis model import` and `covis export`, as a user runs them."""

import json
import os

import pytest
import torch

from covis.core.errors import InputError
from covis.describing.describers import find_describer
from covis.evaluation import BENCHMARKS
from covis.evaluation.published import known
from covis.models import ModelConfig, OnnxPlaceModel, PlaceModel, backbones
from covis.models.published import PUBLISHED, PublishedModel


@pytest.fixture
def checkpoint(tmp_path):
    torch.manual_seed(3)
    net = backbones.create_backbone("resnet18", (64, 64)).net
    state = {f"module.backbone.{name}": tensor for name, tensor in net.state_dict().items()}
    torch.save({"state_dict": state | {"module.pool.p": torch.tensor([2.5])}}, tmp_path / "published.pth")
    return tmp_path / "published.pth"


def test_a_published_checkpoint_becomes_a_model(checkpoint, tmp_path, covis):
    arguments = [
        "--backbone",
        "resnet18",
        "--set",
        "image_size=64,96",
        "--licence",
        "MIT",
        "-o",
        tmp_path / "m",
        "--json",
    ]
    code, out, err = covis("model", "import", checkpoint, *arguments)
    assert code == 0, err
    facts = out
    model = PlaceModel.load(tmp_path / "m")
    assert facts["fingerprint"] == model.fingerprint()
    assert facts["dim"] == 512
    assert facts["image_size"] == [64, 96]
    assert model.pool.p.item() == 2.5
    card = json.loads((tmp_path / "m" / "card.json").read_text())
    assert card["licence"] == "MIT"
    assert card["weights"]["file"] == "published.pth"


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_bad_input_is_one_line_and_nothing_is_written(checkpoint, tmp_path, covis):
    torch.save({"state_dict": {}, "x": Bomb(tmp_path / "harmed")}, tmp_path / "bomb.pth")
    for file, options, message in (
        (tmp_path / "absent.pth", [], "does not exist"),
        (tmp_path / "bomb.pth", [], "was not loaded"),
        (checkpoint, ["--backbone", "resnet34"], "does not fit backbone resnet34"),
        (checkpoint, ["--backbone", "resnt18"], "did you mean 'resnet18'"),
        (checkpoint, ["--pool", "gm"], "unknown pooling 'gm'"),
        (checkpoint, ["--set", "image_size=big"], "image_size"),
        (checkpoint, ["--set", "stride_on=conv1"], "bottleneck"),
    ):
        arguments = ["--backbone", "resnet18", "--set", "image_size=64,64", *options, "-o", tmp_path / "m"]
        code, out, err = covis("model", "import", file, *arguments)
        assert code == 2
        assert message in err
        assert err.strip().count("\n") == 0
        assert not out
    assert not (tmp_path / "m").exists()
    assert not (tmp_path / "harmed").exists()


@pytest.mark.slow
def test_export_writes_a_file_that_runs_elsewhere(tmp_path, covis):
    pytest.importorskip("onnxscript")
    from covis.models import ModelConfig

    model = PlaceModel.build(ModelConfig("tiny", "gem", (64, 64)))
    model.save(tmp_path / "m")
    code, out, err = covis("export", tmp_path / "m", "--onnx", tmp_path / "place.onnx", "--json")
    assert code == 0, err
    facts = out
    assert facts["largest_difference"] < 1e-5
    assert facts["bytes"] == (tmp_path / "place.onnx").stat().st_size
    exported = OnnxPlaceModel.open(tmp_path / "place.onnx")
    assert exported.fingerprint() == facts["fingerprint"] == model.fingerprint()
    code, _, err = covis("export", tmp_path / "nowhere", "--onnx", tmp_path / "x.onnx")
    assert code == 2
    assert "does not exist" in err


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A run as `covis train` leaves it: the model below, and the run's own record."""
    from covis.models import ModelConfig

    folder = tmp_path_factory.mktemp("runs") / "quick"
    PlaceModel.build(ModelConfig("tiny", image_size=(32, 48)), seed=0).save(folder / "model", {"licence": "MIT"})
    (folder / "run.json").write_text("{}")
    return folder


def test_a_run_folder_is_a_model(run_folder):
    from covis.describing.describers import open_describer, open_place_model

    assert find_describer(run_folder).path == run_folder / "model"
    assert open_place_model(run_folder).fingerprint() == open_place_model(run_folder / "model").fingerprint()
    assert open_describer(run_folder).facts["label"] == open_describer(run_folder / "model").facts["label"] == "quick"


def test_a_model_to_start_from_needs_no_recipe(run_folder, covis):
    code, out, err = covis("train", "--init", run_folder, "--dry-run")
    assert code == 0, err
    assert json.loads(out) == json.loads(covis("train", "fine_tune", "--init", run_folder, "--dry-run")[1])
    code, out, err = covis("train", "-o", "runs/none")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "covis train --init MODEL" in err


def test_embed_takes_runs_and_copies_descriptors_that_are_there(run_folder, tmp_path, covis):
    from layouts import builders

    for i in range(3):
        builders.image(tmp_path / "photos" / f"{i}.jpg", seed=i)
    code, _, err = covis("embed", run_folder, tmp_path / "photos", "-o", tmp_path / "store")
    assert code == 0, err
    code, out, err = covis("embed", tmp_path / "store", tmp_path / "photos", "-o", tmp_path / "copy", "--json")
    assert code == 0, err
    assert out["rows"] == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("quik", "did you mean"),
        ("unfinished", "without a finished model"),
        ("empty", "holds no model"),
        ("photos.csv", "is not a model"),
        ("absent.onnx", "does not exist"),
    ],
)
def test_what_is_no_model_is_said_before_anything_heavy(run_folder, tmp_path, name, message, covis):
    (tmp_path / "quick").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "unfinished").mkdir()
    (tmp_path / "unfinished" / "run.json").write_text("{}")
    (tmp_path / "photos.csv").write_text("image\n")
    code, _, err = covis("embed", tmp_path / name, tmp_path, "-o", tmp_path / "s")
    assert code == 2
    assert message in err
    assert err.strip().count("\n") == 0
    with pytest.raises(InputError, match=message):
        find_describer(tmp_path / name)


def test_finding_a_model_imports_neither_torch_nor_numba():
    import subprocess
    import sys

    code = (
        "import sys, covis.describing.describers; print([m for m in ('torch', 'numba', 'scipy') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=280)
    assert found.stdout.strip() == "[]"


@pytest.fixture
def little(tmp_path, monkeypatch):
    """A small published model, its checkpoint, and numbers that its authors print for the town."""
    entry = PublishedModel(
        "little", ModelConfig("tiny", "gem", (32, 32)), "net.", "pool.", {"p": "p"}, "", "", "a link"
    )
    monkeypatch.setitem(PUBLISHED._entries, "little", entry)
    model = PlaceModel.build(entry.config)
    state = {f"net.{name}": tensor for name, tensor in model.backbone.net.state_dict().items()}
    torch.save(state | {"pool.p": model.pool.p}, tmp_path / "little.pth")
    printed = (known.KnownNumber("little", "town", {1: 100.0, 5: 100.0}, "a README"),)
    printed += (known.KnownNumber("little", "town", {1: 0.0}, "a README", whiten=8),)
    monkeypatch.setattr(known, "known_numbers", lambda: printed)
    return tmp_path / "little.pth"


def test_verify_compares_with_printed_numbers(little, hamlet, tmp_path, covis):
    code, listed, err = covis("verify", "--json")
    assert code == 0, err
    assert listed[0]["published"] == {"1": 100.0, "5": 100.0}
    assert listed[0]["file"] == "a link"
    assert "covis" not in listed[0]
    command = ("verify", "little", "--data", f"town={hamlet}", "--weights", little, "-o", tmp_path / "v", "--json")
    code, rows, err = covis(*command, "--tolerance", "100")
    assert code == 0, err
    assert [row["result"] for row in rows] == ["within", "within"]
    assert list(rows[0]["covis"]) == ["1", "5"]
    assert rows[1]["covis"] != rows[0]["covis"]
    code, rows, _ = covis(*command)
    assert code == 2
    assert f"outside by {100 - rows[0]['covis']['1']:.1f}" == rows[0]["result"]
    code, rows, err = covis("verify", "little", "--data", f"town={hamlet}", "--json")
    assert (code, rows[0]["result"]) == (0, "not run")
    assert "get it from a link" in err


def test_printed_numbers_are_of_models_and_benchmarks_that_there_are():
    for number in known.known_numbers():
        assert number.model in PUBLISHED
        assert number.benchmark in BENCHMARKS
        assert sorted(number.recall.values()) == [number.recall[k] for k in sorted(number.recall)]
    found = {(n.model, n.benchmark, n.whiten): n.recall for n in known.known_numbers()}
    assert found["gcl_resnext101_gem", "msls_val", None] == {1: 75.5, 5: 86.1, 10: 88.5}
    assert found["gcl_vgg16_gem", "tokyo247_cutouts", 512] == {1: 47.6, 5: 61.0, 10: 69.2}
