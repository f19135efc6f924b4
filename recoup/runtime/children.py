"""The processes of one host's launcher: ranks and spares, started, watched, killed by their own ids."""

import os
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Child:
    """One process."""

    process: "subprocess.Popen[bytes]"
    incarnation: str
    started: float = field(default_factory=time.monotonic)

    @property
    def pid(self) -> int:
        """Process id."""
        return self.process.pid

    def kill(self) -> None:
        """End it at once, also when it is stopped."""
        try:
            os.kill(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return


class Children:
    """Start processes of one job on this host."""

    def __init__(self, folder: Path, host: str, port: int, *, resume: bool) -> None:
        """Remember what every process is told."""
        self._common = ["--folder", str(folder), "--host", host, "--port", str(port)]
        self._common += ["--launcher", str(os.getpid())]
        self._resume = ["--resume"] if resume else []
        self._log = folder / "ranks.log"

    def start_rank(self, rank: int, incarnation: str) -> Child:
        """Start the process of a rank."""
        return self._start(["--rank", str(rank), "--incarnation", incarnation], incarnation)

    def start_spare(self) -> Child:
        """Start a spare: it imports everything and waits for a task under its incarnation's name."""
        name = new_incarnation()
        return self._start(["--spare", name], name)

    def _start(self, args: list[str], incarnation: str) -> Child:
        command = [sys.executable, "-m", "recoup.runtime.worker", *self._common, *args, *self._resume]
        # A session of its own: Ctrl-C reaches the launcher alone, which ends its children itself.
        with self._log.open("ab") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log, start_new_session=True)
        return Child(process, incarnation)


def new_incarnation() -> str:
    """Return a name that no process ever had."""
    return uuid.uuid4().hex[:12]
