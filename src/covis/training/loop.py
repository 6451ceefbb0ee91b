"""The training loop: batches to gradients to steps; a signal stops it at a point from which it can resume."""

from __future__ import annotations

import contextlib
import copy
import csv
import io
import itertools
import os
import shutil
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from covis.core import artifacts, machine
from covis.core.arrays import Ids
from covis.core.errors import Damaged, InputError
from covis.core.files import first_line, read_foreign
from covis.core.progress import Meter, warn
from covis.describing.features import Features, Fetched
from covis.models import PlaceModel
from covis.training.data import Miner, Needed, TrainingData, Validator, needed, relabelled, weighted_loss
from covis.training.recipe import Recipe

# The state of a run on disk: everything that an exact resume needs


METRICS = "metrics.csv"
RESULT = "result.json"
_COLUMNS = (
    "step",
    "images",
    "pairs",
    "loss",
    "learning_rate",
    "redrawn",
    "seconds",
    "mining_seconds",
    "recall@1",
    "recall@5",
    "recall@10",
)


@dataclass
class Counters:
    """Counters of a run."""

    step: int = 0
    images: int = 0
    """Images embedded with gradient."""
    pairs: int = 0
    redrawn: int = 0
    seconds: float = 0.0
    """Time spent training, over all stops, validation left out."""
    mining_seconds: float = 0.0
    skipped: int = 0
    """Steps in a row whose loss was not finite."""
    best: dict[str, float] = field(default_factory=dict)
    """Recall of the best validation, with its step."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


class Record:
    """Metrics as CSV and TensorBoard events; those after the step that a run resumes from are dropped."""

    def __init__(self, run: Path, step: int, tensorboard: bool) -> None:
        self.path = run / METRICS
        rows = read_metrics(run)
        with self.path.open("w", newline="", encoding="utf-8") as handle:
            writer = csv.DictWriter(handle, _COLUMNS)
            writer.writeheader()
            writer.writerows(row for row in rows if int(row["step"]) <= step)
        self._events: Any = None
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._events = SummaryWriter(str(run / "events"), purge_step=step + 1)

    def add(self, row: Mapping[str, Any]) -> None:
        """One row; absent columns stay empty."""
        with self.path.open("a", newline="", encoding="utf-8") as handle:
            csv.DictWriter(handle, _COLUMNS).writerow({k: row.get(k, "") for k in _COLUMNS})
        if self._events is not None:
            for key in _COLUMNS[3:]:
                if key in row:
                    self._events.add_scalar(key, float(row[key]), int(row["step"]))

    def close(self) -> None:
        """Flushes what TensorBoard has not written."""
        if self._events is not None:
            self._events.close()


def read_metrics(run: Path) -> list[dict[str, str]]:
    """The rows of a run's metrics without an unfinished last line; a finished run's are checked against its result."""
    path, expected = run / METRICS, _expected(run)
    if not path.exists():
        if expected is not None:
            raise Damaged(f"{path} is missing, and {run / RESULT} names it; copy the run again")
        return []
    content = read_foreign(path)
    if expected not in (None, sha256(content).hexdigest()):
        raise Damaged(f"{path} is damaged or was edited (its SHA-256 differs from {RESULT}); copy the run again")
    rows = csv.DictReader(io.StringIO(content.decode("utf-8", "replace"), newline=""))
    return [row for row in rows if row.get("recall@10") is not None and (row.get("step") or "").isdigit()]


def has_metrics(run: Path) -> bool:
    """Whether a run wrote metrics, even if the file is gone."""
    return (run / METRICS).is_file() or _expected(run) is not None


def _expected(run: Path) -> str | None:
    """SHA-256 of the metrics of a finished run."""
    result = artifacts.read_json(run / RESULT) if (run / RESULT).is_file() else {}
    return result.get("metrics_sha256") if isinstance(result, dict) else None


CHECKPOINT = "checkpoint"
KEPT_CHECKPOINTS = 2
"""How many are kept: if the newest is damaged, the one before it still serves."""


def save_checkpoint(folder: Path, step: int, tensors: Mapping[str, Any], facts: Mapping[str, Any]) -> Path:
    """Writes `tensors` (nested dicts of tensors and numbers) and `facts` (JSON) as the checkpoint of `step`."""
    path = folder / f"step-{step:09d}"
    try:
        with artifacts.create(path, CHECKPOINT, {"step": step, "facts": dict(facts)}, replace=True) as draft:
            torch.save(dict(tensors), draft.path / "state.pt")
    except OSError as error:
        raise OSError(
            error.errno, f"the checkpoint of step {step} could not be saved ({error.strerror})", str(path)
        ) from error
    for old in _steps(folder)[:-KEPT_CHECKPOINTS]:
        shutil.rmtree(old)
    return path


def latest_checkpoint(folder: Path) -> tuple[int, dict[str, Any], dict[str, Any]] | None:
    """(step, tensors, facts) of the newest intact checkpoint, or None."""
    for path in reversed(_steps(folder)):
        try:
            manifest = artifacts.open_manifest(path, CHECKPOINT)
        except InputError as error:
            warn(f"{error}; resuming from the checkpoint before it")
            continue
        tensors = torch.load(path / "state.pt", map_location="cpu", weights_only=True)
        return int(manifest["step"]), tensors, manifest["facts"]
    return None


def _steps(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*")) if folder.is_dir() else []


# Processes that train together


@dataclass(frozen=True)
class Ranks:
    """This process among those that `torchrun` started; alone without it."""

    rank: int = 0
    world: int = 1
    local: int = 0

    @classmethod
    def join(cls) -> Ranks:
        """Joins the group that `torchrun` announces, over NCCL with GPUs and gloo without."""
        if int(os.environ.get("WORLD_SIZE", "1")) < 2:
            return cls()
        if not distributed.is_initialized():
            backend = "nccl" if torch.cuda.is_available() else "gloo"
            try:
                distributed.init_process_group(backend, timeout=_MEETING, **_store())
            except RuntimeError as error:
                raise InputError(
                    f"the processes of this run cannot connect ({first_line(error)}); stop them all and re-run the command"
                ) from error
        return cls(distributed.get_rank(), distributed.get_world_size(), int(os.environ.get("LOCAL_RANK", "0")))

    @property
    def first(self) -> bool:
        """Whether this process writes files and messages."""
        return self.rank == 0

    @property
    def device(self) -> torch.device:
        """This rank's own GPU, or the CPU."""
        return torch.device(machine.device(self.local))

    def share(self, count: int) -> NDArray[np.int64]:
        """Positions of `count` images that this rank embeds; the last ones repeat so that all shares are equal."""
        size = -(-count // self.world)
        return np.minimum(np.arange(self.rank * size, (self.rank + 1) * size), count - 1)

    def gather(self, descriptors: Tensor, count: int) -> Tensor:
        """Descriptors of all `count` images, in order, from every rank's share; gradients flow back to their rank."""
        if self.world == 1:
            return descriptors
        from torch.distributed.nn.functional import all_gather

        return torch.cat(all_gather(descriptors.contiguous()))[:count]  # type: ignore[no-untyped-call]

    def gather_ids(self, ids: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """Ids of all `count` images, in order, from every rank's share."""
        if self.world == 1:
            return ids
        mine = torch.from_numpy(ids).to(self.device)
        shares = [torch.empty_like(mine) for _ in range(self.world)]
        distributed.all_gather(shares, mine)
        return torch.cat(shares)[:count].cpu().numpy()

    def wait(self) -> None:
        """Waits until every rank has arrived."""
        if self.world > 1:
            distributed.barrier()

    def agree(self, flag: bool) -> bool:
        """Whether any rank says yes."""
        if self.world == 1:
            return flag
        votes = torch.tensor([int(flag)], device=self.device)
        distributed.all_reduce(votes)
        return bool(votes.item())

    def lost(self, error: RuntimeError) -> bool:
        """Whether an error means that another rank is gone."""
        words = ("gloo", "Connection", "connection", "NCCL", "peer")
        return self.world > 1 and (isinstance(error, distributed.DistError) or any(w in str(error) for w in words))

    def leave(self) -> None:
        """Leaves the group."""
        if self.world > 1 and distributed.is_initialized():
            distributed.destroy_process_group()


_MEETING = timedelta(minutes=30)


def _store() -> dict[str, Any]:
    """Where ranks meet after `torchrun` restarted them: a new prefix, as its store still holds the old addresses.

    With several machines each counts its own restarts, so the store is used as it is.
    """
    attempt, ranks = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), os.environ["WORLD_SIZE"]
    if attempt == "0" or os.environ.get("LOCAL_WORLD_SIZE") != ranks:
        return {}
    from torch._C._distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    store, rank, world = next(rendezvous("env://", timeout=_MEETING))
    return {"store": PrefixStore(f"attempt-{attempt}", store), "rank": rank, "world_size": world}


# The training loop: batches to gradients to steps; a signal stops it at a point from which it can resume.


class Deferred:
    """While entered, notes the first signal instead of acting on it; a second one acts at once."""

    received: int | None = None

    def __enter__(self) -> Deferred:
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._note) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def deliver(self) -> None:
        """Lets the noted signal act now, after leaving."""
        if self.received is not None:
            signal.raise_signal(self.received)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.received is not None:
            self.__exit__()
            signal.raise_signal(number)
        self.received = number


