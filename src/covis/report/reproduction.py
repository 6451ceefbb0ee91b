"""Tables and figures of the paper, and sweeps: run, scored, written and drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from covis.core import artifacts
from covis.core.errors import InputError
from covis.core.files import write_text
from covis.core.progress import warn
from covis.datasets import given_paths, is_given
from covis.evaluation import BENCHMARKS
from covis.evaluation.result import Evaluation
from covis.evaluation.submissions import Scores
from covis.experiments.paper import OFF_THE_SHELF, published_hours
from covis.experiments.running import cost_table, measure_rows, part_of_training, run_rows
from covis.experiments.tables import (
    TABLES,
    Inputs,
    Outcome,
    Row,
    Table,
    compared_markdown,
    lacking,
    markdown,
    needs,
    with_means,
    write_outcomes,
)
from covis.report.printed import cost_layout, printed_table, write_printed
from covis.training.run import Resources

SCORES = "scores.csv"
_CHANGED = "settings were changed by --set: not the published recipe"


def gather_inputs(
    rows: Sequence[Row],
    output: Path,
    data: list[str] | None,
    *,
    scores: Path | None = None,
    models: Sequence[str] = (),
) -> Inputs:
    """What the rows run on; an error if none of them can run."""
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
    for name, path in inputs.models.items():
        _check_model(name, path)
    reasons = [lacking(row, inputs) for row in rows]
    if all(reasons):
        raise InputError(f"no row can be run: {reasons[0]}")
    return inputs


def _check_model(name: str, path: Path) -> None:
    """Refuses a model of another kind than the rows for `name` are about."""
    if name != OFF_THE_SHELF:
        raise InputError(f"--model {name}={path}: no row takes such a model; the name is {OFF_THE_SHELF}")
    config = path / "config.json"
    if not config.is_file():
        raise InputError(f"--model {name}={path}: that is no model folder; make one with `covis model import`")
    pool = str(artifacts.read_json(config).get("pool"))
    if not pool.startswith(OFF_THE_SHELF):
        raise InputError(
            f"--model {name}={path}: its pooling is {pool}, not NetVLAD; import netvlad64_vgg16 and give that"
        )


def reproduce_table(name: str, table: Table, inputs: Inputs, seeds: int, changed: bool) -> dict[str, Any]:
    """One table or figure, written to the output folder; `text` is what a person reads."""
    if table.cost:
        return _measure_table(name, table, inputs, changed)
    table = replace(table, notes=(*table.notes, *([_CHANGED] if changed else [])))
    outcomes, record = score_table(name, table, inputs, seeds)
    record["text"] = f"# {table.title}\n\n{markdown(outcomes, table.notes)}"
    if "differences" in record:
        record["text"] += "\n\n" + compared_markdown(record["differences"])
    layout = None if table.figure else printed_table(name, table.title, outcomes)
    if layout is not None:
        write_printed(layout, inputs.output / name)
    if table.figure:
        record["pictures"] = draw_figure(name, table, outcomes, inputs)
        record["text"] += "\n\n" + "\n".join(record["pictures"])
    return record


def score_table(name: str, table: Table, inputs: Inputs, seeds: int) -> tuple[list[Outcome], dict[str, Any]]:
    """A table or sweep, scored and written as Markdown and JSON; the outcomes, and what was written."""
    numbers = list(range(seeds))
    outcomes = with_means(run_rows(table.rows, inputs, numbers), table)
    record = write_outcomes(inputs.output, table.title, outcomes, numbers, name, table.notes, table.against)
    if inputs.scores.values:
        inputs.scores.write(inputs.output / SCORES)
    return outcomes, record


def _measure_table(name: str, table: Table, inputs: Inputs, changed: bool) -> dict[str, Any]:
    """A table of costs: each row measured for a few steps."""
    entries = measure_rows(table.rows, inputs)
    measured = [row.recipe for row in table.rows if row.recipe is not None and not lacking(row, inputs)]
    splits = dict.fromkeys((recipe.dataset, recipe.split) for recipe in measured)
    parts = [part_of_training(dataset, split, inputs.data.get(dataset)) for dataset, split in splits]
    differs = next(filter(None, [*parts, _CHANGED if changed else ""]), "")
    record = {"title": table.title, "command": artifacts.command(), "versions": artifacts.versions(), "rows": entries}
    artifacts.write_json(inputs.output / f"{name}.json", record)
    text = f"# {table.title}\n\n{cost_table(entries, differs)}"
    write_text(inputs.output / f"{name}.md", text + "\n")
    write_printed(cost_layout(table.title, entries), inputs.output / name)
    return {**record, "text": text}


def draw_figure(name: str, table: Table, outcomes: Sequence[Outcome], inputs: Inputs) -> list[str]:
    """The table's picture, one for each benchmark that has evaluations; warns of what cannot be drawn."""
    from covis.report.figures import FIGURES  # matplotlib takes a second to import
    from covis.report.study import Study
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
            save(FIGURES[table.figure].draw(Study(groups, runs, inputs.data.get(dataset))), file)
            drawn.append(str(file))
        except InputError as error:
            warn(f"{file} is not drawn: {error}")
    return drawn


def _trained_on(table: Table) -> str:
    return next(row.recipe.dataset for row in table.rows if row.recipe is not None)


def describe_table(name: str, data: list[str] | None) -> dict[str, Any]:
    """A table, its runs with the hours that are published for them, and which of its data is given."""
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
