"""Training from start to end: models, records, resuming, refusing."""

import csv
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from runs import QUIET, same, weights

from covis import datasets, losses
from covis.core.errors import InputError
from covis.datasets import DATASETS
from covis.graph import SimilarityGraph
from covis.images import ImageSet, Split
from covis.labels import Radius
from covis.models import PlaceModel
from covis.poses import Poses
from covis.sampling import AllPairs, Pairs, Tuples
from covis.training.checkpoint import KEPT_CHECKPOINTS, latest_checkpoint, save_checkpoint
from covis.training.pooling_start import images_of_groups
from covis.training.recipe import configure, describe_recipe, restore_recipe
from covis.training.run import Resources, train
from covis.training.step import Step
from layouts import builders

pytestmark = pytest.mark.usefixtures("cache")


def test_a_run_leaves_models_metrics_labels_and_a_result(quick, hamlet, tmp_path, capsys):
    result = train(quick, tmp_path / "run", data=hamlet, resources=Resources(workers=0))
    assert "plan: 96 pairs in 12 steps" in capsys.readouterr().err
    assert result["step"] == 12
    assert result["pairs"] == 96
    assert PlaceModel.load(tmp_path / "run" / "model").dim == result["dim"]
    assert SimilarityGraph.open(tmp_path / "run" / "labels").pairs > 0
    rows = list(csv.DictReader((tmp_path / "run" / "metrics.csv").open()))
    assert [r["step"] for r in rows if r["recall@5"]] == ["6", "12"]
    assert result["best"]["5"] == max(float(r["recall@5"]) for r in rows if r["recall@5"])
    assert any((tmp_path / "run" / "events").iterdir())
    card = PlaceModel.load(tmp_path / "run" / "model").card
    assert card["seed"] == 0
    assert card["recipe"]["loss"]["type"] == "GeneralizedContrastive"
    assert card["recalls"]["benchmark"] == quick.validation
    assert card["recalls"]["recall"]["5"] == result["best"]["5"]
    assert card["data"]["licence"] == DATASETS["town"].licence
    assert (card["dim"], card["fingerprint"]) == (result["dim"], result["fingerprint"])


def test_no_steps_leave_the_network_as_it_comes(quick, hamlet, tmp_path):
    recipe = replace(quick, steps=0, validation="")
    assert train(recipe, tmp_path / "run", data=hamlet, resources=QUIET)["images"] == 0
    assert same(weights(tmp_path / "run"), PlaceModel.build(recipe.model, 0).state_dict())
    with pytest.raises(InputError, match="steps is -1; it must be at least 0"):
        replace(quick, steps=-1)


def test_training_moves_what_is_trained_and_nothing_else(quick, hamlet, tmp_path):
    recipe = replace(quick, model=replace(quick.model, trainable="last1"), validation="")
    before = PlaceModel.build(recipe.model, 0)
    trained = {name for name, _ in before.trained_parameters()}
    train(recipe, tmp_path / "run", data=hamlet, resources=QUIET)
    after = weights(tmp_path / "run")
    moved = {k for k, v in before.state_dict().items() if not torch.equal(v, after[k])}
    assert trained & moved
    frozen = {k for k in before.state_dict() if k not in trained and not k.startswith(tuple(_trained_modules(trained)))}
    assert not frozen & moved


def _trained_modules(names):
    return {name.rsplit(".", 1)[0] for name in names}


def test_the_same_seed_gives_the_same_weights_and_another_does_not(quick, hamlet, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        train(quick, tmp_path / name, data=hamlet, seed=seed, resources=QUIET)
    assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert not same(weights(tmp_path / "a"), weights(tmp_path / "c"))


def test_worker_processes_and_caching_do_not_change_the_result(quick, hamlet, tmp_path):
    train(quick, tmp_path / "cached", data=hamlet, resources=QUIET)
    train(replace(quick, cache_gb=0.0), tmp_path / "streamed", data=hamlet, resources=replace(QUIET, workers=2))
    assert same(weights(tmp_path / "cached"), weights(tmp_path / "streamed"))


def test_a_cached_frozen_prefix_does_not_change_the_result(quick, hamlet, tmp_path):
    recipe = replace(quick, model=replace(quick.model, trainable="last1"), validation="")
    train(recipe, tmp_path / "cached", data=hamlet, resources=QUIET)
    train(replace(recipe, cache_gb=0.0), tmp_path / "streamed", data=hamlet, resources=QUIET)
    first, second = weights(tmp_path / "cached"), weights(tmp_path / "streamed")
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], rtol=1e-4, atol=1e-5)


