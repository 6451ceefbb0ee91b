"""The main comparison on built-in data: contrastive against generalised contrastive loss in the simulated town.

    DIR/untrained              the network before training
    DIR/runs/LOSS-seed-N       one training run per loss and seed
    DIR/evals/…                their evaluations on the town's unseen streets
    DIR/report.html            all results on one page

Every step is kept when it is done, so a killed demo resumes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from covis import experiments
from covis.core import artifacts
from covis.core.progress import say
from covis.describing.describers import open_describer
from covis.evaluation import Benchmark, Evaluation, load_benchmark
from covis.evaluation.render import COMPARED_KS, mean_interval
from covis.evaluation.run import evaluate_to
from covis.models import PlaceModel
from covis.report import write_report
from covis.training.recipe import Recipe, configure
from covis.training.run import Resources, train

_LOSSES = {"CL": "town_cl", "GCL": "town_gcl"}
UNTRAINED = "untrained"
_SEEDS = 2
BENCHMARK = "town"


def run_demo(
    output: Path | str,
    seed: int = 0,
    *,
    data: Path | None = None,
    settings: Sequence[str] = (),
) -> dict[str, Any]:
    """Labels, trains, embeds, searches, evaluates and reports; returns the table and the report's path.

    `data` is the folder of a town (default: rendered into the user's cache), `settings` change the recipes.
    """
    output = Path(output)
    with artifacts.claim(output, "demo", {"seed": seed, "settings": list(settings)}):
        benchmark = load_benchmark(BENCHMARK, data)
        chosen = {loss: configure(experiments.get(name), settings) for loss, name in _LOSSES.items()}
        evaluations = {UNTRAINED: _untrained(output, chosen["GCL"], benchmark, seed)}
        runs: dict[str, list[Path]] = {}
        for loss, recipe in chosen.items():
            runs[loss] = [output / "runs" / f"{loss}-seed-{s}" for s in range(seed, seed + _SEEDS)]
            for s, run in zip(range(seed, seed + _SEEDS), runs[loss], strict=True):
                say(f"{run.name}:")
                train(recipe, run, data=data, seed=s, resources=Resources(tensorboard=False))
            evaluations[loss] = [_evaluated(run, output / "evals" / run.name, benchmark) for run in runs[loss]]
        report = output / "report.html"
        title = "The town: contrastive against generalised contrastive loss"
        write_report(report, evaluations, benchmark, runs=runs, data=data, title=title)
        table = [summarise(name, results) for name, results in evaluations.items()]
        return {
            "table": table,
            "report": str(report),
            "seeds": list(range(seed, seed + _SEEDS)),
            "verdict": verdict(table),
        }


def _untrained(output: Path, recipe: Recipe, benchmark: Benchmark, seed: int) -> list[Evaluation]:
    folder = output / UNTRAINED
    if not folder.exists():
        PlaceModel.build(recipe.model, seed).save(folder)
    return [_evaluated(folder, output / "evals" / UNTRAINED, benchmark)]


def _evaluated(subject: Path, target: Path, benchmark: Benchmark) -> Evaluation:
    [evaluation] = evaluate_to(open_describer(subject), benchmark, target)
    return evaluation


def summarise(name: str, evaluations: Sequence[Evaluation]) -> dict[str, Any]:
    """Mean of Recall@1, 5 and 10 over the seeds, in percent, and the half-width of its 95 % interval (Student's t)."""
    row: dict[str, Any] = {"model": name, "seeds": len(evaluations)}
    for k in COMPARED_KS:
        values = [e.recall[k] for e in evaluations]
        mean, half = mean_interval(values)
        row[f"recall@{k}"] = round(mean, 2)
        row[f"interval@{k}"] = None if half is None else round(half, 2)
        row[f"values@{k}"] = [round(v, 2) for v in values]
    return row


def verdict(table: Sequence[Mapping[str, Any]]) -> str:
    """One sentence that says whether GCL beats CL in the table, or not."""
    by_name = {row["model"]: row for row in table}
    gain = {k: by_name["GCL"][f"recall@{k}"] - by_name["CL"][f"recall@{k}"] for k in COMPARED_KS}
    gains = ", ".join(f"{g:+.1f} at {k}" for k, g in gain.items())
    won = all(g > 0 for g in gain.values())
    lost = all(g <= 0 for g in gain.values())
    judgement = "GCL beats CL" if won else "GCL does not beat CL" if lost else "GCL and CL are mixed"
    return f"{judgement} on the mean of {by_name['GCL']['seeds']} seeds (recall {gains})"
