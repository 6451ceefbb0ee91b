"""Starting from a model: adapters begin at nothing and end in the weights, and training that does not help is dropped."""

import json

import numpy as np
import pytest
import torch

from covis import cli
from covis.models import ModelConfig, PlaceModel
from layouts import builders

SIZE = (32, 48)


pytestmark = pytest.mark.usefixtures("cache")


@pytest.mark.parametrize(("backbone", "trainable"), [("tiny", "last1"), ("tiny", "all"), ("test_vit", "last1")])
def test_adapters_begin_at_nothing_and_end_in_the_weights(backbone, trainable, tmp_path):
    plain = PlaceModel.build(ModelConfig(backbone, "gem", SIZE, trainable), seed=3)
    model = PlaceModel.build(ModelConfig(backbone, "gem", SIZE, trainable, adapters=2), seed=3)
    x = torch.randn(2, 3, *model.config.image_size)
    torch.testing.assert_close(model(x), plain(x))
    assert model.fingerprint() == plain.fingerprint()
    names = [name for name, _ in model.trained_parameters()]
    assert all(name.startswith("pool.") or name.endswith((".up", ".down")) for name in names)
    assert any(name.endswith(".up") for name in names)
    before = {name: tensor.clone() for name, tensor in model.backbone.state_dict().items()}
    optimiser = torch.optim.SGD([p for _, p in model.trained_parameters()], lr=1.0)
    model.train()
    for _ in range(2):
        model(x)[0].sum().backward()
        optimiser.step()
    after = model.backbone.state_dict()
    assert {n for n in after if not torch.equal(after[n], before[n])} <= {
        n for n in after if n.endswith((".up", ".down"))
    }
    model.eval().save(tmp_path / "saved")
    again = PlaceModel.load(tmp_path / "saved")
    assert not torch.allclose(model(x), plain(x), atol=1e-4)
    torch.testing.assert_close(again(x), model(x))
    assert again.config.adapters == 0
    assert {n for n, _ in again.named_parameters()} == {n for n, _ in plain.named_parameters()}


def photos(root):
    """Four walks up one street."""
    root.mkdir()
    rows = ["image,easting,northing,heading,group"]
    for walk in range(4):
        for i in range(10):
            builders.image(root / f"{walk}-{i}.jpg", seed=10 * walk + i)
            rows.append(f"{walk}-{i}.jpg,0,{3 * i + walk / 2},0,{walk}")
    (root / "photos.csv").write_text("\n".join(rows) + "\n")
    return root / "photos.csv"


def train(capsys, *arguments):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["train", *map(str, arguments), "--json"])
    out, err = capsys.readouterr()
    return stopped.value.code, json.loads(out) if stopped.value.code == 0 else err


def test_training_that_does_not_help_leaves_the_model_as_it_was(tmp_path, capsys):
    start = PlaceModel.build(ModelConfig("tiny", "gem", SIZE, "all"), seed=0)
    start.save(tmp_path / "start")
    table = photos(tmp_path / "photos")
    given = ("fine_tune", "--init", tmp_path / "start", "--data", table, "--set", "steps=2", "--set", "batches.size=8",
             "--set", "batches.places=2", "--workers", 0)  # fmt: skip
    code, ruined = train(capsys, *given, "-o", tmp_path / "ruined", "--set", "validations=1", "--set", "optimiser.learning_rate=1e9")  # fmt: skip
    assert code == 0
    assert ruined["best"]["step"] == 0
    assert ruined["fingerprint"] == start.fingerprint()
    code, adapted = train(
        capsys, *given, "-o", tmp_path / "adapted", "--set", "model.adapters=1", "--set", "validation="
    )
    assert code == 0
    assert adapted["fingerprint"] != start.fingerprint()
    moved, before = PlaceModel.load(tmp_path / "adapted" / "model").state_dict(), start.state_dict()
    changed = [n for n in before if not torch.equal(before[n], moved[n])]
    assert all("layer4" in n or n.startswith("pool.") for n in changed)
    assert np.linalg.matrix_rank((moved["backbone.net.layer4.0.conv1.weight"] - before["backbone.net.layer4.0.conv1.weight"]).flatten(1).numpy(), tol=1e-7) <= 1  # fmt: skip
    code, message = train(capsys, "fine_tune", "--init", table, "--data", table, "-o", tmp_path / "no")
    assert code == 2
    assert "is not a model" in message
