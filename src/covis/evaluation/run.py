"""Export, then score: how a model becomes figures, in one module and without torch.

    describer ─export→ descriptors ─(whiten)→ search ─(re-rank)→ Ranking ─score→ Evaluation, or a submission file

A describer is anything that gives descriptors: a model, a store, another tool's matrix. A re-ranker is a function
`Ranking -> Ranking`. A saved evaluation is opened, not computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from covis.core import artifacts
from covis.core.arrays import Descriptors
from covis.core.errors import InputError
from covis.core.machine import cpu_seconds
from covis.core.progress import say
from covis.crossval import WalkCrossValidation
from covis.descriptors import Describer
from covis.evaluation.benchmark import Benchmark
from covis.evaluation.result import EVALUATION_KIND, Evaluation
from covis.evaluation.retrieval import SIZES, check_pair, evaluate_descriptors, rank_descriptors
from covis.evaluation.submissions import MSLS, write_submission
from covis.evaluation.whitening_fits import fit_sizes
from covis.images import ImageSet
from covis.ranking import Ranking
from covis.search import rank
from covis.search.rerank import Reranker
from covis.whitening import PCA, Whitening, WhiteningRule

Fit = Literal["map", "train"]
SUBMISSION_KIND = "submission"
MIN_WALKS = 4
"""Groups that a map needs for its own images to serve as queries across groups."""
FITTED_QUERIES = 2000
_FOLDS = 4


@dataclass(frozen=True)
class Variants:
    """Which variants to score: descriptor sizes, what a whitening is fitted on, and how results are re-ranked."""

    sizes: tuple[int | None, ...] = (None,)
    """Dimensions to whiten to; None = as the descriptors are."""
    sweep: bool = False
    """All of `SIZES` up to the descriptor's own, and None."""
    fit: Fit = "map"
    fit_images: int | None = 10_000
    """Images drawn to fit on, at most; None = all."""
    training: ImageSet | None = field(default=None, compare=False)
    """What `fit="train"` fits on, instead of the benchmark's own training split."""
    whitening: WhiteningRule = PCA
    rerank: Reranker | None = None

    @property
    def single(self) -> bool:
        """Whether it gives one evaluation."""
        return len(set(self.sizes)) == 1 and not self.sweep

    def facts(self, size: int | None) -> dict[str, Any]:
        """What distinguishes the variant of this size from plain descriptors, as JSON values."""
        facts: dict[str, Any] = {"rerank": _rerank_facts(self.rerank)} if self.rerank else {}
        if size is None:
            return facts
        training = None if self.training is None else self.training.fingerprint()
        learned = {} if self.whitening == PCA else {"whitening": self.whitening.facts()}
        return facts | {"whiten": size, "fit": self.fit, "fit_images": self.fit_images, "training": training, **learned}

    def folder(self, benchmark: str, size: int | None) -> str:
        """The name of the folder of the variant of this size."""
        whitened = "" if size is None else "-".join(["", f"whiten{size}", self.fit, *self._rule_words()])
        return f"{benchmark}{whitened}{'' if self.rerank is None else '-' + self.rerank.name.replace(':', '-')}"

    def label(self, label: str, size: int | None) -> str:
        """The label of the variant of this size, where plain descriptors are called `label`."""
        whitened = "" if size is None else f", whitened {size} ({' '.join([self.fit, *self._rule_words()])})"
        return f"{label}{whitened}{'' if self.rerank is None else f', by {self.rerank.name}'}"

    def _rule_words(self) -> list[str]:
        """What distinguishes the whitening from PCA's, in words."""
        rule = self.whitening
        power = [] if rule.power == 1 else [f"power{rule.power:g}"]
        return [*([] if rule.labels == "none" else [rule.labels]), *power]


def _rerank_facts(rerank: Reranker) -> dict[str, Any]:
    return {"name": rerank.name, **rerank.facts()}


