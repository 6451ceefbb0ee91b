"""The training loop: steps, mining, validation and checkpoints; a signal stops it where it can resume."""

from __future__ import annotations

import itertools
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from covis.core import artifacts
from covis.core.arrays import Ids
from covis.core.errors import InputError
from covis.core.progress import Meter, duration, say, warn
from covis.describing.features import Features, Fetched
from covis.models import PlaceModel
from covis.sampling import TupleMiner
from covis.training.batch_images import BatchImages
from covis.training.callbacks import Callback, work
from covis.training.checkpoint import latest_checkpoint, save_checkpoint
from covis.training.data import TrainingData
from covis.training.descriptors import describe_images
from covis.training.interruption import DeferredSignals
from covis.training.memory import peak_gib, too_large
from covis.training.ranks import Ranks
from covis.training.recipe import Recipe, describe_recipe
from covis.training.record import Counters, Record
from covis.training.step import Step
from covis.training.validation import Validator

BAD_STEPS = 3
"""This many steps in a row without a finite loss end the run."""
_RECORD_EVERY = 10
_SAVE, _STOP = 1, 2


@dataclass
class Loop:
    """One run from its first or any later step to its last."""

    recipe: Recipe
    run: Path
    model: PlaceModel
    data: TrainingData
    source: Features
    ranks: Ranks
    step: Step
    validator: Validator | None
    miner: TupleMiner | None
    checkpoint_seconds: float = 60.0
    tensorboard: bool = True
    plan: bool = True
    callbacks: Sequence[Callback] = ()
    progress: Counters = field(default_factory=Counters)

    def __post_init__(self) -> None:
        whole_epochs = max(1, self.recipe.epochs * len(self.data.sampler) // self.recipe.accumulate)
        self.steps_here = 0
        self.total = whole_epochs if self.recipe.steps is None else self.recipe.steps

    def resume(self) -> None:
        """Restores the newest intact checkpoint, if there is one."""
        checkpoint = latest_checkpoint(self.run / "checkpoints")
        if checkpoint is None:
            return
        _, tensors, facts = checkpoint
        self.model.load_state_dict(tensors["model"], strict=False)  # the frozen part is as it was built
        self.step.optimiser.load_state_dict(tensors["optimiser"])
        self.step.scaler.load_state_dict(tensors["scaler"])
        if self.miner is not None:
            self.miner.restore({name: array.numpy() for name, array in tensors["miner"].items()})
        for callback, state in zip(self.callbacks, tensors["callbacks"], strict=True):
            callback.restore(state)
        self.progress = Counters(**facts)
        self.step.composition = Counter(self.progress.composition)

    def save(self) -> None:
        """Writes a checkpoint; every rank waits until it is complete."""
        if self.ranks.first:
            step = self.step
            mined = {} if self.miner is None else self.miner.state()
            tensors = {
                "model": self.model.learned_state(),
                "optimiser": step.optimiser.state_dict(),
                "scaler": step.scaler.state_dict(),
                "miner": {name: torch.from_numpy(array) for name, array in mined.items()},
                "callbacks": [callback.state() for callback in self.callbacks],
            }
            save_checkpoint(self.run / "checkpoints", self.progress.step, tensors, self.progress.to_dict())
        self.ranks.wait()

    def complete(self) -> None:
        """Runs every step that is left. An interruption waits for the step under way, then leaves a checkpoint."""
        record = Record(self.run, self.progress.step, self.tensorboard) if self.ranks.first else None
        saved = time.monotonic()
        if self.recipe.keep_better and not self.progress.step and not self.progress.best:
            self._validate({"step": 0}, due=True)
        with Meter("training", self.total, "steps") as meter, DeferredSignals() as signals:
            meter.start_at(self.progress.step)
            self._call("on_start")
            for row in self._steps():
                self._validate(row)
                self._call("on_step", row)
                if record is not None:
                    self._record(record, meter, row)
                due = "recall@5" in row or time.monotonic() - saved > self.checkpoint_seconds
                votes = self.ranks.agree((_SAVE if due else 0) | (_STOP if signals.received is not None else 0))
                if votes:
                    self.save()
                    saved = time.monotonic()
                if votes & _STOP:
                    break
        if record is not None:
            record.close()
        signals.deliver()
        self._call("on_end")

    def _call(self, name: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, name)(self, *arguments)

    def description(self) -> dict[str, Any]:
        """The recipe as plain values by dotted name, for trackers."""
        return artifacts.flat(describe_recipe(self.recipe))

    def _record(self, record: Record, meter: Meter, row: dict[str, Any]) -> None:
        if row["step"] % _RECORD_EVERY == 0 or row["step"] in (1, self.total) or "recall@5" in row:
            record.add(row)
        speed = self.progress.images / max(self.progress.seconds, 1e-9)
        meter.advance(1, f"loss {row['loss']:.4f}, {speed:.0f} images/s")

    def _steps(self) -> Iterator[dict[str, Any]]:
        """Does each remaining step and yields its row of the record."""
        while self.progress.step < self.total and not self._exhausted():
            last = self.total if self.miner is None else min(self.total, self._mine(self.miner))
            stream = self._stream(self.progress.step, last)
            for number in range(self.progress.step, last):
                with work("images and frozen part"):
                    batches = list(itertools.islice(stream, self.recipe.accumulate))
                yield self._do_step(number, batches)
                if self._exhausted():
                    return

    def _exhausted(self) -> bool:
        """Whether as many validations in a row found nothing better as the recipe has patience for."""
        return 0 < self.recipe.patience <= self.progress.stale

    def _do_step(self, number: int, batches: list[tuple[BatchImages, Fetched]]) -> dict[str, Any]:
        """One step with its bookkeeping; returns its row of the record."""
        started = time.monotonic()
        rate = self.recipe.optimiser.learning_rate * self.recipe.optimiser.rate(number / self.total)
        try:
            loss = self.step(number, rate, batches)
        except torch.OutOfMemoryError:
            raise too_large(self.recipe, len(batches[0][1].features)) from None
        self._check_finite(number, loss, batches[0][0])
        p = self.progress
        p.memory_gib = p.memory_gib or peak_gib(self.ranks.device)
        p.step = number + 1
        p.images += sum(len(images) for images, _ in batches)
        p.pairs += sum(len(images.batch) for images, _ in batches)
        p.composition = dict(self.step.composition)
        p.redrawn += sum(images.batch.redrawn for images, _ in batches)
        spent_seconds = time.monotonic() - started
        p.seconds += spent_seconds
        self._say_plan(spent_seconds, sum(len(images) for images, _ in batches), len(batches[0][0].batch))
        row = {"step": p.step, "images": p.images, "pairs": p.pairs, "loss": loss, "learning_rate": rate}
        spent = {"seconds": round(p.seconds, 3), "mining_seconds": round(p.mining_seconds, 3)}
        return row | {"redrawn": p.redrawn, **spent}

    def _say_plan(self, seconds: float, images: int, pairs: int) -> None:
        """Says what the run will take, after its second step: the first pays for one-off set-up."""
        self.steps_here += 1
        left = self.total - self.progress.step
        if not (self.plan and self.ranks.first) or self.steps_here > 2 or (self.steps_here < 2 and left):
            return
        trained = sum(p.numel() for _, p in self.model.trained_parameters())
        say(
            f"plan: {self.total * self.recipe.accumulate * pairs} pairs in {self.total} steps of about {images} images, "
            f"{trained / 1e6:.2f} M trained parameters, about {self.progress.memory_gib:.2f} GiB per process, "
            f"about {duration(left * seconds)} left"
        )

    def _check_finite(self, number: int, loss: float, images: BatchImages) -> None:
        """Counts steps without a finite loss, and ends the run after some in a row."""
        if np.isfinite(loss):
            self.progress.skipped = 0
            return
        self.progress.skipped += 1
        names = self.data.names(images.request)
        warn(f"step {number}: the loss is not finite and the step is skipped; images: {', '.join(names[:6])}, …")
        if self.progress.skipped >= BAD_STEPS:
            raise InputError(
                f"the loss was not finite {BAD_STEPS} steps in a row, the last at step {number} (images {', '.join(names[:3])}, …); "
                "look at these images or lower optimiser.learning_rate"
            )

    def _stream(self, first: int, last: int) -> Iterator[tuple[BatchImages, Fetched]]:
        """The batches of steps `first` to `last` with this rank's share of their features, fetched ahead."""
        waiting: deque[BatchImages] = deque()

        def requests() -> Iterator[tuple[Ids, ...]]:
            for number in range(first * self.recipe.accumulate, last * self.recipe.accumulate):
                images = BatchImages.of(self.data.batch(number, self.miner), self.data.one_set)
                waiting.append(images)
                yield self._own_share(images)

        for fetched in self.source.fetch(requests(), first * self.recipe.accumulate):
            yield waiting.popleft(), fetched

    def _own_share(self, images: BatchImages) -> tuple[Ids, ...]:
        """What this rank fetches of a batch: its share of the images, set by set."""
        share = self.ranks.share(len(images))
        limits = np.cumsum([len(part) for part in images.request])[:-1]
        return tuple(np.split(np.concatenate(images.request)[share], np.searchsorted(share, limits)))

    def _mine(self, miner: TupleMiner) -> int:
        """Has negatives mined for the coming steps; returns the step from which they must be mined again."""
        started = time.monotonic()
        sides = (0, 0) if self.data.one_set else (0, 1)
        last = miner.renew(
            self.progress.step, lambda side, ids: describe_images(self.model, self.source, sides[side], ids, self.ranks)
        )
        self.progress.mining_seconds += time.monotonic() - started
        return last

    def _validate(self, row: dict[str, Any], *, due: bool = False) -> None:
        """At every validation point, or where it is `due`: scores the model and keeps the best."""
        if self.validator is None or not (due or self._validation_due(row["step"])):
            return
        recall = self.validator.recall(self.model)
        row.update({f"recall@{k}": v for k, v in recall.items()})
        better = recall["5"] > self.progress.best.get("5", -1.0)
        self.progress.stale = 0 if better else self.progress.stale + 1
        if better:
            self.progress.best = {**recall, "step": row["step"]}
            if self.ranks.first:
                self.model.save(self.run / "best", replace=True)
        self.ranks.wait()
        self._call("on_validation", row)

    def _validation_due(self, step: int) -> bool:
        every = max(1, self.total // max(1, self.recipe.validations))
        return step == self.total or (step % every == 0 and self.total - step >= every // 2)
