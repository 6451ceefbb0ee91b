"""`covis sweep` and `covis reproduce`: recipes over seeds, with intervals, beside what was published."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covis.cli.common import Data, Json, emit
from covis.errors import InputError

if TYPE_CHECKING:
    from covis.experiments.tables import Row

Output = Annotated[Path, typer.Option("-o", "--output", help="Folder of all runs; the same command goes on there.")]
Workers = Annotated[int | None, typer.Option(help="Decoding processes (default: one a core, at most 8).")]
_BETWEEN_VALUES = re.compile(r",(?![^\[]*\])")
"""Commas that are not inside a list."""


def sweep(
    recipes: Annotated[list[str], typer.Argument(help="Names from `covis list recipes`.")],
    output: Output,
    benchmark: Annotated[list[str], typer.Option(help="What each run is scored on, repeatable.")],
    data: Data = None,
    seeds: Annotated[int, typer.Option(help="Seeds 0 … N−1.")] = 3,
    set_: Annotated[list[str] | None, typer.Option("--set", help="FIELD=VALUE for every run, repeatable.")] = None,
    vary: Annotated[
        list[str] | None, typer.Option(help="FIELD=V1,V2,…: a row for each value, repeatable (all combinations).")
    ] = None,
    workers: Workers = None,
    json: Json = False,
) -> None:
    """Train recipes × settings × seeds, score each, and sum up with 95 % intervals.

    \b
    Examples:
      covis sweep town_cl town_gcl --benchmark town --seeds 3 -o sweeps/losses
      covis sweep town_gcl --benchmark town --vary labels.measure=overlap,iou --vary loss.margin=0.5,0.7 -o sweeps/grid
    """
    from covis.experiments import get
    from covis.experiments.tables import Row
    from covis.training.recipe import configure

    rows = []
    for name in recipes:
        for choice in _combinations(vary or []):
            label = " ".join([name, *choice])
            rows.append(Row(label, configure(get(name), [*(set_ or []), *choice]), tuple(benchmark)))
    _run(f"Sweep of {', '.join(recipes)}", rows, output, data, seeds, workers, json)


def reproduce(
    table: Annotated[str, typer.Argument(help="A table's name; `list` shows them and what each needs.")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Folder of all runs.")] = None,
    data: Data = None,
    seeds: Annotated[int | None, typer.Option(help="Seeds 0 … N−1 (default: as the table says).")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="FIELD=VALUE for every run, repeatable.")] = None,
    workers: Workers = None,
    json: Json = False,
) -> None:
    """Run a published table (or one of our own): what the data allows, resumed, beside the published figures.

    \b
    Examples:
      covis reproduce list
      covis reproduce table1 --data /data/msls -o tables/table1
      covis reproduce town_table1 -o tables/town1 --seeds 3
    """
    from dataclasses import replace

    from covis.experiments.tables import TABLES
    from covis.training.recipe import configure

    if table == "list":
        listed = [_needs(name) for name in TABLES]
        emit(listed, json, "\n".join(f"{e['table']:<16} {e['title']}; needs {', '.join(e['needs'])}" for e in listed))
        return
    chosen = TABLES[table]()
    rows = [replace(row, recipe=configure(row.recipe, set_ or [])) for row in chosen.rows]
    if output is None:
        raise InputError(f"give a folder for the runs of {table}: -o FOLDER")
    _run(chosen.title, rows, output, data, seeds or chosen.seeds, workers, json, table)


def _run(
    title: str,
    rows: list[Row],
    output: Path,
    data: list[str] | None,
    seeds: int,
    workers: int | None,
    json: bool,
    name: str = "table",
) -> None:
    from covis.datasets import given_paths
    from covis.experiments.tables import lacking, markdown, needs, run_rows, write_outcomes
    from covis.training.run import Resources

    asked = {dataset for row in rows for dataset in needs(row)}
    trained = {row.recipe.dataset for row in rows}
    paths = given_paths(data, trained if len(trained) == 1 else asked)
    reasons = [lacking(row, paths) for row in rows]
    if all(reasons):
        raise InputError(f"no row can be run: {reasons[0]}")
    numbers = list(range(seeds))
    outcomes = run_rows(rows, output, data=paths, seeds=numbers, resources=Resources(workers))
    told = write_outcomes(output, title, outcomes, numbers, name)
    emit(told, json, markdown(outcomes))


def _needs(name: str) -> dict[str, Any]:
    from covis.experiments.tables import TABLES, needs

    table = TABLES[name]()
    found = sorted({dataset for row in table.rows for dataset in needs(row)})
    return {"table": name, "title": table.title, "rows": len(table.rows), "needs": found, "notes": list(table.notes)}


def _combinations(vary: list[str]) -> list[list[str]]:
    choices = []
    for entry in vary:
        field, equals, values = entry.partition("=")
        if not equals:
            raise InputError(f"--vary {entry!r} has no '='; write FIELD=V1,V2")
        choices.append([f"{field}={value}" for value in _BETWEEN_VALUES.split(values)])
    return [list(combination) for combination in itertools.product(*choices)]
