"""Runs the rows of tables: trains or opens what was trained, scores or submits it, and measures what training costs.

    FOLDER/runs/NAME-KEY/seed-N/                   a training run; KEY is the recipe's, so tables share it
    FOLDER/runs/NAME-KEY/seed-N/evals/BENCHMARK    its evaluations
    FOLDER/runs/NAME-KEY/seed-N/submissions/…      files for servers, where the truth is hidden
    FOLDER/costs/NAME-KEY/cost.json                what training it costs, measured on some steps

Everything resumes: a finished run, evaluation or measurement is opened, not made again.
"""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from covis import datasets
from covis.core import artifacts
from covis.core.errors import InputError
from covis.core.machine import cache_folder
from covis.core.progress import say, warn
from covis.core.tables import markdown_lines
from covis.datasets import is_given
from covis.describing.describers import ModelDescriber, open_describer
from covis.describing.features import Cached, open_features
from covis.describing.rerankers import open_reranker
from covis.descriptors import Describer
from covis.evaluation import BENCHMARKS, Benchmark, Evaluation, load_benchmark
from covis.evaluation.differences import ORDER_FIGURES
from covis.evaluation.published import DENOMINATORS
from covis.evaluation.published import rows as printed_rows
from covis.evaluation.run import Variants, evaluate_to, submit
from covis.evaluation.submissions import server_figures
from covis.experiments.tables import TABLE_KS, Inputs, Outcome, Row, lacking
from covis.images import ImageSet
from covis.models import PlaceModel
from covis.sampling import Pairs, Tuples
from covis.training.cost import measure_steps
from covis.training.descriptors import describe_all
from covis.training.recipe import Recipe
from covis.training.record import RESULT
from covis.training.result import Trained
from covis.training.run import train

RUNS = "runs"
COST = "cost.json"


def run_rows(rows: Sequence[Row], inputs: Inputs, seeds: Iterable[int]) -> list[Outcome]:
    """Runs what the data allows, row by row; a row that cannot be run or fails is reported, and the others go on."""
    seeds, outcomes = list(seeds), []
    for row in rows:
        sizes = tuple(dict.fromkeys(other.whiten for other in rows if other.shares_descriptors(row)))
        outcome = Outcome(row, missing=lacking(row, inputs))
        if outcome.missing:
            say(f"{row.name}: not run, {outcome.missing}")
        else:
            _run_seeds(row, sizes, inputs, seeds, outcome)
        outcomes.append(outcome)
    return outcomes


def _run_seeds(row: Row, sizes: tuple[int | None, ...], inputs: Inputs, seeds: Sequence[int], outcome: Outcome) -> None:
    for seed in seeds if row.recipe is not None else seeds[:1]:
        say(f"{row.name}, seed {seed}")
        try:
            _run(row, sizes, inputs, seed, outcome)
        except InputError as error:
            outcome.missing = str(error)
        except Exception as error:  # one row must not end the table
            outcome.missing = f"failed with {type(error).__name__}: {error}"
            outcome.remarks.append(traceback.format_exc())
        if outcome.missing:
            warn(f"{row.name}, seed {seed}: {outcome.missing}")
            return


def _run(row: Row, sizes: tuple[int | None, ...], inputs: Inputs, seed: int, outcome: Outcome) -> None:
    """Trains, or opens what was trained; scores all `sizes` that rows of this run whiten to at once."""
    folder = run_folder(inputs.output, row, seed)
    if row.recipe is None:
        describer = open_describer(inputs.models[row.model])
    else:
        path = inputs.data.get(row.recipe.dataset)
        trained = train(row.recipe, folder, data=path, seed=seed, resources=inputs.resources)
        for key in ("seconds", "mining_seconds", "images", "pairs", "memory_gib"):
            outcome.costs.setdefault(key, []).append(float(trained[key]))
        outcome.runs.append(folder)
        outcome.differs = part_of_training(row.recipe.dataset, row.recipe.split, path) if row.published else ""
        model = folder / "model"
        describer = FrozenOnce(PlaceModel.load(model), row.label, folder=model.resolve())
    for name in row.benchmarks:
        if not is_given(BENCHMARKS[name].dataset, inputs.data):
            _remark(outcome, f"{name}: left out, its data is not given (--data {BENCHMARKS[name].dataset}=PATH)")
            continue
        try:
            benchmark = load_benchmark(name, inputs.data)
            outcome.counts[name] = (len(benchmark.queries), len(benchmark.database))
            if benchmark.relevance is None:
                _submit(row, describer, benchmark, folder, inputs, outcome)
            else:
                _score(row, sizes, describer, benchmark, folder, outcome)
        except InputError as error:
            _remark(outcome, f"{name}: left out, {error}")


def _remark(outcome: Outcome, text: str) -> None:
    if text not in outcome.remarks:
        say(f"{outcome.row.name}: {text}")
        outcome.remarks.append(text)


