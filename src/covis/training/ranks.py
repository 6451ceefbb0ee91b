"""Processes that train one model together, as `torchrun` starts them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
_Number = TypeVar("_Number", bound=np.generic)
_TIMEOUT, _PATIENCE = timedelta(minutes=30), timedelta(days=7)
"""Limits of what ranks do together, and of waiting for work that the first rank does alone."""


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
            backend = "gloo"
            if torch.cuda.is_available():  # what the host decides is exchanged by gloo and keeps no GPU waiting
                backend = "cpu:gloo,cuda:nccl"
                torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
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
        """Positions of the `count` images that this rank embeds: in turn, so that each has some of every place and set."""
        if count < self.world:
            raise InputError(
                f"a batch of {count} images cannot be shared by {self.world} processes; set batches.size higher"
            )
        return np.arange(self.rank, count, self.world)

    def gather(self, descriptors: Tensor, count: int) -> Tensor:
        """Descriptors of all `count` images, in order, from every rank's share; gradients flow back to their rank."""
        if self.world == 1:
            return descriptors
        size = -(-count // self.world)
        padded = torch.nn.functional.pad(descriptors, (0, 0, 0, size - len(descriptors)))
        return self.gather_equal(padded).transpose(0, 1).flatten(0, 1)[:count]

    def gather_equal(self, values: Tensor) -> Tensor:
        """Every rank's `values` of one shape, stacked; gradients of all ranks' losses flow back to their rank."""
        gathered: Tensor = _Gathered.apply(values.contiguous(), self.rank, self.world)  # type: ignore[no-untyped-call]
        return gathered

    def gather_ids(self, ids: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """Ids of all `count` images, in order, from every rank's share."""
        return ids if self.world == 1 else self.gather_rows(ids[:, None], count)[:, 0]

    def gather_rows(self, rows: NDArray[_Number], count: int) -> NDArray[_Number]:
        """All `count` rows, in order, from every rank's share, between hosts."""
        if self.world == 1:
            return rows
        mine = np.zeros((-(-count // self.world), *rows.shape[1:]), rows.dtype)
        mine[: len(rows)] = rows
        shares = [torch.empty(mine.shape, dtype=torch.from_numpy(mine).dtype) for _ in range(self.world)]
        distributed.all_gather(shares, torch.from_numpy(mine))
        return np.asarray(torch.stack(shares, 1).flatten(0, 1)[:count].numpy())

    def wait(self) -> None:
        """Waits until every rank has arrived."""
        if self.world > 1:
            distributed.barrier()

    @contextmanager
    def first_alone(self) -> Iterator[None]:
        """Around what the first rank does alone and may take hours; the others wait at the end of it."""
        waiting = distributed.new_group(backend="gloo", timeout=_PATIENCE) if self.world > 1 else None
        yield
        if waiting is not None:
            distributed.barrier(waiting)

    def first_then_all(self, work: Callable[[], _T]) -> _T:
        """`work` by the first rank, which leaves its result on disk, then by the others, which find it there."""
        with self.first_alone():
            result = [work()] if self.first else []
        return result[0] if result else work()

    def agree(self, flags: int) -> int:
        """The bits that any rank has set."""
        if self.world == 1:
            return flags
        votes = torch.tensor([int(flags)])
        distributed.all_reduce(votes, distributed.ReduceOp.BOR)
        return int(votes.item())

    def lost(self, error: RuntimeError) -> bool:
        """Whether an error means that another rank is gone."""
        words = ("gloo", "Connection", "connection", "NCCL", "peer")
        return self.world > 1 and (isinstance(error, distributed.DistError) or any(w in str(error) for w in words))

    def leave(self) -> None:
        """Leaves the group."""
        if self.world > 1 and distributed.is_initialized():
            distributed.destroy_process_group()


class _Gathered(torch.autograd.Function):
    """Stacks every rank's tensor; backward, a rank gets the sum of what all ranks' losses say of its own."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, rank: int, world: int) -> Tensor:
        ctx.rank = rank
        shares = [torch.empty_like(values) for _ in range(world)]
        distributed.all_gather(shares, values)
        return torch.stack(shares)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        summed = gradients[0].clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(summed)
        return summed[ctx.rank], None, None


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
