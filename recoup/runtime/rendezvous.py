"""Ranks meet in a generation: all of them, or none; a newer generation calls off the older one.

A process group is made only after every rank of the world has announced itself in the same generation, so that nobody
waits in Gloo's connection set-up for a rank that is dead.
"""

import time
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from recoup.runtime import keys
from recoup.runtime.errors import JobError
from recoup.runtime.sockets import connected_sockets, shut_down

_POLL_SECONDS = 0.005


class SupersededError(JobError):
    """This process no longer owns its rank: another one took its place, and it must end."""


@dataclass(frozen=True, slots=True)
class Place:
    """A rank of the world, held by one process."""

    rank: int
    world_size: int
    incarnation: str


class Rendezvous:
    """Where one process of a rank meets the others."""

    def __init__(
        self, store: dist.TCPStore, place: "Place", *, join_limit: timedelta, exchange_limit: timedelta
    ) -> None:
        """Take the place of a rank; nothing is announced yet.

        Args:
            store: of the job, used by this thread only.
            place: which rank, of how many, as which process.
            join_limit: how long to wait for the other ranks.
            exchange_limit: time-out of the group's exchanges; heartbeats end a failed one long before.
        """
        self.rank = place.rank
        self.world_size = place.world_size
        self.generation = -1
        """Of the group that is joined, or being made."""
        self._sockets: dict[int, str] = {}
        self._before: dict[int, str] | None = None
        """What was connected before the group; None while no group is being made."""
        self._store = store
        self._incarnation = place.incarnation
        self._limit = join_limit.total_seconds()
        self._exchange_limit = exchange_limit

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
                deadline = time.monotonic() + self._limit  # each generation has its own
            wanted = [keys.joined(generation, rank) for rank in range(self.world_size)]
            if self._store.check(wanted):
                group = self._make(generation)
                if group is not None:
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
        """End the group's connections, so that every rank in one of its exchanges, or in its making, raises at once.

        Any thread may call this.
        """
        before = self._before
        opened = self._sockets if before is None else _opened_since(before)
        shut_down(opened)

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
        """Connect all ranks; None if a rank died between its announcement and the connection."""
        leave_group()
        self._before = connected_sockets()
        self.generation = generation  # from here on the heartbeat may call `leave`
        try:
            # A connection of the group's own: whoever waits in it for a dead rank's address can be woken.
            client = keys.connect(self._store.host, self._store.port, limit=self._exchange_limit)
            dist.init_process_group(
                "gloo",
                store=dist.PrefixStore(f"group/{generation}", client),
                rank=self.rank,
                world_size=self.world_size,
                timeout=self._exchange_limit,
            )
            group = dist.group.WORLD
            assert group is not None
            self._sockets, self._before = _opened_since(self._before), None
            dist.barrier(group)
        except RuntimeError:
            self.leave()
            self._before = None
            self.wait_for_newer(timedelta(seconds=self._limit))
            return None
        return group


def _opened_since(before: dict[int, str]) -> dict[int, str]:
    return {fd: name for fd, name in connected_sockets().items() if before.get(fd) != name}


def leave_group() -> None:
    """Leave the default process group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()