def test_a_cache_in_half_precision_is_half_as_large_and_changes_little(quick, hamlet, tmp_path):
    recipe = replace(quick, model=replace(quick.model, trainable="last1"), validation="")
    sizes = []
    for name, half in (("full", False), ("half", True)):
        cache = tmp_path / f"{name} cache"
        train(replace(recipe, cache_half=half), tmp_path / name, data=hamlet, resources=replace(QUIET, cache=cache))
        sizes.append(sum(file.stat().st_size for file in cache.rglob("rows.npy")))
    assert sizes[0] > 1.9 * sizes[1] > 0
    full, half_ = weights(tmp_path / "full"), weights(tmp_path / "half")
    assert not same(full, half_)
    for name, value in full.items():
        assert (value - half_[name]).float().norm() <= 0.1 * value.float().norm(), name


def test_features_beyond_half_precision_are_refused(quick, hamlet, tmp_path, monkeypatch):
    prefix = PlaceModel.prefix
    monkeypatch.setattr(PlaceModel, "prefix", lambda self, pixels: prefix(self, pixels) * 1e6)
    recipe = replace(quick, model=replace(quick.model, trainable="last1"), validation="", cache_half=True)
    with pytest.raises(InputError, match="exceed half precision; set cache_half=false"):
        train(recipe, tmp_path / "run", data=hamlet, resources=replace(QUIET, cache=tmp_path / "cache"))
    assert not list((tmp_path / "cache").rglob("rows.npy"))


def test_accumulated_batches_equal_one_large_batch(quick, hamlet, tmp_path):
    model = replace(quick.model, batchnorm="frozen")
    one = replace(quick, model=model, validation="", steps=1, batches=replace(quick.batches, size=16))
    two = replace(one, accumulate=2, batches=replace(quick.batches, size=8))
    train(one, tmp_path / "one", data=hamlet, resources=QUIET)
    train(two, tmp_path / "two", data=hamlet, resources=QUIET)
    rows = [next(csv.DictReader((tmp_path / n / "metrics.csv").open())) for n in ("one", "two")]
    assert {r["pairs"] for r in rows} == {"16"}
    assert all(np.isfinite(float(r["loss"])) for r in rows)


def test_running_again_says_that_it_is_done(quick, hamlet, tmp_path, capsys):
    first = train(quick, tmp_path / "run", data=hamlet, resources=QUIET)
    assert train(quick, tmp_path / "run", data=hamlet, resources=QUIET) == first
    assert "already done" in capsys.readouterr().err


def test_another_recipe_or_seed_in_the_same_folder_is_refused(quick, hamlet, tmp_path):
    train(quick, tmp_path / "run", data=hamlet, resources=QUIET)
    with pytest.raises(InputError, match="belongs to another run"):
        train(quick, tmp_path / "run", data=hamlet, seed=5, resources=QUIET)


def test_a_run_that_never_started_owns_nothing(quick, hamlet, tmp_path):
    missing = replace(quick, model=replace(quick.model, weights=str(tmp_path / "none.safetensors")))
    with pytest.raises(InputError, match="does not exist"):
        train(missing, tmp_path / "run", data=hamlet, resources=QUIET)
    with pytest.raises(InputError):  # after the labels were written
        train(replace(quick, validation="msls_val"), tmp_path / "run", data=hamlet, resources=QUIET)
    assert train(replace(quick, steps=1, validation=""), tmp_path / "run", data=hamlet, resources=QUIET)["step"] == 1


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, capsys):
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, step, {"x": torch.tensor(step)}, {"step": step})
    assert len(list(tmp_path.iterdir())) == KEPT_CHECKPOINTS
    (tmp_path / "step-000000003" / "state.pt").write_bytes(b"broken")
    step, tensors, _ = latest_checkpoint(tmp_path)
    assert (step, tensors["x"].item()) == (2, 2)
    assert "resuming from the checkpoint before it" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(losses.LOSSES))
