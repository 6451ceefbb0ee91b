"""Every kind of describer (model folder, run folder, ONNX file, store, `.npy` + names) in every verb that takes one."""

import importlib.util
import shutil

import numpy as np
import pytest

from covis.cli import main
from covis.core.errors import InputError
from covis.descriptors import DescriptorStore
from covis.maps.calibration import gcl_margin
from covis.maps.care import check_map, repair_map
from covis.maps.map import Map
from covis.models import ModelConfig, OnnxPlaceModel, PlaceModel, export_onnx
from covis.models.onnx import PARITY_TOLERANCE
from layouts import builders

pytestmark = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("onnxruntime", "onnxscript", "onnx"))), reason="onnx is not installed"
)
KINDS = ("model", "run", "onnx", "store", "matrix")
NETWORKS, COMPUTED = KINDS[:3], KINDS[3:]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Photos of two walks as a table, and one network in five shapes: `place / kind` is what a verb is given."""
    root = builders.lane(tmp_path_factory.mktemp("describers"), photos=20)
    model = PlaceModel.build(ModelConfig("tiny", image_size=(32, 32)), seed=0)
    card = {"recipe": {"loss": {"type": "GeneralizedContrastive", "margin": 0.5}}, "training": {"steps": 1}}
    card["licence"] = "CC BY 4.0"
    model.save(root / "model", card)
    shutil.copytree(root / "model", root / "run" / "model")
    (root / "run" / "run.json").write_text("{}")
    export_onnx(PlaceModel.load(root / "model"), root / "onnx.onnx")
    return root


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COVIS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def refused(covis, *arguments):
    """The one line that says why a command does not work."""
    code, out, err = covis(*arguments, "--json")
    [line] = [line for line in err.splitlines() if line.startswith("covis: error")]
    assert (code, out) == (2, "")
    return line


@pytest.fixture(scope="module")
def describers(place):
    """Kind → path; the store and the matrix hold what the network gives of the photos."""
    if not (place / "store").exists():
        with pytest.raises(SystemExit) as stop:
            main(["embed", str(place / "model"), str(place / "lane.csv"), "-o", str(place / "store")])
        assert stop.value.code == 0
        store = DescriptorStore.open(place / "store")
        np.save(place / "matrix.npy", 3.0 * store[:])
        (place / "matrix.txt").write_bytes(b"\n".join(store.names.tolist()))
    suffixes = {"onnx": ".onnx", "matrix": ".npy"}
    return {kind: place / f"{kind}{suffixes.get(kind, '')}" for kind in KINDS}


@pytest.fixture(scope="module")
def maps(place, describers):
    """Kind → the map that `covis index` makes with it."""
    made = {}
    for kind, describer in describers.items():
        made[kind] = place / f"{kind}.map"
        with pytest.raises(SystemExit) as stop:
            main(
                [
                    "index",
                    str(place / "lane.csv"),
                    "-o",
                    str(made[kind]),
                    "--model",
                    str(describer),
                    "--runtime",
                    "torch",
                ]
            )
        assert stop.value.code == 0
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_embed(kind, describers, place, tmp_path, covis):
    code, facts, err = covis("embed", describers[kind], place / "lane.csv", "-o", tmp_path / "out", "--json")
    assert code == 0, err
    assert (facts["rows"], facts["left_out"]) == (40, 0)
    found, expected = DescriptorStore.open(tmp_path / "out"), DescriptorStore.open(place / "store")
    np.testing.assert_allclose(found[found.rows(expected.names)], expected[:], atol=PARITY_TOLERANCE)
    assert (found.model == expected.model) is (kind != "matrix")


def test_evaluate_compare_and_report(describers, place, tmp_path, covis):
    recalls = {}
    for kind, describer in describers.items():
        target = tmp_path / kind
        code, facts, err = covis("evaluate", describer, "table", "--data", place / "lane.csv", "-o", target, "--json")
        assert code == 0, err
        recalls[kind] = facts["recall"]
        page = ["-o", tmp_path / f"{kind}.html", "--data", place / "lane.csv"]
        code, _, err = covis("report", target, *page, "--json")
        assert code == 0, err
        assert "Recall" in (tmp_path / f"{kind}.html").read_text(encoding="utf-8")
    assert all(recall == recalls["model"] for recall in recalls.values())
    code, facts, err = covis("compare", *(tmp_path / kind for kind in KINDS), "--json")
    assert code == 0, err
    assert len(facts["comparisons"][0]["rows"]) == 3  # one network behind three folders counts once


@pytest.mark.parametrize("kind", KINDS)
def test_export(kind, describers, tmp_path, covis):
    command = ["export", describers[kind], "--onnx", tmp_path / "out.onnx"]
    if kind in COMPUTED:
        assert "holds descriptors, not a model" in refused(covis, *command)
        return
    code, facts, err = covis(*command, "--json")
    assert code == 0, err
    assert facts["fingerprint"] == OnnxPlaceModel.open(tmp_path / "out.onnx").fingerprint()
    if kind == "onnx":
        assert (tmp_path / "out.onnx").read_bytes() == describers[kind].read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_index_and_locate(kind, describers, maps, place, covis):
    answer = None
    if kind in NETWORKS:
        code, [answer], err = covis("locate", maps[kind], place / "0-7.jpg", "--json")
        assert code == 0, err
    else:
        assert "no network" in refused(covis, "locate", maps[kind], place / "0-7.jpg")
    for computed in COMPUTED:
        command = ["locate", maps[kind], place / "0-7.jpg", "--descriptors", describers[computed]]
        if (kind, computed) == ("matrix", "store"):  # nothing says that a matrix is of the store's model
            assert "embed with one model" in refused(covis, *command)
            continue
        code, [looked_up], err = covis(*command, "--json")
        assert code == 0, err
        answer = looked_up if answer is None else answer
        assert [m["image"] for m in looked_up["matches"]] == [m["image"] for m in answer["matches"]]
        assert looked_up["matches"][0]["distance"] < 1e-3
    assert answer["matches"][0]["image"][1:] == "-7.jpg"


def test_a_map_answers_the_same_whatever_the_network_was_given_as(maps, place):
    photos = [place / f"{walk}-{i}.jpg" for walk in range(2) for i in range(20)]
    of_model, of_onnx = (Map.open(maps[kind]) for kind in ("model", "onnx"))
    for first, second in zip(of_model.locate(photos), of_onnx.locate(photos), strict=True):
        assert {m.image for m in first.matches[:2]} == {m.image for m in second.matches[:2]}  # a photo and its twin
        assert first.position.place.x == pytest.approx(second.position.place.x, abs=0.1)
    assert gcl_margin(maps["onnx"] / "model") == gcl_margin(maps["model"] / "model") == 0.5


def test_a_map_made_with_an_onnx_file_is_cared_for(maps, place, tmp_path, covis):
    photo, town = place / "1-3.jpg", tmp_path / "town.map"
    shutil.copytree(maps["onnx"], town)
    builders.image(tmp_path / "new.jpg", seed=77)
    (tmp_path / "new.csv").write_text("image,easting,northing\nnew.jpg,5,5\n")
    assert covis("add", town, tmp_path / "new.csv", "--json")[1]["added"] == 1
    assert covis("locate", town, tmp_path / "new.jpg", "--json")[1][0]["matches"][0]["image"] == "new.jpg"
    assert covis("remove", town, "new.jpg", "--json")[1]["photos"] == 40
    assert covis("map", "show", town, "--json")[1]["runs in"] == "ONNX Runtime"
    assert covis("map", "export", town, tmp_path / "town.covis", "--json")[0] == 0
    assert covis("map", "import", tmp_path / "town.covis", "-o", tmp_path / "b.map", "--json")[0] == 0
    back = Map.open(tmp_path / "b.map")
    assert back.locate(photo)[0].matches[0].distance < 1e-3
    [segment, *_] = (tmp_path / "b.map" / "segments").iterdir()
    (segment / "shard-00000.npy").write_bytes(b"damaged")
    assert check_map(tmp_path / "b.map")
    assert repair_map(tmp_path / "b.map")["photos"] == 0
    file = town / "model" / "model.onnx"
    file.write_bytes(file.read_bytes()[:-40] + b"x" * 40)
    assert [damage.part for damage in check_map(town)] == ["model"]
    with pytest.raises(InputError, match="damaged"):
        Map.open(town).locate(photo)
    assert "from a backup" in refused(covis, "map", "repair", town)


def test_a_map_without_a_network_takes_descriptors(maps, describers, place, tmp_path, covis):
    town = tmp_path / "town.map"
    shutil.copytree(maps["store"], town)
    assert covis("remove", town, "0-0.jpg", "1-0.jpg", "--json")[1]["photos"] == 38
    (tmp_path / "two.csv").write_text(f"image,easting,northing\n{place}/0-0.jpg,0,0\n{place}/1-0.jpg,0,1\n")
    assert "no network" in refused(covis, "add", town, tmp_path / "two.csv")
    shutil.copy(place / "0-0.jpg", tmp_path)
    (tmp_path / "one.csv").write_text("image,easting,northing\n0-0.jpg,0,0\n")
    code, facts, err = covis("add", town, tmp_path / "one.csv", "--descriptors", describers["store"], "--json")
    assert code == 0, err
    assert facts["photos"] == 39
    code, answers, err = covis("locate", town, place, "--descriptors", describers["store"], "--sequence", "--json")
    assert code == 0, err
    assert len(answers["photos"]) == 40
    assert "runs in" in (shown := covis("map", "show", town, "--json")[1])
    assert shown["runs in"].startswith("nothing")
    assert covis("map", "export", town, tmp_path / "town.covis", "--json")[0] == 0
    assert covis("map", "import", tmp_path / "town.covis", "-o", tmp_path / "b.map", "--json")[0] == 0
    assert not check_map(tmp_path / "b.map")
    assert "leave out --descriptors" in refused(
        covis, "index", place / "lane.csv", "-o", tmp_path / "x", "--model", place / "store",
        "--descriptors", place / "store",
    )  # fmt: skip
    builders.image(tmp_path / "stranger.jpg", seed=5)
    answer = covis(
        "locate", town, place / "1-4.jpg", tmp_path / "stranger.jpg", "--descriptors", place / "store", "--json"
    )
    assert "has no descriptor of it" in answer[1][1]["note"]


@pytest.mark.parametrize("kind", KINDS)
def test_serve_opens_what_has_a_network(kind, maps):
    pytest.importorskip("starlette")
    from covis.service.map_cache import MapCache

    if kind in COMPUTED:
        with pytest.raises(InputError, match="no network"):
            MapCache([maps[kind]])
        return
    shown = MapCache([maps[kind]]).now(kind)
    pixels = np.zeros((1, 3, 32, 32), np.uint8)
    assert np.linalg.norm(shown.network.describe(pixels)) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("kind", ["onnx", "store", "matrix"])
def test_training_says_that_it_needs_weights(kind, describers, tmp_path, covis):
    command = ["train", "town_quick", "--init", describers[kind], "-o", tmp_path / "run"]
    assert "has no weights to train" in refused(covis, *command)
    assert "no weights of its own" in refused(covis, "export", describers[kind], "--hub", tmp_path / "hub")
