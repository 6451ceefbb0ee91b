"""`covis sweep`, `reproduce`: recipes over seeds, with intervals, beside what was published."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covis.cli.options import DataPath, Json, RecipeSet, existing, known_recipe, named
from covis.cli.output import emit
from covis.cli.output import table as text_table
from covis.cli.verbs import TRAIN, verb
from covis.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from covis.experiments.tables import Inputs, Outcome, Row, Table


def _check_tables(given: list[str] | None) -> list[str] | None:
    if given != ["list"]:
        named("table")(given or [])
    return given


Output = Annotated[Path, typer.Option("-o", "--out", help="Folder for all runs; re-run to resume.")]
_BETWEEN_VALUES = re.compile(r",(?![^\[]*\])")
"""Commas that are not inside a list."""
SCORES = "scores.csv"


@verb("sweep", section=TRAIN, order=6)
def sweep(
    recipes: Annotated[
        list[str], typer.Argument(callback=known_recipe, help="Names from `covis list recipes`, or files.")
    ],
    output: Output,
    benchmark: Annotated[
        list[str], typer.Option(callback=named("benchmark"), help="What each run is scored on, repeatable.")
    ],
    data: DataPath = None,
    seeds: Annotated[int, typer.Option(help="Seeds 0 … N−1.")] = 3,
    set_: RecipeSet = None,
    vary: Annotated[
        list[str] | None, typer.Option(help="FIELD=V1,V2,…: a row for each value, repeatable (all combinations).")
    ] = None,
    json: Json = False,
) -> None:
    """Train recipes × settings × seeds and summarise their scores. Each figure has a 95 % interval.

    \b
    Examples:
      covis sweep town_cl town_gcl --benchmark town --seeds 3 -o sweeps/losses
      covis sweep town_gcl --benchmark town --vary labels.measure=overlap,iou --vary loss.margin=0.5,0.7 -o sweeps/grid
    """
    from covis.experiments import get
    from covis.experiments.tables import Row, Table, markdown
    from covis.training.recipe import configure

    rows = []
    for name in recipes:
        for choice in _combinations(vary or []):
            label = " ".join([name, *choice])
            rows.append(Row(label, configure(get(name), [*(set_ or []), *choice]), tuple(benchmark)))
    table = Table(f"Sweep of {', '.join(recipes)}", tuple(rows), seeds)
    inputs = _inputs(rows, output, data)
    outcomes, record = _scored("table", table, inputs, seeds)
    emit(record, json, f"{markdown(outcomes)}\n\n{output}: {len(rows)} rows × {seeds} seeds", f"covis compare {output}")


@verb("reproduce", section=TRAIN, order=7)
def reproduce(
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            callback=_check_tables, help="Tables and figures by name; `list` shows them, their cost and data."
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--out", help="Folder for all runs.")] = None,
    data: DataPath = None,
    rows: Annotated[list[str] | None, typer.Option(help="Only rows whose name contains this, repeatable.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Seeds 0 … N−1 (default: as the table says).")] = None,
    set_: RecipeSet = None,
    scores: Annotated[
        Path | None,
        typer.Option(callback=existing, help="Scores from servers: the output folder's scores.csv, filled in."),
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="NAME=FOLDER of an off-the-shelf model (netvlad), repeatable.")
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
    listing = not names or names == ["list"]
    if output is None and not listing:
        raise InputError(f"give a folder for the runs of {', '.join(names)}: -o FOLDER")
    from covis.experiments.tables import TABLES, choose_rows
    from covis.training.recipe import configure

    if listing or output is None:
        listed = [_listed(name, data) for name in TABLES]
        columns = ("table", "rows", "runs", "hours", "data", "missing", "title")
        emit(listed, json, text_table([{k: _text(e[k]) for k in columns} for e in listed]))
        return
    chosen = {name: TABLES[name]() for name in names}
    for name, table in chosen.items():
        kept = [
            row if row.recipe is None else replace(row, recipe=configure(row.recipe, set_ or []))
            for row in choose_rows(table.rows, rows or [])
        ]
        chosen[name] = replace(table, rows=tuple(kept))
    every = [row for table in chosen.values() for row in table.rows]
    inputs = _inputs(every, output, data, scores=scores, models=model or [])
    records = {
        name: _reproduced(name, table, inputs, seeds or table.seeds, bool(set_)) for name, table in chosen.items()
    }
    texts = [entry.pop("text") for entry in records.values()]
    emit(
        next(iter(records.values())) if len(records) == 1 else records,
        json,
        "\n\n".join([*texts, f"written to {output}"]),
    )


def _inputs(
    rows: Sequence[Row],
    output: Path,
    data: list[str] | None,
    *,
    scores: Path | None = None,
    models: Sequence[str] = (),
) -> Inputs:
    """What the rows run on; an error if none of them can run."""
    from covis.datasets import given_paths
    from covis.evaluation.submissions import Scores
    from covis.experiments.tables import Inputs, lacking, needs
    from covis.training.run import Resources

    asked = {dataset for row in rows for dataset in needs(row)}
    trained = {row.recipe.dataset for row in rows if row.recipe is not None}
    files = [path for path in (output / SCORES, scores) if path is not None and (path == scores or path.is_file())]
    if scores is not None and not scores.is_file():
        raise InputError(f"{scores} does not exist; give the scores.csv that an earlier run wrote, filled in")
    inputs = Inputs(
        output,
        given_paths(data, trained if len(trained) == 1 else asked),
        models={name: Path(path) for name, _, path in (entry.partition("=") for entry in models)},
        scores=Scores.read(*files),
        resources=Resources(),
    )
    reasons = [lacking(row, inputs) for row in rows]
    if all(reasons):
        raise InputError(f"no row can be run: {reasons[0]}")
    return inputs


_CHANGED = "settings were changed by --set: not the published recipe"


def _reproduced(name: str, table: Table, inputs: Inputs, seeds: int, changed: bool) -> dict[str, Any]:
    """One table or figure, written to the output folder; `text` is what a person reads."""
    from covis.experiments.tables import compared_markdown, markdown

    if table.cost:
        return _measured(name, table, inputs, changed)
    table = replace(table, notes=(*table.notes, *([_CHANGED] if changed else [])))
    outcomes, record = _scored(name, table, inputs, seeds)
    record["text"] = f"# {table.title}\n\n{markdown(outcomes, table.notes)}"
    if "differences" in record:
        record["text"] += "\n\n" + compared_markdown(record["differences"])
    if table.figure:
        record["pictures"] = _drawn(name, table, outcomes, inputs)
        record["text"] += "\n\n" + "\n".join(record["pictures"])
    return record


def _scored(name: str, table: Table, inputs: Inputs, seeds: int) -> tuple[list[Outcome], dict[str, Any]]:
    from covis.experiments.running import run_rows
    from covis.experiments.tables import with_means, write_outcomes

    numbers = list(range(seeds))
    outcomes = with_means(run_rows(table.rows, inputs, numbers), table)
    record = write_outcomes(inputs.output, table.title, outcomes, numbers, name, table.notes, table.against)
    if inputs.scores.values:
        inputs.scores.write(inputs.output / SCORES)
    return outcomes, record


def _measured(name: str, table: Table, inputs: Inputs, changed: bool) -> dict[str, Any]:
    from covis.core import artifacts
    from covis.core.files import write_text
    from covis.experiments.running import cost_table, measure_rows, part_of_training
    from covis.experiments.tables import lacking

    entries = measure_rows(table.rows, inputs)
    measured = [row.recipe for row in table.rows if row.recipe is not None and not lacking(row, inputs)]
    splits = dict.fromkeys((recipe.dataset, recipe.split) for recipe in measured)
    parts = [part_of_training(dataset, split, inputs.data.get(dataset)) for dataset, split in splits]
    differs = next(filter(None, [*parts, _CHANGED if changed else ""]), "")
    record = {"title": table.title, "command": artifacts.command(), "versions": artifacts.versions(), "rows": entries}
    artifacts.write_json(inputs.output / f"{name}.json", record, sealed=False)
    text = f"# {table.title}\n\n{cost_table(entries, differs)}"
    write_text(inputs.output / f"{name}.md", text + "\n")
    return {**record, "text": text}


def _drawn(name: str, table: Table, outcomes: Sequence[Outcome], inputs: Inputs) -> list[str]:
    """The table's picture, one for each benchmark that has evaluations; warns of what cannot be drawn."""
    from covis.core.progress import warn
    from covis.evaluation import BENCHMARKS
    from covis.evaluation.result import Evaluation
    from covis.report.figures import FIGURES
    from covis.report.style import save

    done = sorted((o for o in outcomes if o.runs or o.evaluations), key=lambda o: o.row.name not in table.against[:1])
    benchmarks = list(dict.fromkeys(b for o in done for b in o.evaluations))
    if not done or (not benchmarks and any(row.benchmarks for row in table.rows)):
        warn(f"{inputs.output / name}.svg is not drawn: none of its rows was scored")
        return []
    drawn = []
    for benchmark in benchmarks or [""]:
        groups: dict[str, list[Evaluation]] = {}
        for o in done:
            for path in o.evaluations.get(benchmark, []):
                evaluation = Evaluation.open(path)
                label = evaluation.label if table.figure == "sizes" else o.row.name
                groups.setdefault(label, []).append(evaluation)
        runs = {o.row.name: o.runs for o in done if o.runs}
        dataset = BENCHMARKS[benchmark].dataset if benchmark else _trained_on(table)
        file = inputs.output / (f"{name}_{benchmark}.svg" if len(benchmarks) > 1 else f"{name}.svg")
        try:
            save(FIGURES[table.figure](groups, runs, inputs.data.get(dataset)), file)
            drawn.append(str(file))
        except InputError as error:
            warn(f"{file} is not drawn: {error}")
    return drawn


