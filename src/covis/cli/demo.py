"""`covis demo`: the main job on the simulated town."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from covis.cli.common import WORKERS_HELP, Json, emit, table


def demo(
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of everything the demo makes.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="First of the two seeds.")] = 0,
    data: Annotated[Path | None, typer.Option(help="Folder of the town (default: in the user's cache).")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="FIELD=VALUE for every recipe, repeatable.")] = None,
    workers: Annotated[int | None, typer.Option(help=WORKERS_HELP)] = None,
    json: Json = False,
) -> None:
    """Label, train, embed, search, evaluate and report on a simulated town; no download. Resumes where it was.

    \b
    Examples:
      covis demo
      covis demo -o /tmp/demo --seed 7 --json
    """
    from covis.demo import run_demo

    result = run_demo(output, seed, data=data, settings=set_ or [], workers=workers)
    text = f"{table([_shown(row) for row in result['table']])}\n\n{result['verdict']}\nreport: {result['report']}"
    emit(result, json, text)


def _shown(row: dict[str, Any]) -> dict[str, str]:
    from covis.evaluation.render import COMPARED_KS, name_of, over_seeds

    recalls = {name_of(f"recall@{k}").heading: over_seeds(row[f"values@{k}"]) for k in COMPARED_KS}
    return {"model": str(row["model"]), "seeds": str(row["seeds"]), **recalls}