BAD_STEPS = 3
"""This many steps in a row without a finite loss end the run."""
RECORD_EVERY = 10


class _Trained(nn.Module):
    """The trained part as the module that is stepped, compiled and kept equal across ranks."""

    def __init__(self, model: PlaceModel, regions: bool) -> None:
        super().__init__()
        self.model = model
        self.describe = model.region_descriptors if regions else model.suffix

    def forward(self, features: Tensor) -> Tensor:
        return self.describe(features)


@dataclass
class Loop:
    """One run from its first or any later step to its last."""

    recipe: Recipe
    run: Path
    seed: int
    model: PlaceModel
    data: TrainingData
    source: Features
    ranks: Ranks
    validator: Validator | None
    miner: Miner | None
    checkpoint_seconds: float = 60.0
    tensorboard: bool = True
    progress: Counters = field(default_factory=Counters)

    def __post_init__(self) -> None:
        whole_epochs = max(1, self.recipe.epochs * len(self.data.sampler) // self.recipe.accumulate)
        self.total = whole_epochs if self.recipe.steps is None else self.recipe.steps
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            head = self.recipe.loss.head(self.data.sampler, self.model.dim)
        self.head = None if head is None else head.to(self.ranks.device)
        self.teacher: PlaceModel | None = None
        self.first_weights = copy.deepcopy(self.model.state_dict()) if self.recipe.generations > 1 else {}
        self.optimiser = make_optimiser(self.recipe, self.model, self.head)
        self.scaler = torch.amp.GradScaler(self.ranks.device.type, enabled=self.recipe.precision == "float16")
        trained: nn.Module = _Trained(self.model, self.recipe.loss.regions)
        if self.recipe.compile:
            trained = torch.compile(trained)  # type: ignore[assignment]
        if self.ranks.world > 1:
            trained = DistributedDataParallel(trained)
        self.trained = trained

    # From start to end

    def resume(self) -> None:
        """Restores the newest intact checkpoint, if there is one."""
        checkpoint = latest_checkpoint(self.run / "checkpoints")
        if checkpoint is None:
            return
        _, tensors, facts = checkpoint
        self.model.load_state_dict(tensors["model"])
        self.optimiser.load_state_dict(tensors["optimiser"])
        self.scaler.load_state_dict(tensors["scaler"])
        if self.miner is not None:
            self.miner.restore(tensors["miner"])
        if self.head is not None:
            self.head.load_state_dict(tensors["head"])
        if tensors.get("teacher"):
            self.teacher = self._taught_by(tensors["teacher"])
        self.progress = Counters(**facts)

    def save(self) -> None:
        """Writes a checkpoint; every rank waits until it is complete."""
        if self.ranks.first:
            tensors = {
                "model": self.model.state_dict(),
                "optimiser": self.optimiser.state_dict(),
                "scaler": self.scaler.state_dict(),
                "miner": {} if self.miner is None else self.miner.state(),
                "head": {} if self.head is None else self.head.state_dict(),
                "teacher": {} if self.teacher is None else self.teacher.state_dict(),
            }
            save_checkpoint(self.run / "checkpoints", self.progress.step, tensors, self.progress.to_dict())
        self.ranks.wait()

    def complete(self) -> None:
        """Runs every step that is left. An interruption waits for the step under way, then leaves a checkpoint."""
        record = Record(self.run, self.progress.step, self.tensorboard) if self.ranks.first else None
        saved = time.monotonic()
        if self.recipe.keep_better and not self.progress.step and not self.progress.best:
            self._validate({"step": 0}, due=True)
        with Meter("training", self.total, "steps") as meter, Deferred() as signals:
            meter.start_at(self.progress.step)
            for row in self._steps():
                self._validate(row)
                if record is not None:
                    self._tell(record, meter, row)
                stop = self.ranks.agree(signals.received is not None)
                if stop or "recall@5" in row or self.ranks.agree(time.monotonic() - saved > self.checkpoint_seconds):
                    self.save()
                    saved = time.monotonic()
                if stop:
                    break
        if record is not None:
            record.close()
        signals.deliver()

    def _tell(self, record: Record, meter: Meter, row: dict[str, Any]) -> None:
        if row["step"] % RECORD_EVERY == 0 or row["step"] in (1, self.total) or "recall@5" in row:
            record.add(row)
        speed = self.progress.images / max(self.progress.seconds, 1e-9)
        meter.advance(1, f"loss {row['loss']:.4f}, {speed:.0f} images/s")

    # Generations

    @property
    def generation_steps(self) -> int:
        """Steps of a generation; the last one takes what is left over."""
        return max(1, self.total // self.recipe.generations)

    @property
    def generation(self) -> int:
        """Which generation the next step belongs to, from 0."""
        return min(self.progress.step // self.generation_steps, self.recipe.generations - 1)

    def _last_of_generation(self) -> int:
        """The step after the generation's last."""
        final = self.generation == self.recipe.generations - 1
        return self.total if final else (self.generation + 1) * self.generation_steps

    @property
    def loss(self) -> Callable[..., Tensor]:
        """What batches call."""
        return self.recipe.loss.in_generation(self.generation).bound(self.head)

    def _start_generation(self) -> None:
        """The model becomes the teacher; the student restarts from the initial weights, and mining starts again."""
        self.teacher = self._taught_by(self.model.state_dict())
        self.model.load_state_dict(self.first_weights)
        self.optimiser = make_optimiser(self.recipe, self.model, self.head)
        if self.miner is not None:
            self.miner.round = None

    def _taught_by(self, state: dict[str, Tensor]) -> PlaceModel:
        teacher = copy.deepcopy(self.model)
        teacher.load_state_dict(state)
        return teacher.eval().requires_grad_(False)

    def describe(self, trained: Callable[[Tensor], Tensor], features: Tensor) -> Tensor:
        """What the loss compares: (B, dim); for a loss of regions (B, models, regions, dim) of student and teacher."""
        described = trained(features).float()
        if not self.recipe.loss.regions:
            return described
        if self.teacher is None:
            return described.unsqueeze(1)
        with torch.no_grad():
            taught = self.teacher.region_descriptors(features).float()
        return torch.stack([described, taught], 1)

    # One step

    def _steps(self) -> Iterator[dict[str, Any]]:
        """Does each remaining step and yields its row of the record."""
        while self.progress.step < self.total:
            if self.generation and self.progress.step == self.generation * self.generation_steps:
                self._start_generation()
            last = self._last_of_generation()
            if self.miner is not None:
                last = min(last, self._mine(self.miner))
            stream = self._stream(self.progress.step, last)
            for step in range(self.progress.step, last):
                yield self._step(step, list(itertools.islice(stream, self.recipe.accumulate)))

    def _stream(self, first: int, last: int) -> Iterator[tuple[Needed, Fetched]]:
        """The batches of steps `first` to `last` with this rank's share of their features, fetched ahead."""
        waiting: deque[Needed] = deque()

        def requests() -> Iterator[tuple[Ids, ...]]:
            for step in range(first, last):
                for wanted in self._micro(step):
                    waiting.append(wanted)
                    yield self._request(wanted)

        for fetched in self.source.fetch(requests()):
            yield waiting.popleft(), fetched

    def _micro(self, step: int) -> list[Needed]:
        """The batches of one optimiser step."""
        first = step * self.recipe.accumulate
        batches = [self.data.batch(first + k, self.miner) for k in range(self.recipe.accumulate)]
        return [needed(batch, self.data.one_set) for batch in batches]

    def _request(self, wanted: Needed) -> tuple[Ids, ...]:
        """What this rank fetches of a batch: its share of the images, set by set."""
        mine = self.ranks.share(wanted.images)
        limits = np.cumsum([len(part) for part in wanted.request])[:-1]
        return tuple(np.split(np.concatenate(wanted.request)[mine], np.searchsorted(mine, limits)))

    def _step(self, step: int, micro: list[tuple[Needed, Fetched]]) -> dict[str, Any]:
        started = time.monotonic()
        torch.manual_seed(int(np.random.SeedSequence((self.seed, step)).generate_state(1)[0]))
        rate = self._set_rate(step)
        self.model.train()
        self.optimiser.zero_grad(set_to_none=True)
        total_weight = sum(wanted.batch.total_weight for wanted, _ in micro)
        loss = 0.0
        for k, (wanted, fetched) in enumerate(micro):
            loss += self._backward(wanted, fetched, total_weight, last=k == len(micro) - 1)
        self._update(step, loss, micro[0][0])
        p = self.progress
        p.step = step + 1
        p.images += sum(wanted.images for wanted, _ in micro)
        p.pairs += sum(len(wanted.batch) for wanted, _ in micro)
        p.redrawn += sum(wanted.batch.redrawn for wanted, _ in micro)
        p.seconds += time.monotonic() - started
        row = {"step": p.step, "images": p.images, "pairs": p.pairs, "loss": loss, "learning_rate": rate}
        return row | {
            "redrawn": p.redrawn, "seconds": round(p.seconds, 3), "mining_seconds": round(p.mining_seconds, 3),
        }  # fmt: skip

    def _backward(self, wanted: Needed, fetched: Fetched, total_weight: float, *, last: bool) -> float:
        mixed = self.recipe.precision != "float32"
        with self._unsynchronised() if not last else contextlib.nullcontext():
            with torch.autocast(self.ranks.device.type, getattr(torch, self.recipe.precision), enabled=mixed):
                descriptors = self.describe(self.trained, fetched.features)
            everyone = self.ranks.gather(descriptors, wanted.images)
            came = self.ranks.gather_ids(np.concatenate(fetched.ids), wanted.images)
            wanted = relabelled(wanted, came, self.data.labels)
            loss = weighted_loss(self.loss, wanted, everyone) / total_weight
            if torch.isfinite(loss):
                self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            return float(loss.detach())

    def _unsynchronised(self) -> contextlib.AbstractContextManager[None]:
        """Ranks exchange gradients only with the last batch of a step."""
        if isinstance(self.trained, DistributedDataParallel):
            return self.trained.no_sync()
        return contextlib.nullcontext()

    def _update(self, step: int, loss: float, wanted: Needed) -> None:
        if np.isfinite(loss):
            self.scaler.step(self.optimiser)
            self.scaler.update()
            self.progress.skipped = 0
            return
        self.progress.skipped += 1
        names = self.data.names(wanted.request)
        warn(f"step {step}: the loss is not finite and the step is skipped; images: {', '.join(names[:6])}, …")
        if self.progress.skipped >= BAD_STEPS:
            raise InputError(
                f"the loss was not finite {BAD_STEPS} steps in a row, the last at step {step} (images {', '.join(names[:3])}, …); "
                "look at these images or lower optimiser.learning_rate"
            )

    def _set_rate(self, step: int) -> float:
        first = self.generation * self.generation_steps
        last = self._last_of_generation()
        rate = self.recipe.optimiser.learning_rate * self.recipe.optimiser.rate((step - first) / (last - first))
        for group in self.optimiser.param_groups:
            group["lr"] = rate * group["factor"]
        return rate

    # Around the steps

    def _mine(self, miner: Miner) -> int:
        """Has negatives mined for the coming steps; returns the step from which they must be mined again."""
        started = time.monotonic()
        last = miner.renew(self.progress.step, self.model, self.source)
        self.progress.mining_seconds += time.monotonic() - started
        return last

    def _validate(self, row: dict[str, Any], *, due: bool = False) -> None:
        """At every validation point, or where it is `due`: scores the model and keeps the best."""
        if self.validator is None or not (due or self._due(row["step"])):
            return
        recall = self.validator.recall(self.model)
        row.update({f"recall@{k}": v for k, v in recall.items()})
        if self.ranks.first and recall["5"] > self.progress.best.get("5", -1.0):
            self.progress.best = {**recall, "step": row["step"]}
            self.model.save(self.run / "best", replace=True)
        self.ranks.wait()

    def _due(self, step: int) -> bool:
        every = max(1, self.total // max(1, self.recipe.validations))
        return step == self.total or (step % every == 0 and self.total - step >= every // 2)


def make_optimiser(recipe: Recipe, model: PlaceModel, head: nn.Module | None = None) -> torch.optim.Optimizer:
    """The optimiser of all parameters that learn; those of the pooling and of the loss's head have their own factor."""
    o = recipe.optimiser
    named = list(model.trained_parameters())
    groups = [
        {"params": [p for n, p in named if not n.startswith("pool.")], "factor": 1.0},
        {"params": [p for n, p in named if n.startswith("pool.")], "factor": o.head_rate},
        {"params": [] if head is None else list(head.parameters()), "factor": o.head_rate},
    ]
    groups = [g for g in groups if g["params"]]
    if not groups:
        raise InputError("nothing in this model learns; choose trainable=last1, last2 or all, or a pooling that learns")
    if o.name == "sgd":
        return torch.optim.SGD(groups, lr=o.learning_rate, momentum=o.momentum, weight_decay=o.weight_decay)
    return torch.optim.AdamW(groups, lr=o.learning_rate, weight_decay=o.weight_decay)
