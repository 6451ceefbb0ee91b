"""A model for one's own photos: fitted always, trained where it can be and helps."""

import json
from dataclasses import replace

import numpy as np
import pytest

from covis import datasets, experiments
from covis.cli import main
from covis.images import concatenate
from covis.labels import FovOverlap
from covis.maps.fitting import ENOUGH, FROZEN, TUNED, choose_recipe, describe_fitted, fit_model
from covis.models import ModelConfig, PlaceModel
from covis.training.run import Resources

QUIET = Resources(workers=0, tensorboard=False, plan=False)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COVIS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def recipe():
    """Clusters on a small network, two steps."""
    base = experiments.get("own_photos_small")
    model = ModelConfig("tiny", "netvlad16", (32, 32), "last1")
    batches = replace(base.batches, size=16, places=2)
    return replace(base, model=model, batches=batches, steps=2, whiten=64, labels=FovOverlap(50.0))


@pytest.fixture
def photos(hamlet):
    """A street's photos, as five walks."""
    images = concatenate(datasets.load("town", hamlet, "train"))
    walk = np.arange(len(images)) % 5
    return replace(images, group=walk.astype(images.group.dtype), group_names=tuple(f"walk{w}" for w in range(5)))


def test_few_photos_are_fitted_but_not_trained_on(photos, recipe, tmp_path, capsys):
    fitted = fit_model(photos, recipe, tmp_path / "run", resources=QUIET)
    assert not fitted.trained
    assert fitted.overlapping < ENOUGH
    assert f"{ENOUGH} are needed to fine-tune" in capsys.readouterr().err
    model = PlaceModel.load(fitted.model)
    assert model.whitening is not None
    assert model.dim <= len(photos) // 2
    assert not (tmp_path / "run" / TUNED).exists()


def test_enough_photos_are_trained_on_and_the_better_model_is_taken(photos, recipe, tmp_path):
    fitted = fit_model(photos, recipe, tmp_path / "run", enough=20, resources=QUIET)
    found = fitted.held_out
    assert fitted.trained == (found[TUNED]["1"] > found[FROZEN]["1"])
    assert fitted.model == tmp_path / "run" / (TUNED if fitted.trained else FROZEN) / "model"
    assert f"{found[TUNED]['1']:.1f}" in fitted.note
    card = PlaceModel.load(tmp_path / "run" / TUNED / "model").card
    assert card["training"]["step"] == 2
    again = fit_model(photos, recipe, tmp_path / "run", enough=20, resources=QUIET)
    assert again == fitted


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in arguments])
    return stop.value.code or 0, *capsys.readouterr()


def test_index_trains_from_the_command_line(photos, tmp_path, capsys):
    table = tmp_path / "photos.csv"
    xy, heading = photos.poses.xy, photos.poses.heading
    rows = [f"{photos.path(i)},{x},{y},{heading[i]},walk{photos.group[i]}" for i, (x, y) in enumerate(xy)]
    table.write_text("\n".join(["image,easting,northing,heading,group", *rows]) + "\n")
    code, out, err = run(
        capsys, "index", table, "-o", tmp_path / "town.map", "--recipe", "town_quick", "--runtime", "torch", "--json"
    )
    assert code == 0, err
    told = json.loads(out)
    assert told["photos"] == len(photos)
    assert told["fitted"]["trained"] is False
    assert "keeping the frozen model" in told["fitted"]["note"]
    _, out, _ = run(capsys, "locate", tmp_path / "town.map", photos.path(3), "--json")
    assert json.loads(out)[0]["matches"][0]["distance"] == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--train", "--model", "m"], "not both"), (["--weights", "w.safetensors", "--model", "m"], "not both")],
)
def test_contradictions_are_told(options, message, tmp_path, capsys):
    code, _, err = run(capsys, "index", tmp_path, "-o", tmp_path / "map", *options)
    assert code == 2
    assert message in err


@pytest.mark.parametrize("enough", [20, 10_000], ids=["fine-tuned", "fitted alone"])
def test_each_photo_passes_the_network_once(photos, recipe, tmp_path, monkeypatch, enough):
    seen = []
    real = PlaceModel.prefix

    def counted(self, x):
        seen.append(len(x))
        return real(self, x)

    monkeypatch.setattr(PlaceModel, "prefix", counted)
    frozen = replace(recipe, model=replace(recipe.model, trainable="none"))
    fitted = fit_model(photos, frozen, tmp_path / "run", enough=enough, resources=QUIET)
    model = PlaceModel.load(fitted.model)
    store = describe_fitted(model, photos, tmp_path / "store")
    assert sum(seen) <= 1.3 * len(photos)
    from covis.describing.embedding import embed

    again = embed(model, photos, workers=0)
    assert np.abs(np.asarray(store[:]) - again[store.rows(photos.names)]).max() < 1e-4


def test_a_weights_file_tells_its_recipe(tmp_path, monkeypatch, capsys):
    """Of two recipes the one whose backbone the file fits; a file that fits none is an error."""
    from covis.errors import InputError
    from covis.training.recipe import RECIPES

    base = experiments.get("own_photos_small")
    for name, backbone in (("own_photos", "resnet18"), ("own_photos_small", "tiny")):
        chosen = replace(base, model=ModelConfig(backbone, "gem", (32, 32), weights=None))
        monkeypatch.setitem(RECIPES._entries, name, lambda chosen=chosen: chosen)
    from safetensors.torch import save_file

    tiny = PlaceModel.build(ModelConfig("tiny", "gem", (32, 32)), 0).backbone.net
    save_file({k: v.contiguous() for k, v in tiny.state_dict().items()}, tmp_path / "w.safetensors")
    assert choose_recipe("", str(tmp_path / "w.safetensors")).model.backbone == "tiny"
    assert "fits its backbone" in capsys.readouterr().err
    import torch

    save_file({"a": torch.zeros(3), "b": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(InputError, match="fits no recipe for own photos"):
        choose_recipe("", str(tmp_path / "other.safetensors"))
