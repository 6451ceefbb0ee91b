"""Processes that train one model together, as `torchrun` starts them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed

from covis.core import machine
from covis.core.errors import InputError
from covis.core.foreign import first_line

_T = TypeVar("_T")
_TIMEOUT = timedelta(minutes=30)


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
                distributed.init_process_group(backend, timeout=_TIMEOUT, **_store())
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

    def first_then_all(self, work: Callable[[], _T]) -> _T:
        """`work` by the first rank, which leaves its result on disk, then by the others, which find it there."""
        if not self.first:
            self.wait()
            return work()
        result = work()
        self.wait()
        return result

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


def _store() -> dict[str, Any]:
    """Where ranks meet after `torchrun` restarted them: a new prefix, as its store still holds the old addresses.

    With several machines each counts its own restarts, so the store is used as it is.
    """
    attempt, ranks = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), os.environ["WORLD_SIZE"]
    if attempt == "0" or os.environ.get("LOCAL_WORLD_SIZE") != ranks:
        return {}
    from torch._C._distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    store, rank, world = next(rendezvous("env://", timeout=_TIMEOUT))
    return {"store": PrefixStore(f"attempt-{attempt}", store), "rank": rank, "world_size": world}
