"""A map that carries an ONNX file of its model answers at once, without torch, as torch would."""

import importlib.util
import json
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from covis.core import artifacts, files
from covis.core.errors import InputError
from covis.describing.torch_runtime import TorchRuntime
from covis.images import ImageSet
from covis.maps.care import check_map, repair_map
from covis.maps.map import Map
from covis.maps.storage.layout import MODEL, RUNTIME
from covis.models import ModelConfig, PlaceModel
from covis.poses import Poses
from covis.reading.decoding import decode
from covis.reading.inputs import Photo
from covis.runtime import describe_photos
from covis.whitening import Whitening

HEAVY = ("torch", "torchvision", "timm", "numba", "faiss", "pyarrow", "scipy", "matplotlib")
COLD = f"""
import sys, json
from covis.cli import main
try:
    main(sys.argv[1:])
except SystemExit as stop:
    heavy = [name for name in {HEAVY!r} if name in sys.modules]
    print(json.dumps({{"code": stop.code, "heavy": heavy}}), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def town(tmp_path_factory):
    if not all(map(importlib.util.find_spec, ("onnxruntime", "onnxscript", "onnx"))):
        pytest.skip("onnx is not installed")
    folder = tmp_path_factory.mktemp("quick")
    for i in range(8):
        small = np.random.default_rng(i).integers(0, 256, (4, 5, 3), np.uint8)
        Image.fromarray(small).resize((80, 60)).save(folder / f"{i}.jpg")
    poses = Poses.from_latlon(55.7 + 0.0002 * np.arange(8), np.full(8, 13.19), np.arange(8) * 40.0)
    images = ImageSet.of(folder, [f"{i}.jpg" for i in range(8)], poses)
    model = PlaceModel.build(ModelConfig("tiny", "gem", (32, 32)), seed=1)
    made = Map.create(folder / "map", images, model)
    assert made.network.carry_runtime()
    assert made.network.carry_runtime()  # it is there already
    return folder


def photos(folder):
    return [folder / f"{i}.jpg" for i in range(8)]


def test_a_first_answer_is_cold_and_quick(town):
    page = town / "found.html"
    command = [
        sys.executable,
        "-c",
        COLD,
        "locate",
        str(town / "map"),
        str(town / "3.jpg"),
        "--json",
        "-o",
        str(page),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=True)
    facts = json.loads(done.stderr.splitlines()[-1])
    assert (facts["code"], facts["heavy"]) == (0, [])
    assert json.loads(done.stdout)[0]["matches"][0]["image"] == "3.jpg"
    assert done.stderr.startswith("locating 1 photo")
    assert "<html" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("arguments", [("nowhere.map", "3.jpg"), ("map", "nowhere.jpg"), ("3.jpg", "map")])
def test_mistakes_are_told_before_anything_is_loaded(town, arguments):
    command = [sys.executable, "-c", COLD, "locate", *(str(town / a) for a in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=True)
    facts = json.loads(done.stderr.splitlines()[-1])
    assert (facts["code"], facts["heavy"]) == (2, [])
    assert len(done.stderr.splitlines()) == 2


def test_descriptors_are_those_of_torch(town):
    from covis.describing.torch_runtime import TorchRuntime

    carried = Map.open(town / "map")
    by_onnx = carried.describe(photos(town))
    assert type(carried.runtime).__name__ == "OnnxSession"
    without = Map.open(town / "map")
    without.network.__dict__["runtime"] = TorchRuntime(without.model)
    by_torch = without.describe(photos(town))
    assert by_onnx.unusable == by_torch.unusable == {}
    assert np.abs(by_onnx.vectors - by_torch.vectors).max() < 1e-4


def test_one_path_or_many_and_what_cannot_be_used(town, tmp_path):
    carried = Map.open(town / "map")
    [answer] = carried.locate(str(town / "2.jpg"))
    assert answer.matches[0].image == "2.jpg"
    (tmp_path / "empty.jpg").write_bytes(b"")
    bad, good = carried.locate([tmp_path / "empty.jpg", town / "5.jpg"])
    assert (bad.unusable, good.matches[0].image) == (True, "5.jpg")
    assert "empty (the file has no bytes)" in bad.note
    with pytest.raises(InputError, match="does not exist"):
        carried.locate([town / "5.jpg", tmp_path / "gone.jpg"])
    assert repr(carried) == f"Map({str(town / 'map')!r}, 8 photos, version 1, tiny)"
    assert "8" in carried._repr_html_()


def test_images_in_memory_are_located_as_their_files(town, monkeypatch):
    import torch

    carried, file = Map.open(town / "map"), town / "3.jpg"
    pixels = decode(file)
    with file.open("rb") as handle, Image.open(file) as image:
        given = [file.read_bytes(), handle, image, pixels, torch.from_numpy(pixels).permute(2, 0, 1), pixels / 255]
        answers = carried.locate([file, *given])
        assert str(answers[2].photo) == str(answers[3].photo) == str(file)
        assert np.array_equal(np.asarray(image), pixels)  # as it was
    assert len(answers) == 7
    for answer in answers:
        assert answer.matches[0].image == "3.jpg"
        assert answer.matches[0].distance == pytest.approx(answers[0].matches[0].distance, abs=0.02)
    assert len(carried.locate(town)) == len(carried.locate(np.stack([pixels] * 8))) == 8
    shown = []
    monkeypatch.setattr("webbrowser.open", shown.append)
    for some in (answers[4], answers):
        assert some.show().as_uri() == shown[-1]
        assert "data:image/jpeg" in some.show().read_text(encoding="utf-8")
        assert "data:image/jpeg" in some._repr_html_()
    assert repr(answers[4]).startswith("<Answer photo-5: ")
    assert len(repr(answers[4])) < 300


def test_a_map_is_built_in_one_call(town, tmp_path):
    images = Map.open(town / "map").images
    degrees = images.poses.latlon()
    lines = [f"{i}.jpg,{lat},{lon},walk" for i, (lat, lon) in enumerate(degrees)]
    (town / "town.csv").write_text("\n".join(["image,lat,lon,group", *lines]))
    built = Map.build(
        str(town / "town.csv"), str(tmp_path / "built"), model=str(town / "map" / "model"), runtime="torch"
    )
    assert built.locate(town / "5.jpg")[0].matches[0].image == "5.jpg"
    assert len(Map.build(town / "town.csv", model=town / "map" / "model", runtime="torch")) == 8
    assert (town / "town.map").is_dir()


def test_answers_become_tables(town):
    answers = Map.open(town / "map").locate([town / "1.jpg", town / "4.jpg"])
    table = answers.to_pandas()
    assert list(table.lat) == [pytest.approx(a.lat) for a in answers]
    assert list(table.match) == ["1.jpg", "4.jpg"]
    points = answers.to_geodataframe()
    assert points.crs.to_epsg() == 4326
    assert [(p.x, p.y) for p in points.geometry] == [pytest.approx((a.lon, a.lat)) for a in answers]


def test_without_onnxruntime_torch_answers(town, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "onnxruntime" else real(name, *a))
    carried = Map.open(town / "map")
    assert carried.locate(town / "2.jpg")[0].matches[0].image == "2.jpg"
    assert type(carried.runtime).__name__ == "TorchRuntime"


def test_opened_again_only_what_changed_is_read(town, tmp_path, monkeypatch):
    """Large files are hashed once, and again when they change: as those of descriptors."""
    monkeypatch.setattr(artifacts, "SMALL_BYTES", 1 << 10)
    monkeypatch.setattr(artifacts, "_SETTLED_S", 0.0)
    shutil.copytree(town / "map", tmp_path / "map")
    hashed = []
    real = files.sha256
    monkeypatch.setattr(files, "sha256", lambda path: hashed.append(path.name) or real(path))
    for expected in (["model.onnx", "model.weights"], []):
        hashed.clear()
        assert type(Map.open(tmp_path / "map").runtime).__name__ == "OnnxSession"
        assert [name for name in hashed if name.startswith("model.")] == expected


@pytest.mark.parametrize("name", ["model.onnx", "model.weights"])
def test_a_damaged_file_is_named_and_made_again(town, tmp_path, name):
    shutil.copytree(town / "map", tmp_path / "map")
    assert check_map(tmp_path / "map") == []
    file = tmp_path / "map" / RUNTIME / name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(InputError, match=rf"{name} is damaged.*covis map repair"):
        Map.open(tmp_path / "map").locate(town / "2.jpg")
    assert [problem.part for problem in check_map(tmp_path / "map")] == [RUNTIME]
    outcome = repair_map(tmp_path / "map")
    assert (outcome["repaired"], outcome["dropped"], outcome["photos"], outcome["version"]) == (True, [], 8, 1)
    assert check_map(tmp_path / "map") == []
    repaired = Map.open(tmp_path / "map")
    assert repaired.locate(town / "2.jpg")[0].matches[0].image == "2.jpg"
    assert type(repaired.runtime).__name__ == "OnnxSession"


def test_large_weights_are_stored_once(town, tmp_path):
    """The ONNX file reads those of the model, turned where a layer is stored the other way round."""
    made = Map.open(town / "map")
    model = PlaceModel.build(ModelConfig("tiny", "netvlad32", (32, 32)), seed=1)
    directions = np.random.default_rng(0).normal(size=(model.dim, 500))
    model.whiten(Whitening(np.zeros(model.dim), directions).halved())
    made = Map.create(tmp_path / "map", replace(made.images, root=town), model)
    assert made.network.carry_runtime()
    assert sorted(p.name for p in (tmp_path / "map" / RUNTIME).iterdir()) == ["manifest.json", "model.onnx"]
    opened = Map.open(tmp_path / "map", verify=True)
    assert type(opened.runtime).__name__ == "OnnxSession"
    vector = opened.describe(town / "2.jpg").vectors
    assert np.abs(vector - describe_photos(TorchRuntime(model), [Photo(town / "2.jpg")], 1e-3).vectors).max() < 1e-5
    file = tmp_path / "map" / MODEL / "whitening.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 64
    file.write_bytes(bytes(data))
    with pytest.raises(InputError, match=r"whitening\.safetensors is damaged"):
        Map.open(tmp_path / "map").locate(town / "2.jpg")


def test_weights_outside_the_map_are_not_read(town, tmp_path):
    """A map from elsewhere whose ONNX file names another file is refused, though its checksums fit."""
    import onnx

    shutil.copytree(town / "map", tmp_path / "map")
    folder = tmp_path / "map" / RUNTIME
    (folder / "model.weights").rename(tmp_path / "secret")
    graph = onnx.load(folder / "model.onnx", load_external_data=False)
    for entry in [e for tensor in graph.graph.initializer for e in tensor.external_data if e.key == "location"]:
        entry.value = "../../secret"
    (folder / "model.onnx").write_bytes(graph.SerializeToString())
    manifest = artifacts.read_json(folder / artifacts.MANIFEST)
    facts = {key: manifest[key] for key in ("model", "difference")}
    entry = {"model.onnx": artifacts.file_entry(folder / "model.onnx")}
    artifacts.write_manifest(folder, RUNTIME, facts, entry)
    with pytest.raises(InputError, match="escapes"):
        Map.open(tmp_path / "map").locate(town / "2.jpg")


def test_a_network_that_decayed_below_the_file_system_is_refused(town, tmp_path, monkeypatch):
    """Its stamp is the old one, so that nothing is hashed; a known picture tells."""
    shutil.copytree(town / "map", tmp_path / "map")
    assert len(Map.open(tmp_path / "map").locate(town / "3.jpg")[0].matches)
    weights = max((tmp_path / "map" / RUNTIME).iterdir(), key=lambda file: file.stat().st_size)
    content = bytearray(weights.read_bytes())
    content[len(content) // 4 : len(content) // 2] = bytes(len(content) // 2 - len(content) // 4)
    weights.write_bytes(content)
    monkeypatch.setattr(artifacts, "SMALL_BYTES", 0)
    monkeypatch.setattr(artifacts, "_is_recent", lambda note: True)
    with pytest.raises(InputError, match="known picture"):
        Map.open(tmp_path / "map").locate(town / "3.jpg")
    monkeypatch.undo()
    repair_map(tmp_path / "map")
    assert Map.open(tmp_path / "map").locate(town / "3.jpg")[0].matches[0].image == "3.jpg"
