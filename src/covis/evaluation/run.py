"""A model on benchmarks: embed, whiten, rank, score; a submission file where the truth is hidden.

What is scored is a model folder, a descriptor store, or a matrix that another tool wrote. Embeddings are kept in the
cache and resumed there; an evaluation that is there already is opened, not made again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from covis import artifacts
from covis.arrays import Descriptors
from covis.descriptors import Describer
from covis.errors import InputError
from covis.evaluation.benchmark import Benchmark
from covis.evaluation.result import KIND as EVALUATION_KIND
from covis.evaluation.result import Evaluation
from covis.evaluation.retrieval import SIZES, evaluate_descriptors, rank_descriptors
from covis.evaluation.submissions import MSLS, write_submission
from covis.images import WINDOW, ImageSet
from covis.poses import Poses
from covis.progress import say
from covis.search import Consensus
from covis.whitening import Whitening

Fit = Literal["map", "train"]
SUBMISSION_KIND = "submission"


@dataclass(frozen=True)
class Variants:
    """Which variants to score, what a whitening is fitted on, and whether results are asked where they were taken."""

    sizes: tuple[int | None, ...] = (None,)
    """Dims to whiten to; None = as the descriptors are."""
    sweep: bool = False
    """All of `SIZES` up to the descriptor's own, and None."""
    fit: Fit = "map"
    fit_images: int = 10_000
    """Images drawn to fit on, at most."""
    training: ImageSet | None = field(default=None, compare=False)
    """What `fit="train"` fits on, instead of the benchmark's own training split."""
    consensus: bool = False
    """Put the result first that the others agree with about the place (`covis.search.Consensus`)."""

    @property
    def single(self) -> bool:
        """Whether it gives one evaluation."""
        return len(set(self.sizes)) == 1 and not self.sweep

    def facts(self, size: int | None) -> dict[str, Any]:
        """What tells the variant of this size from plain descriptors, as JSON knows it."""
        told: dict[str, Any] = {"consensus": True} if self.consensus else {}
        if size is None:
            return told
        training = None if self.training is None else self.training.fingerprint()
        return told | {"whiten": size, "fit": self.fit, "fit_images": self.fit_images, "training": training}

    def folder(self, benchmark: str, size: int | None) -> str:
        """The name of the folder of the variant of this size."""
        whitened = "" if size is None else f"-whiten{size}-{self.fit}"
        return f"{benchmark}{whitened}{'-consensus' if self.consensus else ''}"


def evaluations(source: Describer, benchmark: Benchmark, plan: Variants | None = None) -> Iterator[Evaluation]:
    """The evaluation of plain descriptors where the plan has it, then one for each whitened size."""
    plan = plan or Variants()
    queries, database, benchmark = _described(source, benchmark)
    facts, agreed = source.facts, ", by consensus" if plan.consensus else ""
    if plan.consensus:
        facts = {**facts, "consensus": Consensus(benchmark.database.poses).facts()}
    if None in plan.sizes or plan.sweep:
        subject = {**facts, "label": f"{facts['label']}{agreed}", "whitening": None}
        yield evaluate_descriptors(queries, database, benchmark, subject, consensus=plan.consensus)
    for whitening in fit_whitenings(source, benchmark, database, plan):
        subject = {
            **facts,
            "label": f"{facts['label']}, whitened {whitening.dim} ({plan.fit}){agreed}",
            "whitening": {"dim": whitening.dim, **whitening.facts},
        }
        yield evaluate_descriptors(queries, database, benchmark, subject, whitening, plan.consensus)


def _described(source: Describer, benchmark: Benchmark) -> tuple[Descriptors, Descriptors, Benchmark]:
    """Descriptors of both sides, and the benchmark without the images that have none."""
    queries, lost = _items_described(source, benchmark.queries)
    database, gone = (queries, lost) if benchmark.one_set else _items_described(source, benchmark.database)
    return queries, database, benchmark.without(lost, gone, "their files cannot be read")


def _items_described(source: Describer, images: ImageSet) -> tuple[Descriptors, NDArray[np.bool_]]:
    """Unit descriptors of images, or of sequences: the mean of their frames' (none where a frame has none)."""
    window = images.columns.get(WINDOW)
    if window is None:
        return source.describe(images)
    names, at = np.unique(window, return_inverse=True)
    nowhere = Poses(np.full((len(names), 2), np.nan), np.full(len(names), np.nan))
    frames = ImageSet.of(images.root, names, nowhere)
    found, lost = source.describe(frames)
    vectors = np.zeros((len(names), found.shape[1]), np.float32)
    vectors[~lost] = found
    at = at.reshape(window.shape)
    gone = np.asarray(lost[at].any(axis=1))
    means = vectors[at[~gone]].mean(axis=1)
    return means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12), gone


