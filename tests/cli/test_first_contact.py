"""What newcomers once stumbled over on their first commands, each held by a test (others stand beside what they test)."""

import json
import re
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from covis.experiments import get
from covis.images import ImageSet
from covis.maps.map import Map
from covis.models import ModelConfig, PlaceModel
from covis.poses import Poses

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "covis"


@pytest.fixture
def town(tmp_path, monkeypatch):
    """A map of twelve small pictures along a street, and a folder of new ones."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COVIS_CACHE", str(tmp_path / "cache"))
    for folder in ("photos", "new"):
        (tmp_path / folder).mkdir()
    names = [f"{i:02d}.jpg" for i in range(12)]
    for i, name in enumerate(names):
        small = Image.fromarray(np.random.default_rng(i).integers(0, 255, (4, 4, 3), np.uint8)).resize((32, 32))
        small.save(tmp_path / "photos" / name)
        if i % 4 == 0:
            small.save(tmp_path / "new" / name)
    poses = Poses.from_latlon(55.7 + 0.0001 * np.arange(12), np.full(12, 13.2), np.zeros(12))
    images = ImageSet.of(tmp_path / "photos", names, poses)
    Map.create(tmp_path / "town.map", images, PlaceModel.build(ModelConfig("tiny", image_size=(32, 32)), seed=0))
    return tmp_path


def test_a_folder_is_located_and_every_written_file_is_named(town, covis):
    files = ["found.html", "found.csv", "found.geojson", "found.json"]
    options = [word for file in files for word in ("-o", file)]
    code, out, err = covis("locate", "town.map", "new/", "-k", "2", *options)
    assert code == 0
    assert out.count("new/") == 3
    assert "of 3 photos confident" in out.splitlines()[-1]
    assert "()" not in out
    for file in files:
        assert f"wrote {file}" in out.splitlines()[-1]
        assert (town / file).stat().st_size > 0
    assert "next: open found.html" in err


def test_swapped_arguments_are_recognised(town, covis):
    code, _, err = covis("locate", "new/00.jpg", "town.map")
    assert code == 2
    assert "covis locate town.map new/00.jpg" in err
    assert "covis index" not in err


def test_swapped_degrees_and_an_area_without_photos_are_told(town, covis):
    code, _, err = covis("locate", "town.map", "new/00.jpg", "--near", "13.2,55.7,500")
    assert code == 2
    assert "latitude comes first" in err
    code, out, _ = covis("locate", "town.map", "new/00.jpg", "--near", "55.72,13.2,100")
    assert code == 0
    assert "its photos lie from 55.70000, 13.20000 to 55.70110, 13.20000" in out


def test_a_missing_photo_among_others_has_a_reason(town, covis):
    (town / "new" / "empty.jpg").write_bytes(b"")
    code, out, err = covis("locate", "town.map", "new/empty.jpg", "new/00.jpg")
    assert code == 0
    assert "cannot be used" in out
    assert "()" not in out + err


def test_index_without_weights_names_its_own_options(town, covis, monkeypatch):
    for name in ("HF_HUB_OFFLINE", "HF_HOME"):
        monkeypatch.setenv(name, "1" if name == "HF_HUB_OFFLINE" else str(town / "hub"))
    table = "image,lat,lon\n" + "".join(f"photos/{i:02d}.jpg,{55.7 + i / 1e4},13.2\n" for i in range(12))
    (town / "photos.csv").write_text(table)
    code, _, err = covis("index", "photos.csv", "-o", "other.map", "--recipe", "own_photos_small")
    assert code == 2
    assert re.search(r"--weights FILE\.safetensors", err)
    assert "--set" not in err.splitlines()[-1]
    assert not (town / "other.map").exists()


def test_a_folder_of_another_run_names_the_fields_that_differ(hamlet, tmp_path, monkeypatch, covis):
    monkeypatch.setenv("COVIS_CACHE", str(tmp_path / "cache"))
    common = ["--data", f"town={hamlet}", "-o", tmp_path / "run", "--workers", "0", "--set", "batches.size=4"]
    short = ["--set", "steps=1", "--set", "validation=", "--set", "model.image_size=[32,32]"]
    assert covis("train", "town_quick", *common, *short)[0] == 0
    code, _, err = covis("train", "town_quick", *common, *short, "--set", "loss.margin=0.7", "--seed", "3")
    assert code == 2
    assert "belongs to another run (loss.margin: 0.5 → 0.7, seed: 0 → 3)" in err
    assert len(err) < 300


def test_a_recipe_is_a_file_too(tmp_path, monkeypatch, covis):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.json").write_text(covis("train", "town_gcl", "--dry-run")[1])
    changed = json.loads(covis("train", "my.json", "--dry-run", "--set", "loss.margin=0.7")[1])
    assert changed["loss"]["margin"] == 0.7
    assert get(str(tmp_path / "my.json")) == get("town_gcl")


def test_a_warning_of_a_dataset_is_printed_once(tmp_path, monkeypatch, covis):
    from layouts import builders

    monkeypatch.setenv("COVIS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)  # the check keeps its notes there
    root = builders.msls(tmp_path / "msls")
    shutil.rmtree(next((root / "train_val").iterdir()))
    _, out, err = covis("data", "check", "msls", root)
    lines = [line for line in (out + err).splitlines() if "missing" in line]
    assert lines
    assert len(lines) == len(set(lines))


def test_every_dependency_is_imported():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    modules = {"pillow": "PIL", "faiss-cpu": "faiss", "tensorboard": "torch.utils.tensorboard"}
    source = "\n".join(file.read_text(encoding="utf-8") for file in SRC.rglob("*.py"))
    for entry in project["dependencies"]:
        name = re.match(r"[\w-]+", entry)[0]
        module = modules.get(name, name)
        assert re.search(rf"^\s*(import|from) {module}\b|import_module\(\"{module}\"", source, re.MULTILINE), name