@dataclass(frozen=True, eq=False)
class Exported:
    """What a describer gives for a benchmark: the descriptors of both sides."""

    queries: Descriptors
    database: Descriptors
    """The same object as `queries` where a set is matched with itself."""
    benchmark: Benchmark
    """Without the images that have no descriptor."""

    def __post_init__(self) -> None:
        check_pair(self.queries, self.database, self.benchmark)

    def whitened(self, whitening: Callable[[Descriptors], Descriptors] | None) -> Exported:
        """Both sides whitened."""
        if whitening is None:
            return self
        queries = whitening(self.queries)
        one = self.queries is self.database
        return replace(self, queries=queries, database=queries if one else whitening(self.database))

    def ranking(self, describer: Describer, rerank: Reranker | None = None) -> tuple[Ranking, dict[str, Any]]:
        """The search as the protocol says, re-ranked if `rerank` is given, and the cost of the re-ranking."""
        ranking = rank_descriptors(
            self.queries, self.database, self.benchmark, depth=0 if rerank is None else rerank.depth
        )
        if rerank is None:
            return ranking, {}
        reranking = rerank.prepare(describer, self.benchmark.queries, self.benchmark.database)
        settings: dict[str, Any] = {}
        if hasattr(reranking, "fit"):
            fits, reranking = self._fitted(reranking, ranking, rerank.depth)
            settings = {"fitted": [fit.facts() for fit in fits]}
        started = cpu_seconds()
        ranking = reranking(ranking)
        took = cpu_seconds() - started
        return ranking, {"cpu_ms_per_query": 1000 * took / max(1, len(ranking)), **settings}

    def _fitted(self, reranking: Any, ranking: Ranking, depth: int) -> tuple[list[Any], Callable[[Ranking], Ranking]]:
        """The re-ranking fitted to the map, by searching its own images across walks; unchanged for a map of few groups.

        Where the queries are the map, each fold of walks is re-ranked by one fitted on the other folds.
        """
        images = self.benchmark.database
        group = np.asarray(images.group, np.int64)
        if len(images.group_names) < MIN_WALKS or self.benchmark.groups == "same":
            return [reranking], reranking
        rng = np.random.default_rng(0)
        if not self.benchmark.one_set:
            asked = np.sort(rng.permutation(len(images))[:FITTED_QUERIES])
            known = rank(self.database[asked], self.database, depth, group[asked], group, groups="other", exclude=asked)
            fit = reranking.fit(known, images.poses.subset(asked))
            return [fit], fit
        splits = list(WalkCrossValidation.of(group, _FOLDS, rng).splits())
        fits = [reranking.fit(ranking.subset(known), images.poses.subset(known)) for known, _ in splits]

        def out_of_fold(ranking: Ranking) -> Ranking:
            ids, distances = ranking.ids.copy(), ranking.distances.copy()
            for fit, (_, inside) in zip(fits, splits, strict=True):
                agreed = fit(ranking.subset(inside))
                ids[inside], distances[inside] = agreed.ids, agreed.distances
            return Ranking(ids, distances)

        return fits, out_of_fold


def export(describer: Describer, benchmark: Benchmark) -> Exported:
    """The first half: descriptors of queries and map; images whose files cannot be read are left out."""
    queries, lost = describer.describe(benchmark.queries)
    database, gone = (queries, lost) if benchmark.one_set else describer.describe(benchmark.database)
    return Exported(queries, database, benchmark.without(lost, gone, "their files cannot be read"))


def evaluations(describer: Describer, benchmark: Benchmark, variants: Variants | None = None) -> Iterator[Evaluation]:
    """Export once, then score each variant: plain descriptors if requested, then each whitened size."""
    variants = variants or Variants()
    exported = export(describer, benchmark)
    if None in variants.sizes or variants.sweep:
        yield _scored(describer, exported, variants, None)
    for whitening in fit_whitenings(describer, exported, variants):
        yield _scored(describer, exported, variants, whitening)


def _scored(describer: Describer, exported: Exported, variants: Variants, whitening: Whitening | None) -> Evaluation:
    """The second half, for one variant."""
    size, rerank = None if whitening is None else whitening.dim, variants.rerank
    described = exported.whitened(whitening)
    ranking, cost = described.ranking(describer, rerank)
    subject = {
        **describer.facts,
        "label": variants.label(describer.facts["label"], size),
        "whitening": None if whitening is None else {"dim": whitening.dim, **whitening.facts},
        **({} if rerank is None else {"rerank": _rerank_facts(rerank)}),
    }
    further = {"rerank_cost": cost} if cost else {}
    sides = described.queries, described.database
    return evaluate_descriptors(*sides, described.benchmark, subject, ranking=ranking, further=further)


def fit_whitenings(describer: Describer, exported: Exported, variants: Variants) -> Iterator[Whitening]:
    """The requested whitenings, all from one fit, smallest first."""
    sizes = {size for size in variants.sizes if size is not None}
    if not sizes and not variants.sweep:
        return
    images, sample = _fit_sample(describer, exported, variants)
    if variants.sweep:
        most = min(int(Whitening.fit(sample, 1).facts["rank"]), sample.shape[1])
        sizes |= {size for size in (*SIZES, sample.shape[1]) if size <= most} or {most}
    facts = {"fit": variants.fit, "benchmark": exported.benchmark.name if variants.fit == "map" else None}
    yield from fit_sizes(images, sample, sorted(sizes), variants.whitening, facts=facts)