def fit_whitenings(
    source: Describer, benchmark: Benchmark, database: Descriptors, plan: Variants
) -> Iterator[Whitening]:
    """The whitenings of a plan, all cut from one fit, smallest first."""
    sizes = {size for size in plan.sizes if size is not None}
    if not sizes and not plan.sweep:
        return
    sample = _sample(source, benchmark, database, plan)
    if plan.sweep:
        most = min(int(Whitening.fit(sample, 1).facts["rank"]), sample.shape[1])
        sizes |= {size for size in (*SIZES, sample.shape[1]) if size <= most} or {most}
    facts = {"fit": plan.fit, "benchmark": benchmark.name if plan.fit == "map" else None}
    largest = Whitening.fit(sample, max(sizes), facts=facts)
    for size in sorted(sizes):
        yield replace(largest, projection=largest.projection[:, :size])


def _sample(source: Describer, benchmark: Benchmark, database: Descriptors, plan: Variants) -> Descriptors:
    """Up to `fit_images` descriptors of the map or of training images, drawn once for all."""
    rng = np.random.default_rng(0)
    if plan.fit == "map":
        chosen = np.sort(rng.permutation(len(database))[: plan.fit_images])
        return database[chosen]
    images = plan.training
    if images is None:
        if benchmark.training is None:
            raise InputError(
                f"benchmark {benchmark.name!r} has no training split; give --train-data, or fit on the map (--fit map)"
            )
        images = benchmark.training()
    chosen = np.sort(rng.permutation(len(images))[: plan.fit_images])
    return source.describe(images.subset(chosen))[0]


# On disk


def evaluate_to(
    source: Describer, benchmark: Benchmark, output: Path | None, plan: Variants | None = None, *, alone: bool = True
) -> list[Evaluation]:
    """Scores `source` and saves every evaluation: at `output` if it is `alone`, otherwise in folders below it."""
    plan = plan or Variants()
    alone = alone and plan.single
    config = {"subject": source.facts["fingerprint"], "benchmark": benchmark.fingerprint}
    if output is None:
        return list(evaluations(source, benchmark, plan))
    done = _opened(output, benchmark, plan, config, alone)
    if done:
        say(f"{output}: {benchmark.name} is evaluated already")
        return done
    results = []
    for evaluation in evaluations(source, benchmark, plan):
        whitening = evaluation.subject["whitening"]
        size = None if whitening is None else int(whitening["dim"])
        target = output if alone else output / plan.folder(benchmark.name, size)
        wanted = {**config, **plan.facts(size)}
        if _is_there(target):
            _same(artifacts.open_manifest(target, EVALUATION_KIND), wanted, target)
        else:
            evaluation.save(target, config=wanted)
        results.append(evaluation)
    return results


def submit(source: Describer, benchmark: Benchmark, output: Path) -> dict[str, Any]:
    """The file for the benchmark's server, in an artefact with the protocol and what made it."""
    name = "predictions.zip" if benchmark.submission == MSLS else f"{benchmark.name}.txt"
    facts = {
        "benchmark": benchmark.name,
        "fingerprint": benchmark.fingerprint,
        "queries": len(benchmark.queries),
        "database": len(benchmark.database),
        "submission": str(output / name),
        "notes": list(benchmark.notes),
    }
    subject = source.facts
    config = {"subject": subject["fingerprint"], "benchmark": benchmark.fingerprint}
    if (output / artifacts.MANIFEST).is_file():
        _same(artifacts.open_manifest(output, SUBMISSION_KIND), config, output)
        say(f"{output}: the submission is there already")
        return facts
    queries, database, kept = _described(source, benchmark)
    if kept is not benchmark:
        raise InputError(f"{kept.notes[-1]}; the server wants every query, so mend the files first")
    ranking = rank_descriptors(queries, database, benchmark)
    record = {**facts, "protocol": benchmark.facts(), "subject": subject, "config": config}
    with artifacts.create(output, SUBMISSION_KIND, record) as draft:
        write_submission(ranking, benchmark, draft.path / name)
    return facts


def _opened(
    output: Path, benchmark: Benchmark, plan: Variants, config: dict[str, Any], alone: bool
) -> list[Evaluation]:
    """The evaluations of an earlier run of the same command; none where one is missing or a sweep was asked for."""
    sizes = dict.fromkeys(plan.sizes)
    targets = {size: output if alone else output / plan.folder(benchmark.name, size) for size in sizes}
    for size, target in targets.items():
        if _is_there(target):
            _same(artifacts.open_manifest(target, EVALUATION_KIND), {**config, **plan.facts(size)}, target)
    if plan.sweep or not all(_is_there(target) for target in targets.values()):
        return []
    return [Evaluation.open(target) for target in targets.values()]


def _is_there(target: Path) -> bool:
    return (target / artifacts.MANIFEST).is_file()


def _same(manifest: dict[str, Any], config: dict[str, Any], target: Path) -> None:
    found = manifest["config"]
    if found != config:
        other = [key for key in {**found, **config} if found.get(key) != config.get(key)]
        raise InputError(f"{target} holds an evaluation of another {', '.join(other)}; choose another output folder")
