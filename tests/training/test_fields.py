"""Settings on nested recipes."""

from dataclasses import dataclass, field

import pytest

from covis.errors import InputError
from covis.training.recipe import apply, describe


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
    assert apply(Outer(), ["loss=x"], {"loss": {"x": 5}}).loss == 5
    with pytest.raises(InputError, match="unknown loss 'y'"):
        apply(Outer(), ["loss=y"], {"loss": {"x": 5}})


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("inner.rte=1", "did you mean 'inner.rate'"),
        ("inner.rate=fast", "expected float, got str"),
        ("inner.flag=1", "expected bool, got int"),
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
    from covis import experiments
    from covis.training.recipe import describe_recipe, restore_recipe

    for name in experiments.RECIPES:
        recipe = experiments.get(name)
        assert restore_recipe(describe_recipe(recipe)) == recipe, name
