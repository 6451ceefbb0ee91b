"""What an epoch of training costs on this machine, measured on some steps."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from covis.training.memory import peak_gib
from covis.training.ranks import Ranks
from covis.training.recipe import Recipe
from covis.training.run import Resources, arithmetic, open_loop


@dataclass(frozen=True)
class Cost:
    """The columns of Table 5 that can be measured."""

    hours_per_epoch: float
    """Extrapolated from wall time; decoding, the frozen part and mining included."""
    peak_gib: float
    """As `covis.training.memory.peak_gib` measures it."""
    steps: int
    """Measured steps."""
    device: str


COST_WARM_STEPS, COST_STEPS = 3, 20


def measure_steps(recipe: Recipe, run: Path, data: Path | None, workers: int | None = None) -> Cost:
    """Trains some steps of a recipe in `run`, after others that pay for one-off set-up, and measures their cost."""
    ranks = Ranks.join()
    plain, quiet = replace(recipe, validation="", steps=None), Resources(workers, None, math.inf, tensorboard=False)
    with arithmetic(recipe):
        loop = open_loop(plain, run, data, 0, quiet, ranks)
        if ranks.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        loop.total = COST_WARM_STEPS
        loop.complete()
        round_seconds, started = loop.progress.mining_seconds, time.monotonic()
        loop.total += COST_STEPS
        loop.complete()
    step_seconds = (time.monotonic() - started - loop.progress.mining_seconds + round_seconds) / COST_STEPS
    batches = len(loop.data.sampler)
    rounds = batches / getattr(recipe.batches, "refresh", batches)
    cuda = ranks.device.type == "cuda"
    return Cost(
        hours_per_epoch=(step_seconds * batches / recipe.accumulate + round_seconds * rounds) / 3600,
        peak_gib=peak_gib(ranks.device),
        steps=COST_STEPS,
        device=torch.cuda.get_device_name() if cuda else "CPU",
    )
