"""Model directories: whole, honest about damage, and complete."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from covis.core.errors import InputError
from covis.models import ModelConfig, PlaceModel, hub_folder
from covis.models.config import Preprocessing
from covis.whitening import Whitening


@pytest.fixture
def model():
    return PlaceModel.build(ModelConfig("tiny", "gem", (64, 96)), seed=1)


def test_a_directory_holds_weights_config_preprocessing_and_card(model, tmp_path):
    model.save(tmp_path / "m", {"data": "a town", "licence": "MIT", "recall": {"1": 61.5}})
    files = {p.name for p in (tmp_path / "m").iterdir()}
    assert files == {"manifest.json", "weights.safetensors", "config.json", "preprocessing.json", "card.json"}
    card = json.loads((tmp_path / "m" / "card.json").read_text())
    assert card["data"] == "a town"
    assert card["recall"] == {"1": 61.5}
    assert card["dim"] == 256
    assert card["fingerprint"] == model.fingerprint()
    assert PlaceModel.load(tmp_path / "m").card["licence"] == "MIT"


def test_the_place_of_the_first_weights_stays_out_of_the_directory(model, tmp_path):
    model.save(tmp_path / "first")
    second = PlaceModel.build(ModelConfig("tiny", "gem", (64, 96), weights=str(tmp_path / "first")))
    second.save(tmp_path / "second")
    assert str(tmp_path) not in "".join(f.read_text() for f in (tmp_path / "second").glob("*.json"))
    assert PlaceModel.load(tmp_path / "second").card["weights"]["model"] == "first"


def test_an_existing_directory_is_kept_unless_told(model, tmp_path):
    model.save(tmp_path / "m")
    with pytest.raises(InputError, match="already exists"):
        model.save(tmp_path / "m")
    model.pool.p.data.fill_(2.0)
    model.save(tmp_path / "m", replace=True)
    assert PlaceModel.load(tmp_path / "m").pool.p.item() == 2.0


@pytest.mark.parametrize("name", ["weights.safetensors", "config.json", "preprocessing.json", "card.json"])
def test_damage_is_found(model, tmp_path, name):
    model.save(tmp_path / "m")
    file = tmp_path / "m" / name
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    with pytest.raises(InputError, match=f"{name} is damaged"):
        PlaceModel.load(tmp_path / "m")
    file.unlink()
    with pytest.raises(InputError, match=f"{name} is missing"):
        PlaceModel.load(tmp_path / "m")


def test_fingerprints_follow_what_changes_descriptors(model):
    whole, prefix = model.fingerprint(), model.prefix_fingerprint()
    model.train()
    assert (model.fingerprint(), model.prefix_fingerprint()) == (whole, prefix)
    model.backbone.net.layer4[0].conv1.weight.data += 1e-3
    assert model.fingerprint() != whole
    assert model.prefix_fingerprint() == prefix
    whole = model.fingerprint()
    model.backbone.net.layer2[0].bn1.running_mean += 1e-3
    assert model.fingerprint() != whole
    assert model.prefix_fingerprint() != prefix
    prefix = model.prefix_fingerprint()
    model.set_preprocessing(Preprocessing((64, 96), mean=(0.5, 0.5, 0.5)))
    assert model.prefix_fingerprint() != prefix


def test_preprocessing_is_one_thing_for_paths_arrays_and_pillow(model, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (120, 200, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    image.save(tmp_path / "photo.png")
    x = model.preprocess(pixels)
    assert x.shape == (3, 64, 96)
    assert torch.equal(x, model.preprocess(image))
    assert torch.equal(x, model.preprocess(tmp_path / "photo.png"))
    assert torch.equal(x, model.preprocess(str(tmp_path / "photo.png")))
    with pytest.raises(ValueError, match="floats from 0 to 1"):
        model.preprocess(pixels.astype(np.float32))


def test_normalise_is_the_published_formula(model):
    pixels = torch.randint(0, 256, (2, 3, 4, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    expected = (pixels.numpy() / 255 - mean[:, None, None]) / std[:, None, None]
    np.testing.assert_allclose(model.normalise(pixels).numpy(), expected, atol=1e-6)


def test_configuration_errors_name_the_field():
    with pytest.raises(InputError, match="did you mean 'last2'"):
        ModelConfig(trainable="last_2")
    with pytest.raises(InputError, match="image_size"):
        ModelConfig(image_size=(480,))
    with pytest.raises(InputError, match="unknown model field 'backbon'; did you mean 'backbone'"):
        ModelConfig.from_dict({"backbon": "tiny"})
    with pytest.raises(InputError, match="unknown pooling 'gems'; did you mean 'gem'"):
        PlaceModel.build(ModelConfig("tiny", "gems", (64, 64)))
    config = ModelConfig("tiny", "mix", (64, 96), "last1", "x.safetensors")
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_batchnorm_statistics_follow_their_block_or_stay(model):
    x = torch.randn(4, 3, 64, 96)
    for batchnorm, where in (("with_block", ".layer4."), ("frozen", None), ("everywhere", ".layer1.")):
        model = PlaceModel.build(ModelConfig("tiny", "gem", (64, 96), "last1", batchnorm=batchnorm)).train()
        before = {name: b.clone() for name, b in model.named_buffers() if "running" in name}
        model(x)
        moved = {name for name, b in model.named_buffers() if "running" in name and not torch.equal(b, before[name])}
        assert any(where in name for name in moved) if where else not moved
        assert batchnorm == "everywhere" or all(".layer4." in name for name in moved)
        assert all(name.startswith(("pool.", "backbone.net.layer4.")) for name, _ in model.trained_parameters())


def test_a_folder_for_a_hub_is_read_back_and_other_weights_are_refused(tmp_path):
    model = PlaceModel.build(ModelConfig("tiny", "gem", (32, 48)), seed=1)
    vectors = np.random.default_rng(0).standard_normal((400, model.dim))
    model.whiten(Whitening.fit(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), 16))
    model.publish(tmp_path / "hub", {"licence": "MIT"})
    assert {p.name for p in (tmp_path / "hub").iterdir()} == {"config.json", "model.safetensors", "README.md"}
    again = PlaceModel.from_pretrained(tmp_path / "hub")
    assert again.fingerprint() == model.fingerprint()
    assert again.card["licence"] == "MIT"
    card = (tmp_path / "hub" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: ")
    assert "16 dims" in card
    assert '\nlicense: "mit"\n' in card
    loaded = torch.hub.load(str(Path(__file__).parents[2]), "place_model", str(tmp_path / "hub"), source="local")
    x = torch.randn(1, 3, 32, 48)
    torch.testing.assert_close(loaded(x), model(x))
    again.save(tmp_path / "own")
    PlaceModel.build(ModelConfig("tiny", "gem", (32, 48)), seed=2).publish(tmp_path / "other", {"licence": "ask us"})
    assert '\nlicense: "other"\nlicense_name: "ask us"\n' in (tmp_path / "other" / "README.md").read_text()
    (tmp_path / "hub" / "model.safetensors").write_bytes((tmp_path / "other" / "model.safetensors").read_bytes())
    with pytest.raises(InputError, match="SHA-256 differs"):
        PlaceModel.from_pretrained(tmp_path / "hub")
    config = tmp_path / "other" / "config.json"
    config.write_text(config.read_text().replace("0.485", "0.486"))
    with pytest.raises(InputError, match="its checksum differs"):
        PlaceModel.from_pretrained(tmp_path / "other")
    with pytest.raises(InputError, match="OWNER/NAME"):
        PlaceModel.from_pretrained("hub:nothing")


def test_a_pinned_revision_is_asked_of_the_hub(tmp_path, monkeypatch):
    model = PlaceModel.build(ModelConfig("tiny", "gem", (32, 48)), seed=1)
    model.publish(tmp_path / "snapshot")
    asked = []
    monkeypatch.setattr(
        hub_folder,
        "fetch_revision",
        lambda name, file, revision: asked.append((name, file, revision)) or tmp_path / "snapshot" / file,
    )
    found = PlaceModel.from_pretrained("hub:someone/place@0123abc")
    assert found.fingerprint() == model.fingerprint()
    assert asked == [("someone/place", "model.safetensors", "0123abc"), ("someone/place", "config.json", "0123abc")]
