"""`covis list`: what there is, by kind."""

from __future__ import annotations

from typing import Annotated

import typer

from covis.cli.common import Json

KINDS = ("datasets", "benchmarks", "recipes", "backbones", "losses")


def list_names(
    kind: Annotated[str, typer.Argument(help=" | ".join(KINDS))],
    match: Annotated[str, typer.Option(help="Only names that contain this.")] = "",
    json: Json = False,
) -> None:
    """List what covis knows by name.

    \b
    Examples:
      covis list recipes
      covis list backbones --match dinov2
    """
    raise NotImplementedError
