"""Local features by name: the cache, files of other tools, and re-ranking from the command line."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cli import wall
from covis import cli
from covis.core.errors import InputError
from covis.images import ImageSet
from covis.models import ModelConfig, PlaceModel
from covis.poses import Poses
from covis.search import local
from covis.search.local import EXTRACTORS, FeatureCache, LocalReranker
from covis.search.local_features import inliers, match

pytest.importorskip("cv2", reason="checks the geometry")
pytest.importorskip("pycolmap", reason="finds SIFT features")


pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(scope="module")
def walls(tmp_path_factory):
    """A table of two places, each photographed twice from nearby: two walls, painted differently."""
    folder = tmp_path_factory.mktemp("walls")
    lines = ["image,easting,northing,heading,group"]
    for place in range(2):
        painted = wall.paint(seed=place)
        for k, shift in enumerate((0.0, 0.9)):
            rotation, centre = wall.cameras(1)
            picture = wall.picture(painted, rotation[0], centre[0] + [shift, 0, 0])
            Image.fromarray(picture).convert("RGB").save(folder / f"{place}-{k}.png")
            lines.append(f"{place}-{k}.png,{1000 * place + shift},0,0,{k}")
    (folder / "photos.csv").write_text("\n".join(lines) + "\n")
    return folder


def images(folder):
    names = sorted(path.name for path in folder.glob("*.png"))
    return ImageSet.of(folder, names, Poses(np.zeros((len(names), 2)), np.zeros(len(names))))


def test_the_command_ranks_by_features_that_agree(walls, tmp_path, capsys):
    PlaceModel.build(ModelConfig("tiny", image_size=(32, 48)), seed=0).save(tmp_path / "model")
    command = [
        "evaluate",
        tmp_path / "model",
        "table",
        "--data",
        walls / "photos.csv",
        "--rerank",
        "local:sift",
        "--json",
    ]
    with pytest.raises(SystemExit) as stopped:
        cli.main([str(a) for a in command])
    out, _ = capsys.readouterr()
    assert stopped.value.code == 0
    data = json.loads(out)
    assert data["recall"]["1"] == 100
    assert data["subject"]["rerank"]["features"] == "sift"
    assert data["rerank_cost"]["cpu_ms_per_query"] > 0
    assert len(list((tmp_path / "cache" / "local").rglob("*.npz"))) == 4


def test_features_are_found_once_and_damaged_ones_again(walls, tmp_path, monkeypatch, capsys):
    found = []
    monkeypatch.setattr(local, "sift", lambda path, *bounds: found.append(path) or local.LocalFeatures(np.ones((3, 2)), np.eye(3, dtype=np.float32), (9, 9)))  # fmt: skip
    pictures = images(walls)

    def kept():
        return FeatureCache(pictures.path, EXTRACTORS["sift"](None), tmp_path / "kept")

    first = kept()(0)
    again = kept()(0)
    assert len(found) == 1
    assert first.size == again.size == (9, 9)
    np.testing.assert_array_equal(first.descriptors, again.descriptors)
    file = next((tmp_path / "kept").rglob("*.npz"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2 - 200] ^= 1
    file.write_bytes(content)
    kept()(0)
    assert len(found) == 2
    assert "made again" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sitf", "did you mean 'sift'"),
        ("sift=weights.onnx", "sift has no weights"),
        ("h5=nowhere.h5", "needs a file"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(text, message):
    with pytest.raises(InputError, match=message):
        LocalReranker.parse(text).facts()


def test_names_and_depths():
    chosen = LocalReranker.parse("h5=a.h5", 7)
    assert (chosen.name, chosen.file, chosen.depth) == ("local:h5", Path("a.h5"), 7)


def test_features_of_another_tool_come_from_its_file(walls, tmp_path):
    """As hloc stores them: key points from the centre of the first pixel, descriptors by column."""
    h5py = pytest.importorskip("h5py", reason="reads the file")
    found = EXTRACTORS["sift"](None)(walls / "0-0.png")
    with h5py.File(tmp_path / "features.h5", "w") as file:
        group = file.create_group(f"{walls.name}/0-0.png")
        group["keypoints"] = (found.xy - 0.5).astype(np.float32)
        group["descriptors"] = found.descriptors.T.astype(np.float16)
        group["image_size"] = np.array(found.size)
        file.create_group("1-0.png")["keypoints"] = found.xy
    extract = EXTRACTORS["h5"](tmp_path / "features.h5")
    stored = extract(walls / "0-0.png")
    np.testing.assert_allclose(stored.xy, found.xy, atol=1e-3)
    np.testing.assert_allclose(stored.descriptors, found.descriptors, atol=2e-3)
    assert stored.size == found.size
    with pytest.raises(InputError, match="no features of"):
        extract(walls / "1-1.png")
    with pytest.raises(InputError, match="not a group of features"):
        extract(walls / "1-0.png")
    (tmp_path / "text.h5").write_text("no features")
    with pytest.raises(InputError, match="not an HDF5 file"):
        EXTRACTORS["h5"](tmp_path / "text.h5")


def test_matches_of_another_tool_come_from_its_file(walls, tmp_path, monkeypatch):
    """As hloc stores them: a group per pair, slashes in names as hyphens, either photo first."""
    h5py = pytest.importorskip("h5py", reason="reads the file")
    monkeypatch.setenv("COVIS_CACHE", str(tmp_path / "cache"))
    names = ["0-0.png", "0-1.png", "1-0.png"]
    found = [EXTRACTORS["sift"](None)(walls / name) for name in names]
    files = [tmp_path / "features.h5", tmp_path / "matches.h5"]
    with h5py.File(files[0], "w") as file:
        for name, features in zip(names, found, strict=True):
            group = file.create_group(f"{walls.name}/{name}")
            group["keypoints"] = features.xy - 0.5
            group["descriptors"] = np.ones((4, len(features.xy)), np.float16)
    pairs = match(found[0], found[1])
    with h5py.File(files[1], "w") as file:
        matches = np.full(len(found[1].xy), -1)
        matches[pairs[:, 1]] = pairs[:, 0]
        file[f"{walls.name}-0-1.png/{walls.name}-0-0.png/matches0"] = matches
        file[f"{walls.name}-0-0.png/{walls.name}-1-0.png/matches0"] = np.full(len(found[0].xy), -1)
    reranker = LocalReranker.parse(f"h5={files[0]},{files[1]}")
    photos = [walls / name for name in names]
    counts = reranker.count(photos[:1], photos, np.array([[1, 2]]))
    assert counts.tolist() == [[inliers(found[0], found[1], pairs[np.argsort(pairs[:, 1])]), 0]]
    assert counts[0, 0] > 3
    assert "mutual" not in reranker.facts()["matcher"]
    with pytest.raises(InputError, match="has no pair"):
        reranker.count(photos[1:2], photos, np.array([[2]]))
