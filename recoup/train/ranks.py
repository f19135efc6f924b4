"""The ranks of one job: a process group that may exist already, and the few small agreements training needs.

Without a process group a world of one is made in memory (Gloo on CPU, NCCL beside it on CUDA): no environment
variables, no port. With one rank every agreement is local and costs nothing.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from recoup.core import RecoupError

B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among the ranks of `group`."""

    group: dist.ProcessGroup
    rank: int
    world_size: int

    @staticmethod
    def join(device: torch.device, group: dist.ProcessGroup | None = None) -> "Ranks":
        """Return the given group, the default group, or a new world of one."""
        if group is None and not dist.is_initialized():
            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        found = group or dist.group.WORLD
        assert found is not None
        return Ranks(group=found, rank=found.rank(), world_size=found.size())

    def sum(self, values: Tensor) -> Tensor:
        """Return the element-wise sum over ranks; `values` itself with one rank."""
        if self.world_size > 1:
            dist.all_reduce(values, group=self.group)
        return values

    def gather(self, value: B) -> list[B]:
        """Return every rank's value, in rank order."""
        if self.world_size == 1:
            return [value]
        values: list[B | None] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.group)
        return [value for value in values if value is not None]

    def agree(self, problem: RecoupError | None, numbers: Iterable[float], device: torch.device) -> list[float]:
        """Sum `numbers` over ranks and raise on all ranks if any has a problem.

        Raises:
            RecoupError: this rank's own problem, or the first other rank's, with its rank as a note.
        """
        if self.world_size == 1:
            if problem is not None:
                raise problem
            return list(numbers)
        packed = torch.tensor([float(problem is not None), *numbers], dtype=torch.float64, device=device)
        failed, *sums = self.sum(packed).tolist()
        if failed:
            reports = self.gather((self.rank, type(problem), str(problem) if problem else ""))
            first = next(report for report in reports if report[2])
            err = problem if problem is not None else _again(first[1], first[2])
            err.add_note(f"rank {self.rank if problem is not None else first[0]} of {self.world_size}")
            raise err
        return sums

    def in_step(self, batches: Iterable[B], empty: B) -> Iterator[B]:
        """Yield `batches`, then `empty` until no rank has any left: all ranks make the same number of steps."""
        waiting = iter(batches)
        while True:
            batch = next(waiting, None)
            if self.world_size > 1:
                left = self.sum(torch.tensor([float(batch is not None)]))
                if float(left) == 0:
                    return
                yield empty if batch is None else batch
            elif batch is None:
                return
            else:
                yield batch


def _again(kind: object, message: str) -> RecoupError:
    assert isinstance(kind, type)
    err = kind(message)
    assert isinstance(err, RecoupError)
    return err
