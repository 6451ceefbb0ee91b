"""Settings on nested recipes."""

from dataclasses import dataclass, field, replace

import pytest

from covis import experiments
from covis.core.errors import InputError
from covis.core.settings import apply, describe
from covis.labels import Radius
from covis.losses import Triplet
from covis.sampling import Tuples
from covis.training.recipe import Optimiser, configure, describe_recipe, restore_recipe


@dataclass(frozen=True)
class Inner:
    rate: float = 0.1
    name: str = "sgd"
    flag: bool = False


@dataclass(frozen=True)
class Outer:
    inner: Inner = field(default_factory=Inner)
    size: tuple[int, int] = (4, 5)
    steps: int | None = None
    loss: object = None


def test_settings_reach_nested_fields_with_their_type():
    out = apply(Outer(), ["inner.rate=1", "inner.flag=true", "size=[7, 8]", "steps=30", "inner.name=adam"], {})
    assert out == Outer(Inner(1.0, "adam", True), (7, 8), 30)
    assert isinstance(out.inner.rate, float)


def test_a_field_with_choices_takes_a_whole_object_by_name():
    assert apply(Outer(), ["loss=x"], {"loss": {"x": Inner}}).loss == Inner()
    with pytest.raises(InputError, match="unknown loss 'y'"):
        apply(Outer(), ["loss=y"], {"loss": {"x": Inner}})


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("inner.rte=1", "did you mean 'inner.rate'"),
        ("inner.rate=fast", "expected a number"),
        ("inner.flag=1", "expected true or false"),
        ("inner.rate.x=1", "plain value"),
        ("steps", "no '='"),
    ],
)
def test_wrong_settings_are_refused_with_a_hint(setting, message):
    with pytest.raises(InputError, match=message):
        apply(Outer(), [setting], {})


def test_description_carries_class_names():
    told = describe(Outer())
    assert told["type"] == "Outer"
    assert told["inner"] == {"type": "Inner", "rate": 0.1, "name": "sgd", "flag": False}
    assert told["size"] == [4, 5]


def test_a_described_recipe_comes_back_the_same():
    for name in experiments.RECIPES:
        recipe = experiments.get(name)
        assert restore_recipe(describe_recipe(recipe)) == recipe, name


def test_parts_that_depend_on_each_other_change_together():
    recipe = experiments.get("town_gcl")
    changed = configure(recipe, ["loss=triplet", "batches=tuples", "batches.negatives=3", "labels=radius"])
    assert (changed.loss, changed.batches, changed.labels) == (Triplet(), Tuples(negatives=3), Radius())
    composed = configure(recipe, ["batches.composed_by=radius", "batches.composed_by.radius_m=9"])
    assert composed.batches.composed_by == Radius(9.0)
    with pytest.raises(InputError, match="set batches=tuples as well"):
        configure(recipe, ["loss=triplet"])
    with pytest.raises(InputError, match=r"set batches.composed_by=\w+ first"):
        configure(recipe, ["batches.composed_by.radius_m=9"])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("optimiser.schedule=poly", "optimiser.schedule=poly: expected step, cosine or linear"),
        ("precision=float8", "precision=float8: expected float32, bfloat16 or float16"),
        ("optimiser.learning_rate=-1", "learning_rate is -1.0; it must be above 0"),
        ("optimiser.learning_rate=null", "expected a number"),
        ("optimiser.learning_rate=NaN", "expected a number"),
        ("optimiser.warmup=2", "warmup is 2"),
        ("batches.size=0", "size is 0; it must be at least 1"),
        ("batches.size=2.5", "expected a whole number"),
        ("batches.strategy=E", "unknown batch strategy 'E'"),
        ("batches=everything", "unknown batches 'everything'"),
        ("validations=-1", "validations is -1"),
        ("whiten=null", "whiten=null: expected a whole number"),
        ("loss.margin=0", "margin is 0.0; it must be above 0"),
        ("labels.fov_deg=400", "fov_deg is 400"),
        ("labels=nothing", "unknown labels 'nothing'"),
        ("labels=graph", "labels.path is not given"),
        ("optimiser=adamw", "expected Optimiser"),
        ("dataset=mslls", "unknown dataset 'mslls'; did you mean 'msls'"),
    ],
)
def test_values_are_checked_when_a_recipe_is_made(setting, message):
    with pytest.raises(InputError, match=message):
        configure(experiments.get("town_gcl"), [setting])


def test_python_finds_the_same_faults():
    recipe = experiments.get("town_gcl")
    for change, message in (
        ({"epochs": None}, "epochs is null; expected a whole number"),
        ({"precision": "half"}, "unknown precision 'half'"),
        ({"steps": 1.5}, "steps is 1.5"),
        ({"cache_gb": float("inf")}, "cache_gb is inf"),
    ):
        with pytest.raises(InputError, match=message):
            replace(recipe, **change)
    with pytest.raises(InputError, match=r"unknown optimiser.schedule 'poly'"):
        Optimiser(schedule="poly")


def test_none_and_lists_are_understood_without_brackets():
    recipe = configure(experiments.get("msls_vgg16_gem_gcl"), ["model.weights=none", "model.image_size=240,320"])
    assert (recipe.model.weights, recipe.model.image_size) == (None, (240, 320))
    assert configure(recipe, ["model.levels=4,5", "labels.radius_m=30,60"]).labels.radius_m == (30, 60)