def _trained_on(table: Table) -> str:
    return next(row.recipe.dataset for row in table.rows if row.recipe is not None)


def _listed(name: str, data: list[str] | None) -> dict[str, Any]:
    """A table, its runs with the hours that are published for them, and which of its data is given."""
    from covis.datasets import given_paths, is_given
    from covis.experiments.paper import published_hours
    from covis.experiments.tables import TABLES, needs

    table = TABLES[name]()
    wanted = sorted({dataset for row in table.rows for dataset in needs(row)})
    paths = given_paths([entry for entry in data or [] if "=" in entry], wanted)
    runs = {row.key: row.recipe for row in table.rows if row.recipe is not None}
    hours = [published_hours(recipe) for recipe in runs.values()]
    known = sum(h for h in hours if h is not None)
    return {
        "table": name,
        "title": table.title,
        "rows": len(table.rows),
        "runs": len(runs),
        "hours": "23 steps per row" if table.cost else f"{known:g} GPU-hours" if known else "",
        "data": [dataset for dataset in wanted if is_given(dataset, paths)],
        "missing": [dataset for dataset in wanted if not is_given(dataset, paths)],
        "needs": wanted,
        "notes": list(table.notes),
    }


def _text(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)


def _combinations(vary: list[str]) -> list[list[str]]:
    choices = []
    for entry in vary:
        field, equals, values = entry.partition("=")
        if not equals:
            raise InputError(f"--vary {entry!r} has no '='; write FIELD=V1,V2")
        choices.append([f"{field}={value}" for value in _BETWEEN_VALUES.split(values)])
    return [list(combination) for combination in itertools.product(*choices)]