def run_folder(output: Path, row: Row, seed: int) -> Path:
    """The folder of the run of a row's recipe: the same for every table with the recipe, whatever its rows' names."""
    known = sorted((output / RUNS).glob(f"*-{row.key}"))
    return (known[0] if known else output / RUNS / f"{row.slug}-{row.key}") / f"seed-{seed}"


def _variants(row: Row, sizes: tuple[int | None, ...]) -> Variants:
    rerank = open_reranker(row.rerank) if row.rerank else None
    return Variants(
        sizes, sweep=row.sweep, fit=row.fit, fit_images=row.fit_images, rerank=rerank, whitening=row.whitening
    )


def _score(
    row: Row, sizes: tuple[int | None, ...], describer: Describer, benchmark: Benchmark, folder: Path, outcome: Outcome
) -> None:
    variants, evals = _variants(row, sizes), folder / "evals"
    try:
        evaluate_to(describer, benchmark, evals, variants, alone=False)
    except InputError:  # another row's size may be more than these descriptors can be whitened to
        variants = _variants(row, (row.whiten,))
        evaluate_to(describer, benchmark, evals, variants, alone=False)
    target = evals / variants.folder(benchmark.name, row.whiten)
    evaluation = Evaluation.open(target)
    outcome.counts[benchmark.name] = (evaluation.figures["queries"], evaluation.figures["database"])
    pattern = f"{benchmark.name}-whiten*-{row.fit}"
    swept = sorted(evals.glob(pattern)) if row.sweep else []
    outcome.evaluations.setdefault(benchmark.name, []).extend([target, *swept])
    outcome.add(benchmark.name, headline(evaluation, row.parts) | (_ordered(evaluation) if row.graded else {}))


def _submit(
    row: Row, describer: Describer, benchmark: Benchmark, folder: Path, inputs: Inputs, outcome: Outcome
) -> None:
    """A file for the server, and what it answered, where that is known."""
    variants = replace(_variants(row, (row.whiten,)), sweep=False)
    target = folder / "submissions" / variants.folder(benchmark.name, row.whiten)
    submission = submit(describer, benchmark, target, variants)["submission"]
    outcome.submissions.setdefault(benchmark.name, []).append(str(submission))
    printed = [p.key for p in row.published if p.benchmark == benchmark.name]
    figures = printed if row.parts and printed else server_figures(benchmark)
    outcome.add(benchmark.name, inputs.scores.expect(str(target.relative_to(inputs.output)), figures))


@dataclass(frozen=True, eq=False)
class FrozenOnce(ModelDescriber):
    """A model whose frozen part is computed once for all runs that share it, where the cache holds its output."""

    model: PlaceModel

    def describe(self, images: ImageSet) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Uses cached features if every image can be read and is in the cache, else describes as any model does."""
        if torch.cuda.is_available():
            return super().describe(images)
        cache = cache_folder() / "features"
        bound = int(Recipe.cache_gb * 1e9)
        common: dict[str, Any] = {"seed": 0, "workers": self.workers or 1, "device": torch.device("cpu")}
        source = open_features(self.model, (images,), cache=cache, cache_bytes=bound, **common)
        if not isinstance(source, Cached) or not np.array_equal(source.replaced[0], np.arange(len(images))):
            return super().describe(images)
        return describe_all(self.model, source, 0, len(images)), np.zeros(len(images), bool)


def headline(evaluation: Evaluation, parts: bool = False) -> dict[str, float]:
    """The figures that a table shows, recall over the queries that the published figures divide by."""
    over = DENOMINATORS.get(evaluation.benchmark)
    recall = evaluation.figures[f"recall_over_{over}"] if over else evaluation.recall
    shown = {f"recall@{k}": float(recall[k]) for k in recall if int(k) in TABLE_KS}
    shown |= {f"localised@{k}": v for k, v in evaluation.figures.get("localised", {}).items()}
    if evaluation.figures.get("average_precision") is not None:
        shown["average_precision"] = evaluation.figures["average_precision"]
    for values in evaluation.figures.get("breakdown", {}).values() if parts else ():
        for part, figures in values.items():
            shown |= {f"{part} localised@{k}": v for k, v in figures.get("localised", {}).items()}
    return shown


def _ordered(evaluation: Evaluation) -> dict[str, float]:
    """Order of results by overlap: stricter radii, nDCG over ψ, metres at rank 1, Spearman of ψ and distance."""
    recalls = {f"recall@1 {name}": part.recall[1] for name, part in evaluation.figures.stricter.items() if part.recall}
    single = {key: evaluation.figures.single(key) for key in ORDER_FIGURES}
    return recalls | {key: value for key, value in single.items() if value is not None}


def measure_rows(rows: Sequence[Row], inputs: Inputs) -> list[dict[str, Any]]:
    """The cost of each row's recipe, or why it could not be measured."""
    entries = []
    for row in rows:
        reason = lacking(row, inputs)
        entry: dict[str, Any] = {"row": row.name}
        if not reason and row.recipe is not None:
            try:
                entry |= _measured(row, row.recipe, inputs)
                entry |= {"epochs": row.recipe.epochs, "epochs_to_best": _converged(row, inputs)}
            except Exception as error:  # one row must not end the table
                reason = str(error) if isinstance(error, InputError) else f"failed with {type(error).__name__}: {error}"
        if reason:
            warn(f"{row.name}: not measured, {reason}")
            entry["missing"] = reason
        entries.append(entry)
    return entries


