"""`covis demo`: the main job on the simulated town."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Option

from covis.cli.options import Json, RecipeSet
from covis.cli.output import emit, table
from covis.cli.verbs import TRAIN, verb


@verb("demo", section=TRAIN, order=1)
def demo(
    output: Annotated[Path, Option("-o", "--out", help="Folder for everything the demo makes.")] = Path("demo"),
    seed: Annotated[int, Option(help="First of the two seeds.")] = 0,
    data: Annotated[Path | None, Option(help="Folder of the town (default: in the user's cache).")] = None,
    set_: RecipeSet = None,
    json: Json = False,
) -> None:
    """Run every step once on a simulated town, without downloads. From labels to a report; re-run to resume.

    \b
    Examples:
      covis demo
      covis demo -o /tmp/demo --seed 7 --json
    """
    from covis.demo import run_demo

    result = run_demo(output, seed, data=data, settings=set_ or [])
    text = f"{table([_recall_row(row) for row in result['table']])}\n\n{result['verdict']}\nreport: {result['report']}"
    emit(result, json, text, "covis index PHOTOS -o town.map, or covis train NAME -o runs/NAME (covis list recipes)")


def _recall_row(row: dict[str, Any]) -> dict[str, str]:
    from covis.evaluation.render import COMPARED_KS, name_of, over_seeds

    recalls = {name_of(f"recall@{k}").heading: over_seeds(row[f"values@{k}"]) for k in COMPARED_KS}
    return {"model": str(row["model"]), "seeds": str(row["seeds"]), **recalls}
