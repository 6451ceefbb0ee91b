"""What every registered recipe owes its users; a new entry is picked up automatically: parts that exist, and one step that runs."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest

from covis import experiments
from covis.core.errors import InputError
from covis.datasets.seven_scenes import SCENES
from covis.experiments.recipes import BACKBONES
from covis.models import POOLS, ModelConfig, backbone_names
from covis.models.library import import_timm
from covis.training.recipe import configure, describe_recipe, read_recipe
from covis.training.run import Resources, train
from layouts import builders

PAPER_DATASETS = ("msls", "tb_places", "7scenes")
QUIET = Resources(workers=0, tensorboard=False, plan=False)
TINY = ModelConfig("tiny", "gem", image_size=(16, 16), trainable="last1")


@pytest.fixture(scope="module")
def with_every_band(tmp_path_factory):
    """Dataset → a layout with pairs in every band of ψ, where the miniature is too small for some recipes."""
    root = tmp_path_factory.mktemp("bands")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builders, "_street", lambda city, n: np.column_stack([6.0 * np.arange(n), np.zeros(n)]))
        builders.msls(root / "msls", cities=("amman", "cph", "sf"), queries=30, database=36)
    builders.tb_places(root / "tb", sizes=(("W17", 24), ("W18", 8)), halves=(4, 4))
    builders.seven_scenes(root / "7scenes", scenes=tuple(SCENES), frames=20)
    return {"msls": root / "msls", "tb_places": root / "tb", "7scenes": root / "7scenes"}


def small(recipe):
    """The recipe with all that decides its step but a network that takes no time."""
    return replace(recipe, model=TINY, steps=1, validations=1, whiten=0, cache_gb=0.5)


def cases():
    """Every recipe whose step differs. Those that bring no new data, sampler or loss run in `make recipes` only."""
    steps, sampled = set(), set()
    for name in experiments.RECIPES:
        recipe = small(experiments.get(name))
        step = json.dumps(describe_recipe(recipe))
        if step not in steps:
            kinds = {(recipe.dataset, type(recipe.batches)), type(recipe.loss)}
            yield pytest.param(name, marks=[pytest.mark.recipes] if kinds <= sampled else [])
            steps.add(step)
            sampled |= kinds


def test_their_networks_and_poolings_exist():
    backbones = set(backbone_names())
    models = {name: experiments.get(name).model for name in experiments.RECIPES}
    assert not [name for name, model in models.items() if model.backbone.split(".")[0] not in backbones]
    assert not [name for name, model in models.items() if model.pool not in POOLS]


def test_the_papers_networks_start_from_weights_that_are_named():
    """timm's default weights of a ResNet are others than torchvision's, which the paper's code loads."""
    models = {
        name: recipe().model for name, recipe in experiments.RECIPES.items() if recipe().dataset in PAPER_DATASETS
    }
    tags = {name: model.backbone.partition(".")[2] for name, model in models.items() if model.weights == "pretrained"}
    assert len(tags) > 50
    assert set(tags.values()) == {"tv_in1k", "fb_wsl_ig1b_ft_in1k", "lvd142m"}


def test_those_weights_are_the_files_that_the_papers_code_loads():
    """Addresses by torchvision (its first weights) and by the hub file of facebookresearch/WSL-Images."""
    timm = import_timm()
    from torchvision.models import get_model_weights

    for short, name in BACKBONES.items():
        tagged = timm.get_pretrained_cfg(name)
        if short == "resnext":
            assert tagged.url.endswith("/ig_resnext101_32x8-c38310e5.pth")
        elif tagged.url:  # timm names no address for VGG16 and DenseNet161
            assert tagged.url == get_model_weights(short).IMAGENET1K_V1.url


def test_they_read_back_from_a_file(tmp_path):
    for name in experiments.RECIPES:
        recipe = experiments.get(name)
        (tmp_path / "mine.json").write_text(json.dumps(describe_recipe(recipe)))
        assert experiments.get(str(tmp_path / "mine.json")) == recipe, name


@pytest.mark.parametrize("name", list(cases()))
def test_one_step_runs_on_a_miniature(name, official, with_every_band, tmp_path, tmp_path_factory, monkeypatch):
    # features of one tiny network, which all recipes share
    monkeypatch.setenv("COVIS_CACHE", str(tmp_path_factory.getbasetemp() / "recipes"))
    recipe = small(experiments.get(name))
    data = with_every_band.get(recipe.dataset) or official[recipe.dataset]
    result = train(recipe, tmp_path / "run", data=data, resources=QUIET)
    assert result["step"] == 1
    assert result["images"] > 0
    row = next(csv.DictReader((tmp_path / "run" / "metrics.csv").open()))
    assert float(row["loss"]) >= 0
    assert bool(row["recall@5"]) == bool(recipe.validation)


def test_a_file_may_change_a_recipe_that_it_names(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        'base = "msls_vgg16_gem_gcl"\nsteps = 5\n[loss]\nmargin = 1\n[model]\nweights = "none"\nimage_size = [240, 320]\n'
        '[batches]\ntype = "all_pairs"\nsize = 40\n[labels]\nradius_m = 30\n'
    )
    changes = ["steps=5", "loss.margin=1", "model.weights=none", "model.image_size=240,320", "labels.radius_m=30",
               "batches=all_pairs", "batches.size=40"]  # fmt: skip
    assert read_recipe(file) == configure(experiments.get("msls_vgg16_gem_gcl"), changes)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("base = 'town_gclx'", "unknown recipe 'town_gclx'; did you mean 'town_gcl'"),
        ("base = 'town_gcl'\nstep = 3", "unknown field 'step'; did you mean 'steps'"),
        ("base = 'town_gcl'\n[loss]\ntype = 'gcl'", "unknown class 'gcl'"),
        ("base = 'town_gcl'\n[optimiser]\nschedule = 'poly'", "unknown optimiser.schedule 'poly'"),
        ("base = 'town_gcl'\n[batches]\nsize = -3", "size is -3"),
        ("epochs = 3", "dataset is not given"),
        ("= 3", "is not TOML"),
        ("type = 'Radius'", "a Radius is not a recipe"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path, content, says):
    (tmp_path / "mine.toml").write_text(content)
    with pytest.raises(InputError, match=says) as caught:
        read_recipe(tmp_path / "mine.toml")
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "mine.toml") in str(caught.value)


@pytest.mark.parametrize("name", ["7scenes_chess_resnet18_gcl", "7scenes_stairs_resnet34_gcl"])
def test_a_room_whose_views_all_overlap_takes_a_step(name, official, tmp_path, monkeypatch, capsys):
    """The official miniature's rooms are small: no two frames have ψ = 0, which strategy A asks for."""
    monkeypatch.setenv("COVIS_CACHE", str(tmp_path / "cache"))
    recipe = small(experiments.get(name))
    result = train(recipe, tmp_path / "run", data=official[recipe.dataset], resources=QUIET)
    assert result["step"] == 1
    assert "every pair of images overlaps: strategy 'A' draws ψ in (0, 0.5)" in capsys.readouterr().err
