"""`covis list`: what there is, by kind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from covis.cli.common import Json, emit
from covis.errors import unknown_name


def list_names(
    kind: Annotated[str, typer.Argument(help="datasets | benchmarks | recipes | backbones | losses")],
    match: Annotated[str, typer.Option(help="Only names that contain this.")] = "",
    json: Json = False,
) -> None:
    """List what covis knows by name.

    \b
    Examples:
      covis list recipes
      covis list backbones --match dinov2
    """
    if kind not in KINDS:
        raise unknown_name("kind", kind, KINDS)
    names = [name for name in KINDS[kind]() if match in name]
    emit(names, json, "\n".join(names))


def _datasets() -> Iterable[str]:
    from covis.datasets import DATASETS

    return DATASETS


def _benchmarks() -> Iterable[str]:
    from covis.evaluation import BENCHMARKS

    return BENCHMARKS


def _recipes() -> Iterable[str]:
    from covis.experiments import RECIPES

    return RECIPES


def _backbones() -> Iterable[str]:
    from covis.models import backbone_names

    return backbone_names()


def _losses() -> Iterable[str]:
    from covis.losses import LOSSES

    return sorted(LOSSES)


KINDS = {
    "datasets": _datasets,
    "benchmarks": _benchmarks,
    "recipes": _recipes,
    "backbones": _backbones,
    "losses": _losses,
}
