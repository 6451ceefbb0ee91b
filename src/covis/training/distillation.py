"""A small model that learns from a large one, on photos without labels or positions.

The student learns the teacher's similarities: in each batch the cosine of every two photos is to equal the teacher's.
The descriptors of the two may differ in length and are not interchangeable. Held-out photos measure how often the
student finds what the teacher finds. After an interruption the same call resumes from a checkpoint in the cache.
"""

from __future__ import annotations

import math
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covis.core import artifacts, machine
from covis.core.arrays import Descriptors, Ids
from covis.core.errors import InputError
from covis.core.progress import Meter, say
from covis.describing.features import Features, open_features
from covis.descriptors import Describer
from covis.images import ImageSet
from covis.models import PlaceModel
from covis.training.data import describe_all
from covis.training.loop import Deferred, latest_checkpoint, save_checkpoint

_LEAST = 64
"""Fewest photos that distillation needs."""
_EVERY = 8
"""One photo in this many is held out."""
_NEAREST = 5
MOST_HELD = 500
_CACHE_BYTES = 8 << 30
_CHECKPOINT_SECONDS = 60.0


@dataclass(frozen=True)
class Distillation:
    """How the student learns."""

    steps: int = 500
    size: int = 64
    """Photos of a batch."""
    learning_rate: float = 1e-4
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps < 1 or self.size < 2 or not self.learning_rate > 0:
            raise InputError(
                f"distillation takes steps from 1, batches from 2 photos and a rate above 0, not {asdict(self)}"
            )


@dataclass(frozen=True)
class TeacherAgreement:
    """How far a student agrees with its teacher on held-out photos."""

    nearest: float
    """Percent of them for which the teacher's nearest photo is also the student's."""
    among_five: float
    """Percent of them for which the teacher's nearest photo is among the student's five nearest."""
    correlation: float
    """Correlation of the two cosines, over all pairs with a held-out photo."""


def teacher_agreement(teacher: Descriptors, student: Descriptors, held: Ids) -> TeacherAgreement:
    """Teacher (N, D) and student (N, d) on the photos `held`, each searched among all others."""
    theirs, own = (np.asarray(v[held], np.float32) @ np.asarray(v, np.float32).T for v in (teacher, student))
    others = np.ones_like(theirs, bool)
    others[np.arange(len(held)), held] = False
    correlation = float(np.corrcoef(theirs[others], own[others])[0, 1])
    theirs[~others] = own[~others] = -np.inf
    best = theirs.argmax(axis=1)
    nearest = np.argsort(-own, axis=1, kind="stable")[:, :_NEAREST]
    return TeacherAgreement(
        100 * float((nearest[:, 0] == best).mean()),
        100 * float((nearest == best[:, None]).any(axis=1).mean()),
        correlation,
    )


def distillation_facts(
    teacher: Describer, student: PlaceModel, images: ImageSet, settings: Distillation
) -> dict[str, Any]:
    """What decides the result, as JSON values."""
    return {
        "teacher": {key: teacher.facts.get(key) for key in ("label", "fingerprint")},
        "student": student.fingerprint(),
        "trainable": student.config.trainable,
        "images": images.fingerprint(),
        "settings": asdict(settings),
    }


def distil(
    teacher: Describer,
    student: PlaceModel,
    images: ImageSet,
    settings: Distillation | None = None,
    *,
    output: Path | None = None,
    workers: int | None = None,
    cache: Path | None = None,
) -> tuple[PlaceModel, dict[str, Any]]:
    """The trained student, without whitening, and its agreement with the teacher before and after, as JSON values.

    output: where the model is saved; its checkpoints are deleted afterwards.
    """
    settings = settings or Distillation()
    cache = cache or machine.cache_folder()
    decides = distillation_facts(teacher, student, images, settings)
    wanted, lost = teacher.describe(images)
    images = images.subset(~lost)
    if len(images) < _LEAST:
        raise InputError(f"{len(images)} photos can be used; distillation needs {_LEAST}: give more of them")
    device = torch.device(machine.device())
    student = student.whiten(None).to(device)
    source = open_features(
        student, (images,), seed=settings.seed, workers=machine.workers(workers),
        cache=cache / "features", cache_bytes=_CACHE_BYTES, device=device,
    )  # fmt: skip
    held = np.arange(_EVERY - 1, len(images), _EVERY)[:MOST_HELD]
    seen = np.setdiff1d(np.arange(len(images)), held)
    before = teacher_agreement(wanted, describe_all(student, source, 0, len(images)), held)
    folder = cache / "distillations" / artifacts.fingerprint(decides)
    with artifacts.claim(folder, "distillation", decides):
        _learn(student, source, np.asarray(wanted, np.float32), seen, settings, folder)
    after = teacher_agreement(wanted, describe_all(student, source, 0, len(images)), held)
    say(f"the teacher's nearest photo is the student's: {before.nearest:.1f} % before, {after.nearest:.1f} % after")
    outcome = {"photos": len(images), "held_out": len(held), "before": asdict(before), "after": asdict(after)}
    if output is not None:
        student.save(output, {"distilled": {**decides, **outcome}})
    shutil.rmtree(folder)
    return student, {**decides, **outcome}


def _learn(
    student: PlaceModel,
    source: Features,
    wanted: NDArray[np.float32],
    seen: Ids,
    settings: Distillation,
    folder: Path,
) -> None:
    """Trains the student: every step draws its photos by (seed, step); `folder` keeps checkpoints."""
    learned = [p for _, p in student.trained_parameters()]
    if not learned:
        raise InputError("nothing in the student learns; choose --trainable last1, last2 or all")
    optimiser = torch.optim.AdamW(learned, lr=settings.learning_rate)
    checkpoint = latest_checkpoint(folder)
    if checkpoint is not None:
        student.load_state_dict(checkpoint[1]["student"])
        optimiser.load_state_dict(checkpoint[1]["optimiser"])
    first = 0 if checkpoint is None else checkpoint[0]
    size = min(settings.size, len(seen))
    draws = (
        (np.sort(np.random.default_rng((settings.seed, step)).choice(seen, size, replace=False)),)
        for step in range(first, settings.steps)
    )
    saved = time.monotonic()
    student.train()
    with Meter("distillation", settings.steps, "steps") as meter, Deferred() as signals:
        meter.start_at(first)
        for step, fetched in enumerate(source.fetch(draws), first):
            for group in optimiser.param_groups:
                group["lr"] = settings.learning_rate * 0.5 * (1 + math.cos(math.pi * step / settings.steps))
            loss = _difference(student.suffix(fetched.features).float(), wanted[fetched.ids[0]])
            optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            meter.advance(1, f"loss {float(loss.detach()):.4f}")
            if signals.received is not None or time.monotonic() - saved > _CHECKPOINT_SECONDS:
                state = {"student": student.state_dict(), "optimiser": optimiser.state_dict()}
                save_checkpoint(folder, step + 1, state, {})
                saved = time.monotonic()
            if signals.received is not None:
                break
    student.eval()
    signals.deliver()


def _difference(vectors: Tensor, wanted: NDArray[np.float32]) -> Tensor:
    """Mean squared difference of the cosines of every two photos, by the student (B, d) and by the teacher (B, D)."""
    target = torch.from_numpy(wanted).to(vectors.device)
    apart = ~torch.eye(len(vectors), dtype=torch.bool, device=vectors.device)
    return (vectors @ vectors.T - target @ target.T)[apart].square().mean()
