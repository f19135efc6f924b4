"""Ranks meet in a generation: all of them, or none; a newer generation calls off the older one.

A process group is made only after every rank of the world has announced itself in the same generation, so that nobody
waits in Gloo's connection set-up for a rank that is dead.
"""

import time
from datetime import timedelta

import torch.distributed as dist

from recoup.runtime import keys
from recoup.runtime.errors import JobError
from recoup.runtime.sockets import connected_sockets, shut_down

_POLL_SECONDS = 0.005


class SupersededError(JobError):
    """This process no longer owns its rank: another one took its place, and it must end."""


class Rendezvous:
    """Where one process of a rank meets the others."""

    def __init__(self, store: dist.Store, *, rank: int, world_size: int, incarnation: str, limit: timedelta) -> None:
        """Take the place of `rank`; nothing is announced yet."""
        self.rank = rank
        self.world_size = world_size
        self.generation = -1
        self._sockets: dict[int, str] = {}
        self._store = store
        self._incarnation = incarnation
        self._limit = limit.total_seconds()

    def meet(self) -> dist.ProcessGroup:
        """Return the process group of the newest generation, once all ranks have come.

        Raises:
            SupersededError: another process owns the rank.
            JobError: some ranks did not come within the limit; they are named.
        """
        deadline = time.monotonic() + self._limit
        announced = -1
        while True:
            self.check_owner()
            generation = keys.generation_of(self._store)
            if generation != announced:
                self._store.set(keys.joined(generation, self.rank), self._incarnation)
                announced = generation
            wanted = [keys.joined(generation, rank) for rank in range(self.world_size)]
            if self._store.check(wanted):
                group = self._make(generation)
                if group is not None:
                    self.generation = generation
                    return group
                continue
            if time.monotonic() > deadline:
                absent = [rank for rank, key in enumerate(wanted) if not self._store.check([key])]
                raise JobError(
                    f"rank {self.rank} waited {self._limit:.0f} s in generation {generation} for ranks {absent}: "
                    "their hosts or launchers are gone"
                )
            time.sleep(_POLL_SECONDS)

    def leave(self) -> None:
        """End the group's connections, so that every other rank in one of its exchanges raises at once."""
        shut_down(self._sockets)
        self._sockets = {}

    def wait_for_newer(self, limit: timedelta) -> None:
        """Wait until a launcher has begun a newer generation.

        Raises:
            JobError: none was begun within the limit: no rank was found dead.
        """
        deadline = time.monotonic() + limit.total_seconds()
        while keys.generation_of(self._store) <= self.generation:
            if time.monotonic() > deadline:
                raise JobError(
                    f"rank {self.rank}: an exchange of generation {self.generation} failed, but no rank was reported "
                    f"dead within {limit.total_seconds():.0f} s: the network between hosts is suspect"
                )
            time.sleep(_POLL_SECONDS)

    def check_owner(self) -> None:
        """Refuse to go on when the rank has another owner.

        Raises:
            SupersededError: it has.
        """
        found = self._store.get(keys.owner(self.rank)).decode()
        if found != self._incarnation:
            raise SupersededError(
                f"rank {self.rank} is owned by process {found}, this is {self._incarnation}: ending this one"
            )

    def _make(self, generation: int) -> dist.ProcessGroup | None:
        leave_group()
        before = connected_sockets()
        prefix = dist.PrefixStore(f"group/{generation}", self._store)
        try:
            dist.init_process_group(
                "gloo", store=prefix, rank=self.rank, world_size=self.world_size, timeout=timedelta(seconds=self._limit)
            )
            group = dist.group.WORLD
            assert group is not None
            opened = connected_sockets()
            self._sockets = {fd: identity for fd, identity in opened.items() if before.get(fd) != identity}
            dist.barrier(group)
        except RuntimeError:
            # A rank died between its announcement and the connection: its launcher begins a newer generation.
            self.leave()
            self.generation = generation
            self.wait_for_newer(timedelta(seconds=self._limit))
            return None
        return group


def leave_group() -> None:
    """Leave the default process group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()
