"""Mined tuples while training: the round of hard negatives that a run is in."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from covis.describing.features import Features
from covis.models import PlaceModel
from covis.sampling import MinedRound, TupleBatch, TupleMiner
from covis.training.descriptors import describe_images

_ARRAYS = ("queries", "positives", "negatives", "psi")


class Miner:
    """The round of mined tuples that training is in; part of every checkpoint."""

    def __init__(self, rounds: TupleMiner, one_set: bool) -> None:
        self.rounds, self.one_set = rounds, one_set
        self.round: MinedRound | None = None

    def batch(self, number: int) -> TupleBatch:
        """The run's `number`-th batch, with mined negatives."""
        assert self.round is not None
        return self.round.batch(*divmod(number, len(self.rounds.sampler)))

    def renew(self, number: int, model: PlaceModel, source: Features) -> int:
        """Mines the round of batch `number` unless it is at hand; returns the first batch after the round."""
        epoch, index = divmod(number, len(self.rounds.sampler))
        if self.round is None or (epoch, index) not in self.round:
            plan = self.rounds.plan(epoch, index)
            queries = describe_images(model, source, 0, plan.queries)
            pool = describe_images(model, source, 0 if self.one_set else 1, plan.pool)
            self.round = self.rounds.mine(plan, queries, pool)
        left = len(self.round.tuples) // self.round.batch_size - (index - self.round.first)
        return number + left

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        if self.round is None:
            return {}
        arrays = {name: torch.from_numpy(np.array(getattr(self.round.tuples, name))) for name in _ARRAYS}
        return {"epoch": self.round.epoch, "first": self.round.first, "mined": self.round.mined, **arrays}

    def restore(self, state: dict[str, Any]) -> None:
        """Back from `state`."""
        if state:
            tuples = TupleBatch(*(state[name].numpy() for name in _ARRAYS))
            size = self.rounds.sampler.batch_size
            self.round = MinedRound(state["epoch"], state["first"], size, tuples, state["mined"])