def test_every_loss_trains(quick, hamlet, tmp_path, name):
    loss = losses.LOSSES[name]()
    batches = quick.batches
    if loss.shape == "tuples":
        batches = Tuples(4, negatives=3, mined=True, refresh=2, pool=20)
    elif loss.shape == "lists":
        batches = AllPairs(size=16)
    recipe = replace(quick, loss=loss, batches=batches, steps=3, validation="")
    result = train(recipe, tmp_path / "run", data=hamlet, resources=QUIET)
    assert result["step"] == 3
    assert (result["mining_seconds"] > 0) == batches.mined


@pytest.mark.parametrize(
    "batches",
    [
        Pairs("B", 8), Pairs("C", 9), Pairs("D", 8), Pairs("binary", 8, composed_by=Radius(25.0, 40.0)),
        AllPairs("A", 16), AllPairs("B", 16), AllPairs("C", 16), AllPairs("D", 16),
        AllPairs("binary", 16, composed_by=Radius(25.0, 40.0)),
    ],
    ids=lambda b: f"{type(b).__name__}-{b.strategy}",
)  # fmt: skip
def test_every_composition_trains(quick, hamlet, tmp_path, batches):
    result = train(
        replace(quick, batches=batches, steps=2, validation=""), tmp_path / "run", data=hamlet, resources=QUIET
    )
    assert result["step"] == 2


def test_all_pairs_see_more_pairs_for_the_same_images(quick, hamlet, tmp_path):
    wide = replace(quick, batches=AllPairs(size=16), steps=3, validation="")
    result = train(wide, tmp_path / "run", data=hamlet, resources=QUIET)
    assert result["images"] <= 3 * 16
    assert result["pairs"] > 3 * 16


def test_whitening_becomes_part_of_the_model(quick, hamlet, tmp_path):
    train(replace(quick, whiten=8, validation=""), tmp_path / "run", data=hamlet, resources=QUIET)
    assert PlaceModel.load(tmp_path / "run" / "model").dim == 8


def test_whitening_learns_from_the_recipes_labels(quick, hamlet, tmp_path):
    recipe = configure(replace(quick, steps=0, whiten=8, validation=""), ["whitening.labels=graded"])
    assert restore_recipe(describe_recipe(recipe)) == recipe
    train(recipe, tmp_path / "run", data=hamlet, resources=QUIET)
    whitening = PlaceModel.load(tmp_path / "run" / "model").whitening
    assert whitening.facts["labels"] == "graded"
    assert whitening.facts["pairs"] > 0
    assert "FovOverlap" in whitening.facts["label_rule"]


def test_a_loss_that_is_not_finite_stops_after_three_steps_and_names_images(quick, hamlet, tmp_path, capsys):
    hot = configure(quick, ["optimiser.learning_rate=1e30", "steps=30"])
    with pytest.raises(InputError, match=r"3 steps in a row.*\.jpg"):
        train(hot, tmp_path / "run", data=hamlet, resources=QUIET)
    assert "step is skipped" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["loss=triplet"], "do not fit"),
        (["epochs=0"], "epochs is 0; it must be at least 1"),
        (["model.backbone=resnet5"], "backbone"),
        (["optimiser.learnrate=1"], "optimiser.learning_rate"),
        (["loss=gcl2"], "unknown loss"),
    ],
)
def test_wrong_recipes_are_refused_in_one_line(quick, hamlet, tmp_path, settings, message):
    with pytest.raises(InputError, match=message):
        train(configure(quick, settings), tmp_path / "run", data=hamlet, resources=QUIET)


def test_clusters_start_from_the_groups_that_are_named():
    xy = np.arange(12.0).reshape(6, 2)
    groups = np.array([0, 0, 1, 2, 2, 2], np.int32)
    names = np.array([b"%d.jpg" % i for i in range(6)])
    images = ImageSet(Path(), names, Poses(xy, np.zeros(6)), groups, ("campus/a", "cambridge/b", "campus/c"))
    assert images_of_groups(images, "campus/").tolist() == [0, 1, 3, 4, 5]
    assert images_of_groups(images, "").tolist() == list(range(6))
    with pytest.raises(InputError, match="start_on=camden/"):
        images_of_groups(images, "camden/")


