"""What a run lets its caller choose: validation photos, callbacks, precision, optimisers, augmentation, an early end."""

import csv
import json
import shutil
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from runs import QUIET, same, weights

from covis import town
from covis.core.errors import InputError
from covis.datasets import photos
from covis.images import Split
from covis.labels import SamePlace
from covis.losses import BatchMultiSimilarity
from covis.models import PlaceModel
from covis.sampling import Places
from covis.training.augmentation import AUGMENTATIONS
from covis.training.callbacks import AverageWeights, Callback, Profile
from covis.training.recipe import configure, describe_recipe, read_recipe
from covis.training.run import train
from covis.training.step import Step, make_optimiser

pytestmark = pytest.mark.usefixtures("cache")


def rows(run):
    return list(csv.DictReader((run / "metrics.csv").open()))


def test_validation_photos_are_the_callers(quick, hamlet, tmp_path):
    own = town.load(hamlet, "test").database
    trained = train(replace(quick, steps=2), tmp_path / "run", data=hamlet, validation=own, resources=QUIET)
    assert set(trained.recall) >= {1, 5, 10}
    assert PlaceModel.load(tmp_path / "run" / "model").card["recalls"]["benchmark"] == "validation"


def test_tables_of_ones_own_train_and_validate_from_the_command_line(covis, hamlet, tmp_path):
    for part, split in (("a", "train"), ("b", "val")):
        images = town.load(hamlet, split).database
        lines = [
            f"{images.path(i).resolve()},{x},{y},{images.poses.heading[i]},{images.group[i]}"
            for i, (x, y) in enumerate(images.poses.xy)
        ]
        (tmp_path / f"{part}.csv").write_text("\n".join(["image,easting,northing,heading,group", *lines]))
    (tmp_path / "mine.toml").write_text('base = "town_quick"\ndataset = "table"\nsplit = "train"\nsteps = 2\n')
    given = [
        f"--data=train={tmp_path / 'a.csv'}",
        f"--data=val={tmp_path / 'b.csv'}",
        "--set",
        "model.image_size=[32,32]",
    ]
    code, result, said = covis(
        "train", tmp_path / "mine.toml", *given, "-o", tmp_path / "run", "--workers", "0", "--json"
    )
    assert code == 0, said
    assert 0 <= result["best"]["10"] <= 100


@pytest.mark.parametrize("by", ["file", "content", "distance"])
def test_photos_of_training_do_not_validate(quick, hamlet, tmp_path, by):
    images = town.load(hamlet, "train").database
    with pytest.raises(InputError, match="photos of validation are also trained on"):
        train(replace(quick, shared=by), tmp_path / "run", data=Split(images, images),
              validation=images.subset(np.arange(40)), resources=QUIET)  # fmt: skip


def test_a_table_says_which_rows_are_trained_on(tmp_path):
    table = tmp_path / "own.csv"
    table.write_text("image,easting,northing,split\na.jpg,0,0,train\nb.jpg,9,9,val\nc.jpg,1,1,train\n")
    assert len(photos.load_table(table, "train").queries) == 2
    assert [photos.load_table(table, "val").queries.name(0)] == ["b.jpg"]
    with pytest.raises(InputError, match="unknown split of table 'vla'; did you mean 'val'"):
        photos.load_table(table, "vla")


class Scalars(Callback):
    """Adds a scalar of its own and counts what it is told."""

    def __init__(self):
        self.told = []

    def on_step(self, loop, row):
        row["own"] = 2.0 * row["loss"]
        self.told.append(row["step"])

    def on_validation(self, loop, row):
        self.told.append("validation")

    def state(self):
        return {"told": list(self.told)}

    def restore(self, state):
        self.told = state["told"]


class StopsOnce(Callback):
    def on_step(self, loop, row):
        if row["step"] == 3:
            loop.save()
            raise KeyboardInterrupt


def test_callbacks_hear_of_every_step_also_over_a_stop(quick, hamlet, tmp_path):
    recipe = replace(quick, steps=6, validations=1)
    whole = train(recipe, tmp_path / "whole", data=hamlet, resources=QUIET, callbacks=[AverageWeights(0.5), Scalars()])
    stopped = [AverageWeights(0.5), Scalars(), StopsOnce()]
    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path / "stopped", data=hamlet, resources=QUIET, callbacks=stopped)
    heard = [AverageWeights(0.5), Scalars(), type("StopsOnce", (Callback,), {})()]
    train(recipe, tmp_path / "stopped", data=hamlet, resources=QUIET, callbacks=heard)
    assert heard[1].told == [1, 2, 3, 4, 5, "validation", 6]
    assert same(weights(tmp_path / "whole", "last"), weights(tmp_path / "stopped", "last"))
    assert whole.steps == 6


def test_a_profile_says_where_the_time_of_steps_goes(quick, hamlet, tmp_path, capsys):
    train(replace(quick, steps=4), tmp_path / "run", data=hamlet, resources=QUIET, callbacks=[Profile()])
    shown = capsys.readouterr().err
    assert all(work in shown for work in ("images and frozen part", "forward", "loss and backward", "update"))
    trace = json.loads((tmp_path / "run" / "profile.json").read_text())
    assert any(event.get("name") == "covis: forward" for event in trace["traceEvents"])


