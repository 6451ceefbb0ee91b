"""A model for one's own photos: fitted always, trained where it can be and helps."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from covis import datasets, experiments
from covis.cli import main
from covis.core.errors import InputError, WeightsMissing
from covis.descriptors import DescriptorStore
from covis.images import concatenate
from covis.labels import FovOverlap
from covis.maps import fitting
from covis.maps.fitting import ENOUGH, FROZEN, TAKEN, TUNED, choose_recipe, fit_model
from covis.maps.map import Map
from covis.maps.whitening import USUAL, HeldOutSearch, WhiteningSettings, choose_whitening
from covis.models import ModelConfig, PlaceModel
from covis.training.run import Resources
from covis.whitening import PCA

QUIET = Resources(workers=0, tensorboard=False, plan=False)


pytestmark = pytest.mark.usefixtures("cache")


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


def test_a_whitening_is_learned_from_the_walks(photos, recipe, tmp_path, capsys):
    fitted = fit_model(photos, recipe, tmp_path / "run", resources=QUIET)
    assert not fitted.trained
    assert fitted.seen == len(photos)
    assert set(fitted.held_out) >= {"pca", "learned, a = 0.3, p = 2", TAKEN}
    told = capsys.readouterr().err
    assert "place clusters: " in told
    assert "adapted the model to your photos" in told
    model = PlaceModel.load(fitted.model)
    assert model.dim == fitted.whitening["dim"] <= len(photos) // 2
    assert model.whitening.facts["fit"] == "map"
    held = fitted.questions()
    assert held.seen == len(photos)
    assert (photos.group[held.ids] != photos.group[held.queries][:, None])[held.ids >= 0].all()
    assert fit_model(photos, recipe, tmp_path / "run", resources=QUIET) == fitted
    with pytest.raises(InputError, match="another fit"):
        fit_model(photos, recipe, tmp_path / "run", seed=1, resources=QUIET)


def test_photos_that_a_model_learned_from_promise_nothing(photos, recipe, tmp_path, monkeypatch, capsys):
    few = partial(choose_whitening, settings=WhiteningSettings(few_rules=(PCA, USUAL)))
    monkeypatch.setattr(fitting, "choose_whitening", few)
    monkeypatch.setattr(HeldOutSearch, "best", property(lambda tried: tried.rules.index(USUAL)))
    fitted = fit_model(photos, recipe, tmp_path / "run", resources=QUIET)
    model = PlaceModel.load(fitted.model)
    again = photos.subset(np.arange(len(photos))[::-1])  # the same ones in another order
    made = Map.create(tmp_path / "again.map", again, model, descriptors=DescriptorStore.open(fitted.descriptors))
    assert made.calibration.held_out is None
    assert "learned from the poses of these photos" in made.calibration.note
    assert made.calibration.seen == len(photos)
    images, store, _ = fitted.described(photos)
    asked = Map.create(tmp_path / "asked.map", images, model, descriptors=store, held=fitted.questions())
    assert "these photos" not in asked.calibration.note
    assert "promises too much" not in capsys.readouterr().err
    Map.create(tmp_path / "some.map", photos.subset(np.arange(60)), model, descriptors=store)
    assert "promises too much" in capsys.readouterr().err


def test_an_interrupted_fit_resumes(photos, recipe, tmp_path, monkeypatch):
    whole = fit_model(photos, recipe, tmp_path / "whole", resources=QUIET)
    with monkeypatch.context() as patch:
        patch.setattr(fitting, "choose_whitening", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            fit_model(photos, recipe, tmp_path / "run", resources=QUIET)
    monkeypatch.setattr(fitting, "start_pooling", None)  # clusters and descriptors are there
    resumed = fit_model(photos, recipe, tmp_path / "run", resources=QUIET)
    assert resumed.held_out == whole.held_out
    vectors = [DescriptorStore.open(f.descriptors)[:] for f in (resumed, whole)]
    assert np.abs(vectors[0] - vectors[1]).max() < 1e-6


def test_photos_of_few_walks_teach_no_poses(photos, recipe, tmp_path):
    one = replace(photos, group=photos.group * 0, group_names=("all",))
    fitted = fit_model(one, recipe, tmp_path / "run", resources=QUIET)
    assert fitted.seen == 0
    assert fitted.questions() is None
    assert PlaceModel.load(fitted.model).whitening.facts["labels"] == "none"
    few = photos.subset(np.arange(20))
    assert "too few to whiten" in fit_model(few, recipe, tmp_path / "few", resources=QUIET).note


def test_fine_tuning_is_an_option_and_the_better_model_is_taken(photos, recipe, tmp_path):
    fitted = fit_model(photos, recipe, tmp_path / "run", fine_tune=True, enough=20, resources=QUIET)
    found = fitted.held_out
    assert fitted.trained == (found[TUNED]["1"] > found[FROZEN]["1"])
    card = PlaceModel.load(tmp_path / "run" / TUNED / TUNED / "model").card
    assert card["training"]["step"] == 2
    if fitted.trained:  # then only walks that training did not see are asked
        assert set(photos.group[fitted.questions().queries]) == {3}
    little = fit_model(photos, recipe, tmp_path / "little", fine_tune=True, resources=QUIET)
    assert not little.trained
    assert f"{ENOUGH} are needed" in little.note


def test_bad_photos_are_left_out_and_named(photos, recipe, tmp_path):
    root = tmp_path / "copies"
    names = [f"{i:04d}.jpg" for i in range(len(photos))]
    root.mkdir()
    for i, name in enumerate(names):
        (root / name).write_bytes(b"no photo" if i == 7 else photos.path(i).read_bytes())
    images = replace(photos, root=root, names=np.array(names, dtype=bytes), columns={})
    fitted = fit_model(images, recipe, tmp_path / "run", resources=QUIET)
    kept, store, rejects = fitted.described(images)
    assert [r.image for r in rejects] == ["0007.jpg"]
    assert rejects[0].reason != "no-descriptor"
    assert kept.names.tolist() == store.names.tolist()
    made = Map.create(
        tmp_path / "map",
        kept,
        PlaceModel.load(fitted.model),
        descriptors=store,
        held=fitted.questions(),
        rejects=rejects,
    )
    assert len(made) == len(photos) - 1
    assert made.calibration.seen == len(photos) - 1
    assert made.calibration.held_out is None or len(made.calibration.held_out) <= len(made)


def test_of_many_photos_whole_walks_are_fitted_to_and_all_are_described(photos, recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "FITTED_PHOTOS", int(0.85 * len(photos)))
    fitted = fit_model(photos, recipe, tmp_path / "run", resources=QUIET)
    images, store, _ = fitted.described(photos)
    assert 0 < fitted.seen < len(photos) == len(store)
    assert len(np.unique(images.group[: fitted.seen])) == 4
    from covis.describing.embedding import embed

    again = embed(PlaceModel.load(fitted.model), images, workers=0)
    assert (np.asarray(store[:]) * again).sum(axis=1).min() > 0.99  # an untrained network's descriptors hardly differ


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in arguments])
    return stop.value.code or 0, *capsys.readouterr()


def test_index_trains_from_the_command_line(photos, tmp_path, capsys):
    table = tmp_path / "photos.csv"
    xy, heading = photos.poses.xy, photos.poses.heading
    rows = [f"{photos.path(i)},{x},{y},{heading[i]},walk{photos.group[i]}" for i, (x, y) in enumerate(xy)]
    table.write_text("\n".join(["image,easting,northing,heading,group", *rows]) + "\n")
    words = ("index", table, "-o", tmp_path / "town.map", "--runtime", "torch", "--json", "--recipe")
    code, out, err = run(capsys, *words, "town_quick")
    assert code == 0, err
    told = json.loads(out)
    assert not (tmp_path / "town.map.model").exists()
    code, again, err = run(capsys, *words, "town_quick")
    assert (code, json.loads(again)) == (0, told)
    assert "all steps take" not in err
    code, _, err = run(capsys, *words, "town_cl")
    assert code == 2
    assert "another fit" in err
    assert told["photos"] == len(photos)
    assert told["fitted"]["trained"] is False
    assert told["fitted"]["note"]
    _, out, _ = run(capsys, "locate", tmp_path / "town.map", photos.path(3), "--json")
    assert json.loads(out)[0]["matches"][0]["distance"] == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--fine-tune", "--model", "m"], "--model to use a model unchanged"),
        (["--weights", "w.safetensors", "--model", "m"], "--model to use a model unchanged"),
    ],
)
def test_contradictions_are_told(options, message, tmp_path, capsys):
    for name in ("m", "w.safetensors"):
        (tmp_path / name).mkdir()
    given = [option if option.startswith("--") else tmp_path / option for option in options]
    code, _, err = run(capsys, "index", tmp_path, "-o", tmp_path / "map", *given)
    assert code == 2
    assert message in err


def test_each_photo_passes_the_network_about_once(photos, recipe, tmp_path, monkeypatch):
    seen = []
    real = PlaceModel.prefix

    def counted(self, x):
        seen.append(len(x))
        return real(self, x)

    monkeypatch.setattr(PlaceModel, "prefix", counted)
    fitted = fit_model(photos, recipe, tmp_path / "run", resources=QUIET)
    images, store, _ = fitted.described(photos)
    Map.create(
        tmp_path / "map", images, PlaceModel.load(fitted.model),
        descriptors=store, held=fitted.questions(), bank=fitted.bank(),
    )  # fmt: skip
    assert sum(seen) <= 1.3 * (len(photos) + len(fitted.bank()))


def test_a_weights_file_tells_its_recipe(tmp_path, monkeypatch, capsys):
    """Of two recipes the one whose backbone the file fits; a file that fits none is an error."""
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


def test_missing_weights_are_named_with_their_address(monkeypatch):
    monkeypatch.setattr("covis.models.weights.fetch", lambda *_: (_ for _ in ()).throw(OSError("offline mode")))
    with pytest.raises(WeightsMissing) as missing:
        choose_recipe("", "")
    assert "vit_small_patch14_reg4_dinov2.lvd142m/resolve/main/model.safetensors" in missing.value.told(
        "--weights FILE"
    )
