"""`covis list`: what there is, by kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from typer import Argument, Option

from covis.cli.names import known_names
from covis.cli.options import Json
from covis.cli.output import emit, table
from covis.cli.verbs import INSTALLATION, verb
from covis.core.errors import unknown_name


@verb("list", section=INSTALLATION, order=1)
def list_names(
    kind: Annotated[str | None, Argument(help="What to list. [default: the kinds themselves]")] = None,
    match: Annotated[str, Option(help="Only names that contain this.")] = "",
    json: Json = False,
) -> None:
    """List datasets, benchmarks, recipes, models and other names.

    \b
    Examples:
      covis list
      covis list recipes
      covis list backbones --match dinov2
    """
    if kind is None:
        emit({name: about for name, (about, _) in LISTS.items()}, json, _kinds())
        return
    if kind not in LISTS:
        raise unknown_name("kind", kind, LISTS)
    listed = {name: about for name, about in LISTS[kind][1]().items() if match in name}
    emit(list(listed), json, _described(listed))


def _kinds() -> str:
    return table([{"kind": name, "covis list KIND shows": about} for name, (about, _) in LISTS.items()])


def _described(listed: dict[str, str]) -> str:
    width = min(40, max((len(name) for name in listed), default=0))
    return "\n".join(f"{name:<{width}}  {about}".rstrip() for name, about in listed.items())


START_WITH = {
    "town_quick": "start here: a minute, no data needed",
    "own_photos": "start here: your own photos, best",
    "own_photos_small": "start here: your own photos, small and fast",
    "msls_vgg16_gem_gcl": "start here: the method's main experiment",
}
"""Recipes that are listed first, and why."""


def _registered(kind: str) -> Callable[[], dict[str, str]]:
    """Name → what it is, of a registry."""

    def names() -> dict[str, str]:
        registered = known_names(kind)
        return {name: registered.about(name) for name in registered}

    return names


def _recipes() -> dict[str, str]:
    """Recipes by dataset, those to start with first."""
    about = _registered("recipe")()
    first = [name for name in START_WITH if name in about]
    rest = sorted((name for name in about if name not in first), key=lambda name: (about[name].partition(":")[0], name))
    return {name: about[name] + (f" ({START_WITH[name]})" if name in first else "") for name in (*first, *rest)}


def _backbones() -> dict[str, str]:
    from covis.models import backbone_names

    return dict.fromkeys(backbone_names(), "")


def _indexes() -> dict[str, str]:
    from covis.search import KINDS

    return {"exact": "every descriptor is looked at", **{name: kind.description for name, kind in KINDS.items()}}


LISTS: dict[str, tuple[str, Callable[[], dict[str, str]]]] = {
    "datasets": ("supported datasets, with their splits", _registered("dataset")),
    "benchmarks": ("named evaluation protocols", _registered("benchmark")),
    "recipes": ("training recipes, by dataset", _recipes),
    "backbones": ("networks to build a model from", _backbones),
    "rules": ("label rules", _registered("rule")),
    "models": ("published models, which every command takes by name", _registered("published model")),
    "batches": ("ways to compose training batches", _registered("kind of batches")),
    "losses": ("training losses", _registered("loss")),
    "augmentations": ("ways to change training images at random", _registered("augmentation")),
    "pools": ("poolings of feature maps into a descriptor", _registered("pooling")),
    "readers": ("formats of images with poses, recognised by their files", _registered("reader")),
    "rerankers": ("ways to re-rank results (covis evaluate --rerank)", _registered("re-ranker")),
    "indexes": ("kinds of index (covis index --kind)", _indexes),
    "tables": ("tables and figures that covis reproduce makes", _registered("table")),
}
"""What can be listed → its description, and its names with what they are."""