def test_a_run_ends_where_validation_gains_nothing(quick, hamlet, tmp_path):
    settings = ["optimiser.learning_rate=1e-12", "model.batchnorm=frozen"]
    recipe = configure(replace(quick, validations=12, patience=2), settings)
    trained = train(recipe, tmp_path / "run", data=hamlet, resources=QUIET)
    assert trained.steps == 3


class Dtypes(Step):
    """Records the types that convolutions and the loss see."""

    seen: ClassVar = []

    def describe(self, trained, features):
        kinds = []
        hooks = [m.register_forward_hook(lambda m, i, o: kinds.append(o.dtype))
                 for m in self.model.modules() if isinstance(m, torch.nn.Conv2d)]  # fmt: skip
        try:
            found = super().describe(trained, features)
        finally:
            for hook in hooks:
                hook.remove()
        self.seen.append((features.dtype, set(kinds), found.dtype))
        return found


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_networks_compute_in_low_precision_and_losses_do_not(quick, hamlet, tmp_path, precision, monkeypatch):
    frozen = []
    prefix = PlaceModel.prefix
    monkeypatch.setattr(
        PlaceModel, "prefix", lambda self, x: (frozen.append(prefix(self, x).dtype), prefix(self, x))[1]
    )
    monkeypatch.setattr(Dtypes, "seen", [])
    recipe = replace(quick, model=replace(quick.model, trainable="last1"), precision=precision, steps=1, cache_gb=0.0)
    train(recipe, tmp_path / "run", data=hamlet, resources=QUIET, step=Dtypes)
    low = getattr(torch, precision)
    assert Dtypes.seen == [(low, {low}, torch.float32)]
    assert set(frozen) == {low}  # training and validation
    assert {t.dtype for t in weights(tmp_path / "run").values() if t.is_floating_point()} == {torch.float32}


def test_any_optimiser_of_torch_with_rates_by_depth(quick):
    model = PlaceModel.build(quick.model, 0)
    recipe = configure(quick, ["optimiser.name=NAdam", "optimiser.momentum=0", "optimiser.layer_decay=0.5"])
    made = make_optimiser(recipe, model)
    assert isinstance(made, torch.optim.NAdam)
    assert {group["factor"] for group in made.param_groups} >= {1.0, 0.5}
    with pytest.raises(InputError, match="unknown optimiser 'adanw'; did you mean 'adamw'"):
        make_optimiser(configure(quick, ["optimiser.name=adanw"]), model)
    with pytest.raises(InputError, match="optimiser adamw has no momentum"):
        make_optimiser(configure(quick, ["optimiser.name=adamw", "optimiser.momentum=0.9"]), model)


def test_clipped_gradients_move_the_weights_less(quick, hamlet, tmp_path):
    before = PlaceModel.build(quick.model, 0).state_dict()
    moved = []
    for name, clip in (("free", 0.0), ("clipped", 1e-4)):
        recipe = configure(replace(quick, steps=3, validation=""), ["optimiser.name=sgd", f"optimiser.clip={clip}"])
        train(recipe, tmp_path / name, data=hamlet, resources=QUIET)
        after = weights(tmp_path / name)
        moved.append(
            sum(float((after[k] - v).norm()) for k, v in before.items() if "running" not in k and v.is_floating_point())
        )
    assert moved[1] < 0.1 * moved[0]


def test_augmented_images_are_drawn_anew_and_the_same_by_any_number_of_workers(quick, hamlet, tmp_path, monkeypatch):
    monkeypatch.setitem(
        AUGMENTATIONS._entries, "noise", lambda: lambda x: (x.int() + torch.randint(0, 60, ())).clamp(0, 255).byte()
    )
    recipe = replace(quick, steps=4, validation="", augment="noise")
    for name, workers in (("alone", 0), ("helped", 2)):
        train(recipe, tmp_path / name, data=hamlet, resources=replace(QUIET, workers=workers))
    train(replace(recipe, augment=""), tmp_path / "plain", data=hamlet, resources=QUIET)
    assert same(weights(tmp_path / "alone"), weights(tmp_path / "helped"))
    assert not same(weights(tmp_path / "alone"), weights(tmp_path / "plain"))