@pytest.mark.parametrize("backbone", ["tiny", "vit_tiny_patch16_224"])
def test_a_compiled_step_gives_the_same_losses(backbone, quick, hamlet, tmp_path, monkeypatch):
    """As torch traces it, forward and backward; generating machine code takes minutes and adds nothing to ask."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    model = replace(quick.model, backbone=backbone, image_size=(32, 32), trainable="last1")
    plain, compiled = (
        train(replace(quick, model=model, steps=3, compile=on), tmp_path / str(on), data=hamlet, resources=QUIET)
        for on in (False, True)
    )
    before, after = (weights(trained.model.parent) for trained in (plain, compiled))
    assert all(torch.allclose(before[name], after[name], atol=1e-5) for name in before)


def test_compiling_needs_a_compiler(quick, hamlet, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(InputError, match="set compile=false"):
        train(replace(quick, compile=True), tmp_path / "run", data=hamlet, resources=QUIET)


class HalfStep(Step):
    """A step of one's own."""

    def __call__(self, number, rate, batches):
        return super().__call__(number, rate / 2, batches)


def test_a_step_of_ones_own_trains_and_belongs_to_its_run(quick, hamlet, tmp_path):
    half = configure(quick, [f"optimiser.learning_rate={quick.optimiser.learning_rate / 2}"])
    train(quick, tmp_path / "own", data=hamlet, resources=QUIET, step=HalfStep)
    train(half, tmp_path / "half", data=hamlet, resources=QUIET)
    assert same(weights(tmp_path / "own"), weights(tmp_path / "half"))
    with pytest.raises(InputError, match="another run"):
        train(quick, tmp_path / "own", data=hamlet, resources=QUIET)


def test_the_card_says_nothing_that_is_not_known_of_images_that_were_handed_over(quick, hamlet, tmp_path):
    images = datasets.load("town", hamlet, "train").database
    recipe = replace(quick, steps=1, validation="")
    train(recipe, tmp_path / "run", data=Split(images, images), resources=QUIET)
    data = PlaceModel.load(tmp_path / "run" / "model").card["data"]
    assert (data["name"], data["licence"]) == (images.root.name, "unknown")
    assert data["images"] == [images.fingerprint()]


def test_validation_on_the_photos_of_training_is_refused_with_their_names(quick, hamlet, tmp_path):
    images = datasets.load("town", hamlet, "train").database
    lines = [f"{images.path(i)},{x},{y}" for i, (x, y) in enumerate(images.poses.xy)]
    (tmp_path / "mine.csv").write_text("\n".join(["image,easting,northing", *lines]) + "\n")
    own = replace(quick, dataset="table", split="all", validation="table", steps=1)
    with pytest.raises(InputError, match="also trained on"):
        train(own, tmp_path / "run", data=tmp_path / "mine.csv", resources=QUIET)


def test_cities_without_images_are_refused_and_the_others_trained_on(quick, tmp_path):
    """The shares of strategy A are the paper's: half of the pairs ψ ≥ 0.5, a quarter less, a quarter none."""
    root = builders.msls(tmp_path / "msls", cities=("amman", "london", "zurich"))
    shutil.rmtree(root / "train_val/amman/database/images")
    recipe = replace(quick, dataset="msls", labels=DATASETS["msls"].rule, validation="", steps=4)
    with pytest.raises(InputError, match=r"11 of 33 images are not under .* --set split=london,zurich$"):
        train(recipe, tmp_path / "run", data=root, resources=QUIET)
    result = train(configure(recipe, ["split=london,zurich"]), tmp_path / "run", data=root, resources=QUIET)
    assert result["composition"] == {"positive": 16, "less": 8, "none": 8}
    shutil.rmtree(root / "train_val")
    again = train(configure(recipe, ["split=london,zurich"]), tmp_path / "run", data=root, resources=QUIET)
    assert again == result
