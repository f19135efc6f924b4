"""The launcher of one host: it holds the store (host 0), starts a process a rank, and replaces only those that die.

A death begins a new generation: the launcher counts it up in the store, names the dead rank, and starts a process in
its place (or gives the rank to a spare). Survivors notice by their failing exchange, or are told; they meet the new
process in the newest generation. A rank that is silent (frozen), or stands still in its reader or save while others
wait, is killed first. Launchers watch each other too. When a launcher ends, its children end: the kernel sees to it.
Detection: a killed rank within 0.02 s on its host, a frozen one within `silence_limit`, a slow one within
`stall_limit`.
"""

import json
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from recoup.core import EventLog
from recoup.runtime import keys
from recoup.runtime.children import Child, Children, new_incarnation
from recoup.runtime.config import LaunchConfig
from recoup.runtime.errors import JobError
from recoup.runtime.heartbeat import ERROR_EXIT, SUPERSEDED_EXIT

_POLL_SECONDS = 0.01
_EARLY_SECONDS = 10.0
_LONGEST_BACK_OFF = 30.0
_WAITING = {"meeting", "training", "recovering", "evaluating"}  # phases in which a rank may be waiting for others


class Launcher:
    """Supervise the ranks of one host until the job ends."""

    def __init__(self, folder: Path, config: LaunchConfig, *, resume: bool, events: EventLog) -> None:
        """Make or join the store; nothing is started yet.

        Raises:
            JobError: the store cannot be reached.
        """
        self._config = config
        self._events = events
        host, port = _address(config)
        self._master = (
            dist.TCPStore(host, port, is_master=True, wait_for_workers=False) if config.node_rank == 0 else None
        )
        port = self._master.port if self._master is not None else port
        try:
            self.store: dist.Store = keys.connect(host, port, limit=config.join_limit)
        except RuntimeError as err:
            raise JobError(f"expected the store of host 0 at {host}:{port}, got: {err}") from err
        self._children = Children(folder, host, port, resume=resume)
        self.ranks: dict[int, Child] = {}
        self.spares: list[Child] = []
        self._done: set[int] = set()
        self._beats: dict[int, tuple[str, float]] = {}
        self._launcher_beats: dict[int, tuple[str, float]] = {}
        self._due: dict[int, float] = {}
        self._early: dict[int, int] = {}
        self._restarts = 0

    def run(self, on_poll: Callable[["Launcher"], None] | None = None) -> None:
        """Start everything and return when every rank of this host has finished.

        Args:
            on_poll: called a hundred times a second; tests inject failures with it.
        Raises:
            JobError: a rank ended with an error, deaths were too many, or the store is gone.
        """
        try:
            self._begin()
            while len(self._done) < len(self._config.local_ranks):
                self._watch()
                if on_poll is not None:
                    on_poll(self)
                time.sleep(_POLL_SECONDS)
            self._part()
        except dist.DistError as err:
            raise JobError(f"the store of host 0 is gone: {err}: start every host again, with --resume") from err
        finally:
            for child in (*self.ranks.values(), *self.spares):
                child.kill()
                child.process.wait()

    def _begin(self) -> None:
        if self._config.node_rank or self._rejoining():
            self.store.add(keys.GENERATION, 1 if self._rejoining() else 0)
        for rank in self._config.local_ranks:
            self._start(rank)
        self.spares = [self._children.start_spare() for _ in range(self._config.spares)]

    def _part(self) -> None:
        """Say that this host is done; host 0 keeps the store until all others have said so, or are lost."""
        if self._config.node_rank:
            self.store.add(keys.FINISHED, 1)
            return
        deadline = time.monotonic() + self._config.join_limit.total_seconds()
        while self.store.add(keys.FINISHED, 0) < self._config.nnodes - 1 and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)

    def _rejoining(self) -> bool:
        return self.store.check([keys.owner(self._config.local_ranks[0])])

    def _start(self, rank: int) -> None:
        spare = self._take_spare()
        incarnation = spare.incarnation if spare is not None else new_incarnation()
        self.store.set(keys.owner(rank), incarnation)
        if spare is not None:
            keys.set_json(self.store, keys.assign(incarnation), {"rank": rank, "incarnation": incarnation})
            spare.started = time.monotonic()
            self.ranks[rank] = spare
            self.spares.append(self._children.start_spare())
        else:
            self.ranks[rank] = self._children.start_rank(rank, incarnation)
        self._beats[rank] = "", time.monotonic()
        self._events.emit("rank_started", rank=rank, pid=self.ranks[rank].pid, spare=spare is not None)

    def _take_spare(self) -> Child | None:
        while self.spares:
            spare = self.spares.pop(0)
            if spare.process.poll() is None:
                return spare
        return None

    def _watch(self) -> None:
        now = time.monotonic()
        dead: dict[int, str] = {}
        for rank, child in self.ranks.items():
            if rank in self._done or rank in self._due:
                continue
            code = child.process.poll()
            if code is None:
                self._check_beat(rank, child, now)
            elif code == 0:
                self._done.add(rank)
            elif code == ERROR_EXIT:
                raise JobError(f"rank {rank} ended with an error: see its last lines in 'ranks.log'")
            else:
                dead[rank] = "superseded" if code == SUPERSEDED_EXIT else f"ended with {code}"
        if dead:
            self._bury(dead, now)
        for rank, due in list(self._due.items()):
            if now >= due:
                del self._due[rank]
                self._start(rank)
        self._watch_launchers(now)

    def _bury(self, dead: dict[int, str], now: float) -> None:
        self._restarts += len(dead)
        if self._restarts > self._config.max_restarts:
            raise JobError(
                f"{self._restarts} deaths of ranks on this host, the limit is {self._config.max_restarts}: "
                f"last rank {max(dead)} {dead[max(dead)]}"
            )
        for rank in dead:
            early = now - self.ranks[rank].started < _EARLY_SECONDS
            self._early[rank] = self._early.get(rank, -1) + 1 if early else 0
            pause = self._config.back_off.total_seconds() * (2 ** self._early[rank] - 1) if early else 0.0
            self._due[rank] = now + min(pause, _LONGEST_BACK_OFF)
            self.store.set(keys.owner(rank), "nobody")
        generation = self.store.add(keys.GENERATION, 1)
        keys.set_json(self.store, keys.death(generation), {"ranks": sorted(dead), "cause": dead})
        self._events.emit("rank_died", generation=generation, ranks=sorted(dead), cause=list(dead.values()))

    def _check_beat(self, rank: int, child: Child, now: float) -> None:
        raw = self.store.get(keys.beat(rank)).decode() if self.store.check([keys.beat(rank)]) else ""
        last, seen = self._beats[rank]
        if raw and raw != last and json.loads(raw)["incarnation"] == child.incarnation:
            self._beats[rank] = raw, now
            self._check_pace(rank, child, json.loads(raw))
            return
        limit = self._config.silence_limit if last else self._config.join_limit
        if now - seen > limit.total_seconds():
            self._events.emit("rank_silent", rank=rank, pid=child.pid, seconds=now - seen)
            child.kill()

    def _check_pace(self, rank: int, child: Child, beat: dict[str, Any]) -> None:
        """Kill a rank that is too long at one thing: on its own, or where others have given up waiting for it."""
        phase, seconds = beat["phase"], beat["seconds"]
        if seconds <= self._config.stall_limit.total_seconds() or phase in ("meeting", "done"):
            return
        if phase in _WAITING and not self._others_gave_up():
            return
        self._events.emit("rank_slow", rank=rank, pid=child.pid, phase=phase, seconds=seconds)
        child.kill()

    def _others_gave_up(self) -> bool:
        """Whether some rank has left an exchange and waits for a newer generation that nobody has begun."""
        limit = self._config.silence_limit.total_seconds()
        beats = (keys.get_json(self.store, keys.beat(rank)) for rank in range(self._config.world_size))
        return any(beat and beat["phase"] == "meeting" and beat["seconds"] > limit for beat in beats)

    def _watch_launchers(self, now: float) -> None:
        if self._config.nnodes == 1:
            return
        self.store.set(keys.launcher(self._config.node_rank), f"{now}")
        if self._config.node_rank:
            return
        for node in range(1, self._config.nnodes):
            key = keys.launcher(node)
            raw = self.store.get(key).decode() if self.store.check([key]) else ""
            last, seen = self._launcher_beats.get(node, ("", now))
            if raw != last or not raw:
                self._launcher_beats[node] = raw, now
            elif now - seen > self._config.silence_limit.total_seconds():
                self._launcher_beats[node] = raw, now + timedelta(days=365).total_seconds()
                self._host_lost(node)

    def _host_lost(self, node: int) -> None:
        ranks = list(range(node * self._config.nproc, (node + 1) * self._config.nproc))
        for rank in ranks:
            self.store.set(keys.owner(rank), "nobody")
        generation = self.store.add(keys.GENERATION, 1)
        keys.set_json(self.store, keys.death(generation), {"ranks": ranks, "cause": "launcher silent"})
        self._events.emit("host_lost", generation=generation, node=node, ranks=ranks)


def _address(config: LaunchConfig) -> tuple[str, int]:
    if not config.store:
        return "127.0.0.1", 0
    host, _, port = config.store.rpartition(":")
    if not host or not port.isdigit():
        raise JobError(f"expected --store HOST:PORT, got {config.store!r}")
    return host, int(port)
