"""What training costs (Table 5): measured over some steps of each recipe, each in a process of its own for its memory."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from covis import artifacts, datasets
from covis.errors import InputError
from covis.evaluation.published import rows as printed_rows
from covis.experiments.tables import Inputs, Row, lacking
from covis.progress import say, warn
from covis.training.run import COST_STEPS, Cost, measure

COST = "cost.json"


def measure_rows(rows: Sequence[Row], inputs: Inputs, *, steps: int = COST_STEPS) -> list[dict[str, Any]]:
    """The cost of each row's recipe, or why it could not be measured."""
    entries = []
    for row in rows:
        reason = lacking(row, inputs)
        entry: dict[str, Any] = {"row": row.name}
        if not reason and row.recipe is not None:
            try:
                entry |= _measured(row, inputs, steps)
                entry["epochs"] = row.recipe.epochs
            except Exception as error:  # one row must not end the table
                reason = str(error) if isinstance(error, InputError) else f"failed with {type(error).__name__}: {error}"
        if reason:
            warn(f"{row.name}: not measured, {reason}")
            entry["missing"] = reason
        entries.append(entry)
    return entries


def _measured(row: Row, inputs: Inputs, steps: int) -> dict[str, Any]:
    folder = inputs.output / "costs" / f"{row.slug}-{row.key}"
    if (folder / COST).is_file():
        say(f"{row.name}: measured already")
        return dict(artifacts.read_json(folder / COST))
    assert row.recipe is not None
    say(f"{row.name}: measuring {steps} steps")
    path = inputs.data.get(row.recipe.dataset)
    workers = None if inputs.resources is None else inputs.resources.workers
    folder.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        cost: Cost = pool.submit(measure, row.recipe, folder / "run", path, 0, workers, steps=steps).result()
    entry = {**asdict(cost), "hours_per_epoch": cost.hours_per_epoch}
    artifacts.write_json(folder / COST, entry, sealed=False)
    return entry


def is_whole(dataset: str, split: str, path: Path | None) -> bool:
    """Whether a training split is the published one, by its counts and groups."""
    facts, images = datasets.DATASETS[dataset], datasets.load(dataset, path, split).queries
    published = facts.published.get(f"{split}/queries", len(images))
    return len(images) == published and len(images.group_names) == facts.groups.get(split, len(images.group_names))


def cost_table(entries: Sequence[dict[str, Any]], whole: bool) -> str:
    """As Markdown; what was published stands beside it only where the training set is the published one."""
    printed = {row["model"]: row for row in printed_rows("table5_training_cost")} if whole else {}
    head = ["model", "peak GiB", "s / 1,000 pairs", "mining s / 1,000 pairs", "pairs an epoch", "h an epoch*", "epochs"]
    head += ["h in all*", *(("published: memory", "epochs", "an epoch", "to converge") if printed else ())]
    lines = [head, ["---", *("---:" for _ in head[1:])]]
    for e in entries:
        if "missing" in e:
            lines.append([e["row"], f"not measured: {e['missing']}", *("" for _ in head[2:])])
            continue
        cells = [
            f"{e['peak_gib']:.2f}",
            f"{e['seconds_per_1000_pairs']:.1f}",
            f"{e['mining_seconds_per_1000_pairs']:.1f}",
        ]
        cells += [f"{e['pairs_per_epoch']:,}", f"{e['hours_per_epoch']:.2f}", str(e["epochs"])]
        cells.append(f"{e['hours_per_epoch'] * e['epochs']:.2f}")
        told = printed.get(e["row"], {})
        cells += (
            [told.get(k, "") for k in ("gpu_memory", "epochs", "time_per_epoch", "time_to_converge")] if printed else []
        )
        lines.append([e["row"], *cells])
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    measured = [e for e in entries if "missing" not in e]
    where = f"{measured[0]['steps']} steps on {measured[0]['device']}" if measured else "nothing"
    notes = [f"* extrapolated from {where}; memory is the GPU's peak, or the process's where there is none"]
    notes.append("tuples count as pairs; the published figures are of another machine")
    if not whole:
        notes.append("published figures are left out: the training set here is not the whole of the published one")
    return table + "\n\n" + "\n".join(f"- {note}" for note in notes)
