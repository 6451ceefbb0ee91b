"""What a step of training costs on this machine, measured."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from covis.training.ranks import Ranks
from covis.training.recipe import Recipe
from covis.training.run import Resources, arithmetic, open_loop


@dataclass(frozen=True)
class Cost:
    """What training costs on this machine, measured over some steps of a run."""

    seconds_per_1000_pairs: float
    """Wall time of steps, decoding and the frozen part included, mining apart; tuples count as pairs."""
    cpu_seconds_per_1000_pairs: float
    """Processor time of this process in those steps, which a busy machine does not change."""
    mining_seconds_per_1000_pairs: float
    peak_gib: float
    """Peak of the GPU's memory, or of the whole process where there is no GPU."""
    pairs_per_epoch: int
    steps: int
    """Measured steps."""
    device: str

    @property
    def hours_per_epoch(self) -> float:
        """Extrapolated from the measured steps."""
        both = self.seconds_per_1000_pairs + self.mining_seconds_per_1000_pairs
        return both * self.pairs_per_epoch / 1000 / 3600


COST_WARM_STEPS, COST_STEPS = 3, 20


def measure_steps(
    recipe: Recipe, run: Path, data: Path | None, seed: int = 0, workers: int | None = None, *, steps: int = COST_STEPS
) -> Cost:
    """Trains some steps of a recipe in `run`, after others that pay for one-off set-up, and measures their cost."""
    import resource

    ranks = Ranks.join()
    plain = replace(recipe, validation="", steps=None)
    with arithmetic(recipe):
        loop = open_loop(
            plain, run, data, seed, Resources(workers, tensorboard=False, checkpoint_seconds=math.inf), ranks
        )
        progress, batches = loop.progress, len(loop.data.sampler)
        if ranks.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        loop.total = COST_WARM_STEPS
        loop.complete()
        once, pairs, started, used = progress.mining_seconds, progress.pairs, time.monotonic(), time.process_time()
        loop.total += steps
        loop.complete()
        used = time.process_time() - used
    seconds = time.monotonic() - started - (progress.mining_seconds - once)
    if ranks.device.type == "cuda":
        peak, device = torch.cuda.max_memory_allocated(), torch.cuda.get_device_name()
    else:
        peak, device = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "CPU"
    per_batch = progress.pairs / (COST_WARM_STEPS + steps) / recipe.accumulate
    renewed = per_batch * getattr(recipe.batches, "refresh", 1)
    return Cost(
        seconds_per_1000_pairs=1000 * seconds / (progress.pairs - pairs),
        cpu_seconds_per_1000_pairs=1000 * used / (progress.pairs - pairs),
        mining_seconds_per_1000_pairs=1000 * once / renewed if once else 0.0,
        peak_gib=peak / (1 << 30),
        pairs_per_epoch=round(per_batch * batches),
        steps=steps,
        device=device,
    )