def four_images(recipe: Recipe) -> Recipe:
    """The recipe with the four images in memory that the published costs are of: two pairs, or one small tuple."""
    if isinstance(recipe.batches, Tuples):
        tuples = recipe.batches
        return replace(recipe, batches=replace(tuples, size=1, negatives=2, refresh=tuples.refresh * tuples.size))
    return replace(recipe, batches=replace(recipe.batches, size=2)) if isinstance(recipe.batches, Pairs) else recipe


def _converged(row: Row, inputs: Inputs) -> float | None:
    """Epochs until the best validation of the row's run, if it was trained into this folder."""
    folder = run_folder(inputs.output, row, 0)
    if row.recipe is None or not (folder / RESULT).is_file():
        return None
    trained = Trained.open(folder)
    return None if trained.best_step is None else row.recipe.epochs * trained.best_step / trained.steps


def _measured(row: Row, recipe: Recipe, inputs: Inputs) -> dict[str, Any]:
    folder = inputs.output / "costs" / f"{row.slug}-{row.key}-4-images"
    if (folder / COST).is_file():
        say(f"{row.name}: already measured")
        return dict(artifacts.read_json(folder / COST))
    say(f"{row.name}: measuring some steps")
    workers = None if inputs.resources is None else inputs.resources.workers
    folder.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        data = inputs.data.get(recipe.dataset)
        cost = asdict(pool.submit(measure_steps, four_images(recipe), folder / "run", data, workers).result())
    artifacts.write_json(folder / COST, cost)
    return cost


@cache
def part_of_training(dataset: str, split: str, path: Path | None) -> str:
    """How a training split differs from the published one, by its counts and groups; empty if it is the whole."""
    facts, images = datasets.DATASETS[dataset], datasets.load(dataset, path, split).queries
    (queries, _), groups = facts.published.get(split, (None, None)), facts.groups.get(split)
    if queries in (None, len(images)) and groups in (None, len(images.group_names)):
        return ""
    whole = " and ".join(f"{n:,} {what}" for n, what in ((queries, "queries"), (groups, "groups")) if n is not None)
    actual = f"{len(images):,} queries of {len(images.group_names)} groups"
    return f"other protocol: trained on {actual} of {dataset} {split}, the whole has {whole}"


def cost_table(entries: Sequence[dict[str, Any]], differs: str) -> str:
    """As Markdown; published figures are shown only where recipes and training set are the published ones."""
    printed = {} if differs else {row["model"]: row for row in printed_rows("table5_training_cost")}
    keys = ("gpu_memory", "epochs", "time_per_epoch", "time_to_converge") if printed else ()
    lines = [["model", "peak GiB", "epochs (until the best)", "h per epoch*", "h until the best*"]]
    lines[0] += [f"published: {name}" for name in ("memory", "epochs", "an epoch", "to converge")[: len(keys)]]
    for e in entries:
        if "missing" in e:
            lines.append([e["row"], f"not measured: {e['missing']}", *("" for _ in lines[0][2:])])
            continue
        best, hours = e.get("epochs_to_best"), e["hours_per_epoch"]
        cells = [f"{e['peak_gib']:.2f}", f"{e['epochs']}" + ("" if best is None else f" ({best:.2g})")]
        cells += [f"{hours:.2f}", "" if best is None else f"{hours * best:.2f}"]
        lines.append([e["row"], *cells, *(printed.get(e["row"], {}).get(key, "") for key in keys)])
    measured = [e for e in entries if "missing" not in e]
    where = f"{measured[0]['steps']} steps on {measured[0]['device']}" if measured else "nothing"
    notes = [f"* extrapolated from {where}; memory is the GPU's peak, or the process's where there is none"]
    notes.append("four images in memory, as published: two pairs a step, or a query, a positive and two negatives")
    notes.append("the published figures are of another machine")
    if not any(e.get("epochs_to_best") for e in measured):
        notes.append("epochs until the best validation are known once the rows' runs are trained into this folder")
    if differs:
        notes.append(f"published figures are left out: {differs}")
    return markdown_lines(lines) + "\n\n" + "\n".join(f"- {note}" for note in notes)
