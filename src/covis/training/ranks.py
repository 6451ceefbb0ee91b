"""Several processes as one trainer: every rank embeds its share of a batch's images, all see all descriptors.

A batch is the same whatever the number of ranks. Its images are dealt out in contiguous shares, descriptors are
gathered with their gradient, and every rank computes the whole loss, so that pair, tuple and all-pairs batches need
no code of their own.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed

from covis import machine


@dataclass(frozen=True)
class Ranks:
    """This process among its fellows, as `torchrun` started them; alone without it."""

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
            distributed.init_process_group(backend, timeout=timedelta(minutes=30))
        return cls(distributed.get_rank(), distributed.get_world_size(), int(os.environ.get("LOCAL_RANK", "0")))

    @property
    def first(self) -> bool:
        """whether this process writes files and messages."""
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
        """Until every rank is here."""
        if self.world > 1:
            distributed.barrier()

    def agree(self, flag: bool) -> bool:
        """Whether any rank says yes."""
        if self.world == 1:
            return flag
        votes = torch.tensor([int(flag)], device=self.device)
        distributed.all_reduce(votes)
        return bool(votes.item())

    def leave(self) -> None:
        """Leaves the group."""
        if self.world > 1 and distributed.is_initialized():
            distributed.destroy_process_group()
