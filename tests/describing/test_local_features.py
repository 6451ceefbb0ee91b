"""Local features by name: networks against re-statements of their formulas, the cache, and re-ranking from the command line."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional

from cli import wall
from covis import cli
from covis.core.errors import InputError
from covis.describing import local
from covis.describing.local import EXTRACTORS, AlikeNetwork, ByLocal, KeptFeatures, LighterGlue, XFeat, _heat
from covis.images import ImageSet
from covis.models import ModelConfig, PlaceModel
from covis.poses import Poses
from covis.search.rerank import inliers, match

pytest.importorskip("cv2", reason="checks the geometry")
pytest.importorskip("pycolmap", reason="finds SIFT features")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COVIS_CACHE", str(tmp_path / "cache"))


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
    assert {"cpu_ms_per_query", "cpu_ms_per_image", "cpu_ms_per_pair"} <= set(data["rerank_cost"])
    assert len(list((tmp_path / "cache" / "local").rglob("*.npz"))) == 4


def test_features_are_found_once_and_damaged_ones_again(walls, tmp_path, monkeypatch, capsys):
    found = []
    monkeypatch.setattr(local, "sift", lambda path, *bounds: found.append(path) or local.LocalFeatures(np.ones((3, 2)), np.eye(3, dtype=np.float32), (9, 9)))  # fmt: skip
    pictures = images(walls)

    def kept():
        return KeptFeatures(pictures, EXTRACTORS["sift"](None), tmp_path / "kept")

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
        ("sift,affine", "unknown geometry"),
        ("sift=weights.onnx", "sift has no weights"),
        ("xfeat=nowhere.onnx", "give the weights of xfeat as local:xfeat=FILE"),
        ("alike", "COVIS_WEIGHTS"),
        ("sift+lighterglue", "trained for xfeat"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(text, message):
    with pytest.raises(InputError, match=message):
        ByLocal.parse(text).facts()


def test_names_and_depths():
    chosen = ByLocal.parse("xfeat=a.onnx+lighterglue=b.onnx,both", 7)
    assert (chosen.file, chosen.matcher_file, chosen.geometry, chosen.depth) == (
        Path("a.onnx"),
        Path("b.onnx"),
        "both",
        7,
    )
    assert chosen.name == "local:xfeat+lighterglue,both"


def test_key_point_cells_unfold_as_a_pixel_shuffle():
    logits = torch.randn(65, 4, 6)
    expected = functional.pixel_shuffle(torch.softmax(logits, 0)[None, :64], 8)[0, 0]
    np.testing.assert_allclose(_heat(logits.numpy(), 8), expected.numpy(), atol=1e-6)


def alike_as_published(state, x):
    """ALIKE's forward from its paper, with the tensors of its files."""

    def norm(x, name):
        parts = (state[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias"))
        return functional.batch_norm(x, *parts)

    def block(x, name):
        y = functional.relu(norm(functional.conv2d(x, state[f"{name}.conv1.weight"], padding=1), f"{name}.bn1"))
        y = norm(functional.conv2d(y, state[f"{name}.conv2.weight"], padding=1), f"{name}.bn2")
        side = f"{name}.downsample.weight"
        y = y + functional.conv2d(x, state[side], state[f"{name}.downsample.bias"]) if side in state else y
        return functional.relu(y)

    x1 = block(x, "block1")
    x2 = block(functional.max_pool2d(x1, 2), "block2")
    x3 = block(functional.max_pool2d(x2, 4), "block3")
    x4 = block(functional.max_pool2d(x3, 4), "block4")
    up = [functional.relu(functional.conv2d(v, state[f"conv{k}.weight"])) for k, v in enumerate((x1, x2, x3, x4), 1)]
    full = [functional.interpolate(v, x.shape[-2:], mode="bilinear", align_corners=True) for v in up]
    head = functional.conv2d(torch.cat(full, 1), state["convhead2.weight"])
    return torch.sigmoid(head[:, -1]), functional.normalize(head[:, :-1], dim=1)


def test_alike_is_as_published(tmp_path):
    torch.manual_seed(0)
    state = AlikeNetwork((4, 6, 8, 10), 16).state_dict()
    state = {k: torch.rand_like(v) if "running_var" in k else torch.randn(v.shape) if v.is_floating_point() else v for k, v in state.items()}  # fmt: skip
    net = AlikeNetwork.of(state, tmp_path)
    x = torch.rand(1, 3, 64, 96)
    with torch.no_grad():
        for found, expected in zip(net(x), alike_as_published(state, x), strict=True):
            torch.testing.assert_close(found, expected)
    with pytest.raises(InputError, match="not an ALIKE network"):
        AlikeNetwork.of({"a": torch.zeros(1)}, tmp_path)


@pytest.mark.parametrize("name", ["xfeat", "alike", "xfeat+lighterglue"])
def test_published_networks_match_two_photos_of_one_street(name, shared_data, monkeypatch):
    folder, weights = shared_data / "photos_exif" / "berlin", shared_data / "weights" / "local"
    if not weights.is_dir():
        pytest.skip("needs weights of local features among the shared data")
    monkeypatch.setenv("COVIS_WEIGHTS", str(weights))
    monkeypatch.setattr(local, "SIDE", 320)
    extractor = XFeat() if name.startswith("xfeat") else EXTRACTORS[name](weights / "alike-t.pth")
    matcher = LighterGlue() if "+" in name else lambda a, b: match(a, b, None)
    first, second = (extractor(folder / f"0{k}.jpg") for k in (1, 2))
    elsewhere = extractor(shared_data / "photos_exif" / "lund" / "01.jpg")
    agree, chance = (inliers(first, other, matcher(first, other)) for other in (second, elsewhere))
    assert agree > 60
    assert agree > 3 * chance
    assert first.xy.max(axis=0).tolist() <= list(first.size)


def shifted_photos(folder):
    """A textured picture, the same one 32 pixels further right, and another one."""
    for name, seed, shift in (("a", 0, 0), ("b", 0, 32), ("c", 1, 0)):
        coarse = np.random.default_rng(seed).integers(0, 256, (24, 40, 3), np.uint8)
        picture = Image.fromarray(coarse).resize((640, 384), Image.Resampling.BICUBIC)
        Image.fromarray(np.asarray(picture)[:, shift : shift + 512]).resize((256, 192)).save(folder / f"{name}.png")


def test_patches_of_transvpr_match_as_its_authors_match_them(tmp_path):
    """Mutual nearest neighbours by dot product among the patches that attention keeps; a shift of two patches is found."""
    shifted_photos(tmp_path)
    model = PlaceModel.build(ModelConfig("transvpr", "transvpr256", (192, 256), "all"), seed=1)
    with torch.no_grad():
        model.pool.attention.weight.mul_(40)
    model.save(tmp_path / "model")
    extract = EXTRACTORS["model"](tmp_path / "model")
    first, second, other = (extract(tmp_path / f"{name}.png") for name in "abc")
    assert 0 < len(first.xy) <= 12 * 16
    assert first.size == (256, 192)
    assert np.allclose((first.xy - 8) % 16, 0)
    with torch.inference_mode():
        space = model.local_features(model.preprocess(tmp_path / "a.png")[None])[0]
    at = (first.xy / 16).astype(int)
    expected = space[256:512, at[:, 1], at[:, 0]].T.numpy()
    np.testing.assert_allclose(first.descriptors, expected, rtol=1e-3, atol=1e-3)
    pairs = match(first, second, ratio=None)
    table = first.descriptors @ second.descriptors.T
    mutual = [(i, j) for i, j in enumerate(table.argmax(1)) if table[:, j].argmax() == i]
    assert [tuple(pair) for pair in pairs.tolist()] == mutual
    same = inliers(first, second, pairs, "homography", extract.max_error)
    assert same > inliers(first, other, match(first, other, ratio=None), "homography", extract.max_error)


def test_matches_of_selavpr_count_without_geometry(walls, tmp_path, capsys):
    config = ModelConfig("vit_small_patch14_selavpr", "selavpr", (112, 112), positions="original", trainable="none")
    PlaceModel.build(config, seed=0).save(tmp_path / "model")
    name = f"local:model={tmp_path / 'model'},none"
    features = [EXTRACTORS["model"](tmp_path / "model")(walls / f"0-{k}.png") for k in (0, 0)]
    assert features[0].xy.shape == (29 * 29, 2)
    pairs = match(*features, ratio=None)
    assert inliers(*features, pairs, "none") == len(pairs) == 29 * 29
    command = ["evaluate", tmp_path / "model", "table", "--data", walls / "photos.csv", "--rerank", name, "--json"]
    with pytest.raises(SystemExit) as stopped:
        cli.main([str(part) for part in command])
    told = json.loads(capsys.readouterr().out)
    assert stopped.value.code == 0
    assert (told["queries"], told["subject"]["rerank"]["geometry"]) == (4, "none")


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


def test_a_model_without_patches_is_told_what_to_use(tmp_path):
    PlaceModel.build(ModelConfig("tiny", image_size=(32, 48)), seed=0).save(tmp_path / "model")
    with pytest.raises(InputError, match="use --rerank patches"):
        EXTRACTORS["model"](tmp_path / "model")
    with pytest.raises(InputError, match="local:model=FOLDER"):
        EXTRACTORS["model"](None)