def test_places_and_batch_wise_multi_similarity_train(quick, hamlet, tmp_path):
    images = town.load(hamlet, "train").database
    images = replace(images, columns={"place": np.arange(len(images)) // 4})
    recipe = replace(
        quick,
        labels=SamePlace(),
        loss=BatchMultiSimilarity(),
        batches=Places(places=4, images=3),
        steps=3,
        validation="",
    )
    trained = train(recipe, tmp_path / "run", data=Split(images, images), resources=QUIET)
    assert trained["images"] == 36
    assert trained.pairs == 3 * 12 * 11


def test_places_of_a_batch_can_be_of_one_city(hamlet):
    images = town.load(hamlet, "train").database
    place = np.arange(len(images)) // 4
    images = replace(images, columns={"place": place}, group=np.int32(place % 2), group_names=("a", "b"))
    labels, mixed = SamePlace()(images, images), []
    for within in (True, False):
        batches = Places(places=4, images=3, within_group=within)
        sampler = batches.sampler(labels, Split(images, images), 0, loss=None, graphs={})
        drawn = [sampler.batch(0, index).queries for index in range(len(sampler))]
        mixed.append(sum(len(np.unique(images.group[ids])) > 1 for ids in drawn))
        assert set(place[np.concatenate(drawn)]) == set(np.flatnonzero(np.bincount(place) >= 3))
    assert mixed[0] <= 2 < mixed[1]  # where one city ends, and where the last batch is filled up


def test_a_step_without_memory_says_what_to_try(quick, hamlet, tmp_path):
    class Full(Step):
        def __call__(self, number, rate, batches):
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(
        InputError, match=r"no memory for the .* images of a batch; try --set batches.size=4 --set accumulate=2"
    ):
        train(quick, tmp_path / "run", data=hamlet, resources=QUIET, step=Full)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler")
@pytest.mark.parametrize("backbone", ["tiny", "vit_tiny_patch16_224"])
def test_a_compiled_step_has_the_loss_of_a_plain_one(quick, hamlet, tmp_path, backbone):
    model = replace(quick.model, backbone=backbone, trainable="last1")
    recipe = replace(quick, model=model, steps=2, validation="")
    for compiled in (False, True):
        train(replace(recipe, compile=compiled), tmp_path / str(compiled), data=hamlet, resources=QUIET)
    losses = [[float(row["loss"]) for row in rows(tmp_path / name)] for name in ("False", "True")]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_compiling_without_a_compiler_is_refused_with_the_reason(quick, hamlet, tmp_path, monkeypatch):
    monkeypatch.setattr("covis.training.step.shutil.which", lambda name: None)
    with pytest.raises(InputError, match=r"compile=true needs a C\+\+ compiler"):
        train(replace(quick, compile=True), tmp_path / "run", data=hamlet, resources=QUIET)


def test_a_checkpoint_holds_what_learns(quick, hamlet, tmp_path):
    recipe = replace(quick, model=replace(quick.model, trainable="last1"), steps=2, validations=1)
    train(recipe, tmp_path / "run", data=hamlet, resources=QUIET)
    [path] = sorted((tmp_path / "run" / "checkpoints").glob("*/state.pt"))[-1:]
    kept, whole = torch.load(path, weights_only=True)["model"], PlaceModel.build(recipe.model, 0)
    assert {name for name, _ in whole.trained_parameters()} <= set(kept) < set(whole.state_dict())


def test_a_recipe_file_needs_no_types_where_there_is_one_class(tmp_path, quick):
    file = tmp_path / "mine.toml"
    file.write_text('dataset = "table"\n[model]\nbackbone = "tiny"\n[optimiser]\nname = "adamw"\n')
    assert read_recipe(file).optimiser.name == "adamw"


def test_a_runs_record_repeats_it_and_finds_weights_by_their_content(quick, hamlet, tmp_path, monkeypatch):
    file = tmp_path / "cache" / "weights" / "moved.safetensors"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"weights")
    described = describe_recipe(quick) | {
        "model": describe_recipe(quick)["model"] | {"weights": "/elsewhere/w.safetensors"}
    }
    from hashlib import sha256

    record = tmp_path / "run.json"
    record.write_text(
        json.dumps({"config": {"recipe": described, "seed": 3, "weights_sha256": sha256(b"weights").hexdigest()}})
    )
    assert read_recipe(record).model.weights == str(file)
    record.write_text(json.dumps({"config": {"recipe": described, "seed": 3, "weights_sha256": "0" * 64}}))
    with pytest.raises(InputError, match=r"weights w.safetensors \(SHA-256 000000000000…\) are not here"):
        read_recipe(record)


def test_pairs_and_losses_for_a_loop_of_ones_own(hamlet):
    from torch.utils.data import DataLoader

    from covis.losses import Contrastive
    from covis.torch import GradedPairs, LossModule

    images = town.load(hamlet, "train").database
    pairs = GradedPairs(images, (16, 16), batch_size=4, transform=lambda x: x.float() / 255)
    first = [next(iter(DataLoader(pairs, batch_size=None))) for _ in range(2)]
    assert torch.equal(first[0][0], first[1][0])
    za, zb, psi = first[0]
    assert za.shape == zb.shape == (4, 3, 16, 16)
    assert psi.shape == (4,)
    assert float(za.max()) <= 1
    pairs.set_epoch(1)
    assert not torch.equal(pairs[0][0], za)
    loss = torch.nn.ModuleList([LossModule(Contrastive())])[0]
    z = torch.nn.functional.normalize(za.flatten(1), dim=1)
    assert float(loss(z, z, torch.ones(4))) == 0
