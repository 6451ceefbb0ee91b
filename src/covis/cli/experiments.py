"""`covis sweep`, `reproduce`: recipes over seeds, with intervals, beside what was published."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from covis.cli.options import DataPath, Json, RecipeSet, existing, known_recipe, named
from covis.cli.output import emit
from covis.cli.output import table as text_table
from covis.cli.verbs import TRAIN, verb
from covis.core.errors import InputError


def _check_tables(given: list[str] | None) -> list[str] | None:
    if given != ["list"]:
        named("table")(given or [])
    return given


@verb("sweep", section=TRAIN, order=6)
def sweep(
    recipes: Annotated[list[str], Argument(callback=known_recipe, help="Names of `covis list recipes`, or files.")],
    output: Annotated[Path, Option("-o", "--out", help="Folder for all runs; re-run to resume.")],
    benchmark: Annotated[
        list[str], Option(callback=named("benchmark"), help="What each run is scored on, repeatable.")
    ],
    data: DataPath = None,
    seeds: Annotated[int, Option(help="Seeds 0 … N−1.")] = 3,
    set_: RecipeSet = None,
    vary: Annotated[
        list[str] | None, Option(help="FIELD=V1,V2,…: a row for each value, repeatable (all combinations).")
    ] = None,
    job: Annotated[
        str | None, Option(help="K/N: the K-th of N parts, for a cluster. [default: all, with the table]")
    ] = None,
    json: Json = False,
) -> None:
    """Train recipes × settings × seeds and summarise their scores. Each figure has a 95 % interval.

    \b
    Examples:
      covis sweep town_cl town_gcl --benchmark town --seeds 3 -o sweeps/losses
      covis sweep town_gcl --benchmark town --vary labels.measure=overlap,iou --vary loss.margin=0.5,0.7 -o sweeps/grid
      covis sweep town_cl town_gcl --benchmark town --seeds 3 -o sweeps/losses --job 2/6
    """
    from covis.experiments import get
    from covis.experiments.running import run_rows
    from covis.experiments.tables import Row, Table, markdown
    from covis.report.reproduction import gather_inputs, score_table
    from covis.training.recipe import configure

    rows = [
        Row(" ".join([name, *choice]), configure(get(name), [*(set_ or []), *choice]), tuple(benchmark))
        for name in recipes
        for choice in _combinations(vary or [])
    ]
    inputs = gather_inputs(rows, output, data)
    if job is not None:
        first, every = _job(job)
        mine = [(row, seed) for row in rows for seed in range(seeds)][first - 1 :: every]
        for row, seed in mine:
            [outcome] = run_rows([row], inputs, [seed])
            if outcome.missing:
                raise InputError(f"{row.label}, seed {seed}: {outcome.missing}")
        done = [f"{row.label}, seed {seed}" for row, seed in mine]
        emit(done, json, f"job {job}: {'; '.join(done) or 'nothing to do'}")
        return
    table = Table(f"Sweep of {', '.join(recipes)}", tuple(rows), seeds)
    outcomes, record = score_table("table", table, inputs, seeds)
    emit(record, json, f"{markdown(outcomes)}\n\n{output}: {len(rows)} rows × {seeds} seeds", f"covis compare {output}")


@verb("reproduce", section=TRAIN, order=7)
def reproduce(
    tables: Annotated[
        list[str] | None,
        Argument(callback=_check_tables, help="Tables and figures; `list` shows them, with cost and data."),
    ] = None,
    output: Annotated[Path | None, Option("-o", "--out", help="Folder for all runs.")] = None,
    data: DataPath = None,
    rows: Annotated[list[str] | None, Option(help="Only rows whose name contains this, repeatable.")] = None,
    seeds: Annotated[int | None, Option(help="Seeds 0 … N−1. [default: as the table says]")] = None,
    set_: RecipeSet = None,
    scores: Annotated[
        Path | None, Option(callback=existing, help="Scores from servers: the output's scores.csv, filled in.")
    ] = None,
    model: Annotated[
        list[str] | None, Option(help="NAME=FOLDER of an off-the-shelf model (netvlad), repeatable.")
    ] = None,
    json: Json = False,
) -> None:
    """Reproduce published tables and figures. Rows whose data is there are run and shown beside the published figures.

    Re-run to resume. Tables in one output folder share their runs. Where a server keeps the ground truth, submission
    files are written; put the server's scores into scores.csv in the folder.

    \b
    Examples:
      covis reproduce list --data msls=/data/msls
      covis reproduce table1 table10 --data msls=/data/msls -o paper
      covis reproduce table3 --rows VGG --rows ResNet50 --data msls=/data/msls --data pitts30k=/data/pitts -o paper
      covis reproduce table6 --data msls=/data/msls --data cmu_extended=/data/cmu -o paper --scores paper/scores.csv
      covis reproduce figure_whitening --data msls=/data/msls -o paper
      covis reproduce town_table1 -o tables --seeds 3
    """
    names = tables or []
    listing = names in ([], ["list"])
    if output is None and not listing:
        raise InputError(f"give a folder for the runs of {', '.join(names)}: -o FOLDER")
    from covis.experiments.tables import TABLES, choose_rows
    from covis.report.reproduction import describe_table, gather_inputs, reproduce_table
    from covis.training.recipe import configure

    if listing or output is None:
        listed = [describe_table(name, data) for name in TABLES]
        columns = ("table", "rows", "runs", "hours", "data", "missing", "title")
        emit(listed, json, text_table([{k: _text(e[k]) for k in columns} for e in listed]))
        return
    chosen = {}
    for name in names:
        table = TABLES[name]()
        kept = choose_rows(table.rows, rows or [])
        changed = [r if r.recipe is None else replace(r, recipe=configure(r.recipe, set_ or [])) for r in kept]
        chosen[name] = replace(table, rows=tuple(changed))
    every = [row for table in chosen.values() for row in table.rows]
    inputs = gather_inputs(every, output, data, scores=scores, models=model or [])
    records = {
        name: reproduce_table(name, table, inputs, seeds or table.seeds, bool(set_)) for name, table in chosen.items()
    }
    texts = [entry.pop("text") for entry in records.values()]
    result = records if len(records) > 1 else records[names[0]]
    emit(result, json, "\n\n".join([*texts, f"written to {output}"]))


def _job(text: str) -> tuple[int, int]:
    """K and N of K/N."""
    match = re.fullmatch("([1-9][0-9]*)/([1-9][0-9]*)", text)
    if match is None or int(match[1]) > int(match[2]):
        raise InputError(f"--job {text}: write K/N with K from 1 to N, such as 3/24")
    return int(match[1]), int(match[2])


def _text(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)


def _combinations(vary: list[str]) -> list[list[str]]:
    choices = []
    for entry in vary:
        field, equals, values = entry.partition("=")
        if not equals:
            raise InputError(f"--vary {entry!r} has no '='; write FIELD=V1,V2")
        choices.append([f"{field}={value}" for value in re.split(r",(?![^\[]*\])", values)])  # not inside lists
    return [list(combination) for combination in itertools.product(*choices)]