def _fit_sample(describer: Describer, exported: Exported, variants: Variants) -> tuple[ImageSet, Descriptors]:
    """Up to `fit_images` map or training images with their descriptors, drawn once for all sizes."""
    rng = np.random.default_rng(0)
    if variants.fit == "map":
        if exported.benchmark.one_set and variants.whitening.labels in ("graded", "binary"):
            raise InputError(
                f"the queries of {exported.benchmark.name!r} are its map: a whitening that learns from the map's poses "
                "would know their answers; fit on other images (--fit train), or leave :LABELS out of --whiten"
            )
        chosen = np.sort(rng.permutation(len(exported.database))[: variants.fit_images])
        return exported.benchmark.database.subset(chosen), exported.database[chosen]
    images = variants.training
    if images is None:
        if exported.benchmark.training is None:
            raise InputError(
                f"benchmark {exported.benchmark.name!r} has no training split; give images by --fit IMAGES, or fit on the map "
                "(--fit map)"
            )
        images = exported.benchmark.training()
    images = images.subset(np.sort(rng.permutation(len(images))[: variants.fit_images]))
    sample, lost = describer.describe(images)
    return images.subset(~lost), sample


def evaluate_to(
    describer: Describer,
    benchmark: Benchmark,
    output: Path | None,
    variants: Variants | None = None,
    *,
    alone: bool = True,
) -> list[Evaluation]:
    """Scores and saves every evaluation: at `output` if it is `alone`, otherwise in folders below it."""
    variants = variants or Variants()
    alone = alone and variants.single
    config = {"subject": describer.facts["fingerprint"], "benchmark": benchmark.fingerprint}
    if output is None:
        return list(evaluations(describer, benchmark, variants))

    def place(size: int | None) -> tuple[Path, dict[str, Any]]:
        """Where the variant of this size is saved, and what decides it."""
        return output if alone else output / variants.folder(benchmark.name, size), config | variants.facts(size)

    sizes = list(dict.fromkeys(variants.sizes))
    saved = [_is_saved(EVALUATION_KIND, *place(size)) for size in sizes]
    if all(saved) and not variants.sweep:
        say(f"{output}: {benchmark.name} is already evaluated")
        return [Evaluation.open(place(size)[0]) for size in sizes]
    results = []
    for evaluation in evaluations(describer, benchmark, variants):
        whitening = evaluation.subject["whitening"]
        target, decided_by = place(None if whitening is None else int(whitening["dim"]))
        if not _is_saved(EVALUATION_KIND, target, decided_by):
            evaluation.save(target, config=decided_by)
        results.append(evaluation)
    return results


def evaluate_all(
    describer: Describer, benchmarks: Sequence[Benchmark], output: Path | None, variants: Variants | None = None
) -> list[Evaluation | dict[str, Any]]:
    """Evaluations on several benchmarks; for one whose ground truth is hidden, the facts of its submission."""
    results: list[Evaluation | dict[str, Any]] = []
    for benchmark in benchmarks:
        if benchmark.relevance is not None:
            results += evaluate_to(describer, benchmark, output, variants, alone=len(benchmarks) == 1)
            continue
        if output is None:
            raise InputError(
                f"the ground truth of {benchmark.name!r} is hidden, so a submission file is written; give -o FOLDER"
            )
        target = output if len(benchmarks) == 1 else output / benchmark.name
        results.append(submit(describer, benchmark, target, variants))
    return results


def submit(
    describer: Describer, benchmark: Benchmark, output: Path, variants: Variants | None = None
) -> dict[str, Any]:
    """The file for the benchmark's server, in an artefact with the protocol and what made it."""
    variants = variants or Variants()
    if not variants.single:
        raise InputError(f"a submission to {benchmark.name!r} is of one variant; give one --whiten size at most")
    [size] = set(variants.sizes)
    name = "predictions.zip" if benchmark.submission == MSLS else f"{benchmark.name}.txt"
    facts = {
        "benchmark": benchmark.name,
        "fingerprint": benchmark.fingerprint,
        "queries": len(benchmark.queries),
        "database": len(benchmark.database),
        "submission": str(output / name),
        "notes": list(benchmark.notes),
    }
    subject = {**describer.facts, "label": variants.label(describer.facts["label"], size)}
    config = {"subject": subject["fingerprint"], "benchmark": benchmark.fingerprint, **variants.facts(size)}
    if _is_saved(SUBMISSION_KIND, output, config):
        say(f"{output}: the submission already exists")
        return facts
    exported = export(describer, benchmark)
    if exported.benchmark is not benchmark:
        raise InputError(f"{exported.benchmark.notes[-1]}; the server wants every query, so fix the files first")
    whitening = next(fit_whitenings(describer, exported, variants), None)
    ranking, _ = exported.whitened(whitening).ranking(describer, variants.rerank)
    record = {**facts, "protocol": benchmark.facts(), "subject": subject, "config": config}
    with artifacts.create(output, SUBMISSION_KIND, record) as draft:
        write_submission(ranking, benchmark, draft.path / name)
    return facts


def _is_saved(kind: str, target: Path, config: dict[str, Any]) -> bool:
    """Whether the folder holds this already; an error where it holds another."""
    if not (target / artifacts.MANIFEST).is_file():
        return False
    stored = artifacts.open_manifest(target, kind)["config"]
    if stored != config:
        difference = artifacts.difference(stored, config)
        raise InputError(f"{target} holds another evaluation ({difference}); choose another output folder")
    return True
