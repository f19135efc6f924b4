"""A rank's sign of life: a thread that tells the launcher that the process runs, and what it is doing.

A frozen process sends nothing; a slow one says for how long it has been at the same thing. The same thread ends the
process when its launcher is gone, or when another process owns its rank.
"""

import json
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Literal

import torch.distributed as dist

from recoup.runtime import keys

Phase = Literal["starting", "meeting", "recovering", "reading", "training", "saving", "evaluating", "done"]

ERROR_EXIT = 3
"""Exit code of a process that met an error which no restart mends."""
SUPERSEDED_EXIT = 4
"""Exit code of a process whose rank belongs to another one."""
ORPHAN_EXIT = 5
"""Exit code of a process whose launcher is gone."""


class Heartbeat:
    """Send heartbeats until the process ends."""

    def __init__(self, host: str, port: int, *, rank: int, incarnation: str, beat: timedelta) -> None:
        """Start the thread; it has a connection of its own, which is open when this returns.

        `on_newer` is called with the newest generation at every beat.
        """
        self.phase: Phase = "starting"
        self.step = 0
        self._since = time.monotonic()
        self._rank = rank
        self._incarnation = incarnation
        self._beat = beat.total_seconds()
        self._launcher = os.getppid()
        self._address = host, port
        self.on_newer: Callable[[int], None] = _ignore
        self._connected = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recoup-heartbeat", daemon=True)
        self._thread.start()
        self._connected.wait()

    def enter(self, phase: Phase, step: int) -> None:
        """Say what the rank does from now on."""
        self.phase, self.step, self._since = phase, step, time.monotonic()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            store = keys.connect(*self._address, limit=timedelta(seconds=10))
            self._connected.set()
            while not self._stop.wait(self._beat):
                self._send(store)
        except (dist.DistError, RuntimeError):
            if not self._stop.is_set():
                os._exit(ORPHAN_EXIT)  # the store is gone, and with it the launcher that holds it

    def _send(self, store: dist.Store) -> None:
        if os.getppid() != self._launcher:
            os._exit(ORPHAN_EXIT)
        if store.get(keys.owner(self._rank)).decode() != self._incarnation:
            os._exit(SUPERSEDED_EXIT)
        state = {
            "incarnation": self._incarnation,
            "phase": self.phase,
            "step": self.step,
            "seconds": time.monotonic() - self._since,
        }
        store.set(keys.beat(self._rank), json.dumps(state))
        self.on_newer(keys.generation_of(store))


def _ignore(generation: int) -> None:
    """Do nothing about the newest generation: no group is joined yet."""
    del generation
