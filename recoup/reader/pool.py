"""Worker processes as one ordered stream of fragments; a dead or frozen worker is replaced, nothing lost or doubled.

Bounds: a worker that dies is noticed at once (its socket closes); one that is frozen, `silence_limit` after the reader
begins to wait; no fragment for `stall_limit` is an error, and so is one restart more than `max_restarts` an epoch.
What a worker finished before it died is used; the rest of its tasks goes to its replacement, cut by cut.
"""

import contextlib
import os
import pickle
import select
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from recoup.reader.assemble import ReadJob, ReadTask
from recoup.reader.channel import Cancel, Channel, Credit, Done, Failed, Free, Work
from recoup.reader.errors import ReaderError
from recoup.reader.fragment import Fragment
from recoup.reader.segments import Segment
from recoup.reader.worker import WorkerStart

START_LIMIT_SECONDS = 120.0  # Python start and imports take 1-2 s on a quiet machine; ten times that on a crowded one
TASKS_A_WORKER = 2  # one in work, one waiting, so that no worker idles for a round trip
_ROOT = str(Path(__file__).resolve().parents[2])
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); from recoup.reader.worker import main; main(*map(int, sys.argv[2:]))"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolLimits:
    """Numbers of `ReaderConfig`, in seconds."""

    num_workers: int
    prefetch: int
    silence_seconds: float
    stall_seconds: float
    max_restarts: int


@dataclass(slots=True)
class _Pending:
    """A task that was given out: what came back, and what is still to come."""

    task: ReadTask
    worker: int
    received: int = 0
    """Cuts received from the task's present form."""
    ready: deque[tuple[Fragment, int]] = field(default_factory=deque)
    """Fragments to hand on, with the incarnation of the worker that waits for the credit."""
    error: ReaderError | None = None


class _Handle:
    """One live worker process."""

    def __init__(self, start: WorkerStart, incarnation: int) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        start_file = os.memfd_create("recoup-worker-start", 0)
        os.write(start_file, pickle.dumps(start))
        os.lseek(start_file, 0, os.SEEK_SET)
        arguments = [sys.executable, "-c", _PROGRAM, _ROOT, str(theirs.fileno()), str(start_file)]
        self.process = subprocess.Popen(arguments, pass_fds=(theirs.fileno(), start_file), stdin=subprocess.DEVNULL)
        theirs.close()
        os.close(start_file)
        self.channel = Channel(ours)
        self.incarnation = incarnation
        self.segments: dict[int, Segment] = {}
        self.num_idle = 0
        self.released: deque[int] = deque()
        self.last_sign = time.monotonic()
        self.heard = False

    def kill(self) -> None:
        """End the process, frozen or not, and reap it."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Kill and close."""
        self.kill()
        self.channel.close()


class WorkerPool:
    """`num_workers` processes that read tasks; one iteration (`read`) at a time."""

    def __init__(self, job: ReadJob, limits: PoolLimits) -> None:
        """Start the workers."""
        self._limits = limits
        self._job = job
        self._incarnations = 0
        self._workers: list[_Handle] = [self._new_worker() for _ in range(limits.num_workers)]
        self._run = 0
        self._restarts = 0
        self._pending: deque[_Pending] = deque()
        self._close: Callable[[], object] = weakref.finalize(self, _close_all, self._workers)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers, by worker number."""
        return tuple(handle.process.pid for handle in self._workers)

    def close(self) -> None:
        """End all workers; the pool cannot be used again."""
        self._close()

    def read(self, tasks: Iterator[ReadTask]) -> Generator[Fragment, None, None]:
        """Yield the fragments of `tasks` in order.

        Raises:
            ReaderError: a task failed, workers kept dying, or none answered in time.
        """
        self._run += 1
        self._restarts = 0
        try:
            self._hand_out(tasks)
            while self._pending:
                head = self._pending[0]
                self._wait_for(head)
                while head.ready:
                    fragment, incarnation = head.ready.popleft()
                    self._credit(head.worker, incarnation)
                    self._return_segments()
                    yield fragment
                    del fragment
                if head.received == len(head.task.cuts):
                    self._pending.popleft()
                    self._hand_out(tasks)
        finally:
            self._cancel()

    def _hand_out(self, tasks: Iterator[ReadTask]) -> None:
        """Give every worker up to TASKS_A_WORKER tasks, in order."""
        while True:
            load = [0] * len(self._workers)
            for pending in self._pending:
                load[pending.worker] += 1
            number = min(range(len(load)), key=lambda i: (load[i], i))
            if load[number] >= TASKS_A_WORKER:
                return
            task = next(tasks, None)
            if task is None:
                return
            self._pending.append(_Pending(task, number))
            self._send(number, Work(self._run, task))

    def _wait_for(self, head: _Pending) -> None:
        began = time.monotonic()
        while not head.ready:
            if head.error is not None:
                raise head.error
            self._listen(0.2, began)
            if time.monotonic() - began > self._limits.stall_seconds:
                raise ReaderError(
                    f"expected a batch from reader worker {head.worker} within {self._limits.stall_seconds:g} s "
                    f"(worker_stall_limit), got none: is the storage of {head.task.stripe} answering"
                )

    def _listen(self, seconds: float, began: float) -> None:
        """Wait up to `seconds` for messages, handle them, replace workers that are dead or silent."""
        self._return_segments()
        poll = select.poll()
        for handle in self._workers:
            poll.register(handle.channel, select.POLLIN)
        readable = {descriptor for descriptor, _ in poll.poll(seconds * 1000)}
        for number, handle in enumerate(self._workers):
            if handle.channel.fileno() in readable and not self._drain(number, handle):
                self._replace(number, f"ended with exit code {_exit_code(handle)}")
                continue
            limit = self._limits.silence_seconds if handle.heard else START_LIMIT_SECONDS
            if time.monotonic() - max(handle.last_sign, began) > limit:
                self._replace(number, f"gave no sign of life for {limit:g} s")

    def _drain(self, number: int, handle: _Handle) -> bool:
        """Handle all messages that are there; False when the worker is gone."""
        try:
            while (received := handle.channel.receive(wait=False)) is not None:
                handle.last_sign = time.monotonic()
                handle.heard = True
                message, descriptor = received
                if isinstance(message, Done):
                    self._take(number, handle, message, descriptor)
                elif isinstance(message, Failed):
                    self._fail(number, message)
        except EOFError:
            return False
        return True

    def _take(self, number: int, handle: _Handle, done: Done, descriptor: int) -> None:
        if done.capacity:
            handle.segments[done.packed.segment] = Segment(done.packed.segment, done.capacity, descriptor)
        else:
            handle.num_idle -= 1
        segment = handle.segments[done.packed.segment]
        fragment = segment.view(done.packed, partial(handle.released.append, done.packed.segment))
        pending = self._find(done.run, number, done.task)
        if pending is None:  # of an iteration that was left early
            self._credit(number, handle.incarnation)
            return
        assert done.cut == pending.received
        pending.received += 1
        pending.ready.append((fragment, handle.incarnation))

    def _fail(self, number: int, failed: Failed) -> None:
        pending = self._find(failed.run, number, failed.task)
        if pending is not None:
            pending.error = ReaderError(failed.message)
            if failed.detail:
                pending.error.add_note(f"in reader worker {number}: {failed.detail}")

    def _find(self, run: int, number: int, task: int) -> _Pending | None:
        if run != self._run:
            return None
        return next((p for p in self._pending if p.worker == number and p.task.number == task), None)

    def _replace(self, number: int, reason: str) -> None:
        """Start another worker in the place of `number` and give it the rest of its tasks."""
        old = self._workers[number]
        old.kill()
        self._drain(number, old)
        old.channel.close()
        self._restarts += 1
        if self._restarts > self._limits.max_restarts:
            self.close()
            raise ReaderError(
                f"expected reader workers that stay alive, got worker {number} (pid {old.process.pid}), which "
                f"{reason}, after {self._limits.max_restarts} restarts this epoch (max_worker_restarts): "
                f"was memory short"
            )
        self._workers[number] = self._new_worker()
        for pending in self._pending:
            if pending.worker == number and pending.received < len(pending.task.cuts) and pending.error is None:
                pending.task = replace(pending.task, cuts=pending.task.cuts[pending.received :])
                pending.received = 0
                self._send(number, Work(self._run, pending.task))

    def _new_worker(self) -> _Handle:
        self._incarnations += 1
        in_main_thread = threading.current_thread() is threading.main_thread()
        start = WorkerStart(self._job, self._limits.prefetch, os.getpid(), die_with_parent=in_main_thread)
        return _Handle(start, self._incarnations)

    def _credit(self, number: int, incarnation: int) -> None:
        if self._workers[number].incarnation == incarnation:
            self._send(number, Credit())

    def _return_segments(self) -> None:
        """Tell workers which segments nobody looks at; beyond what prefetching needs they are dropped."""
        for number, handle in enumerate(self._workers):
            while handle.released:
                segment = handle.released.popleft()
                drop = handle.num_idle > self._limits.prefetch
                if drop:
                    del handle.segments[segment]
                else:
                    handle.num_idle += 1
                self._send(number, Free(segment, drop))

    def _send(self, number: int, message: Work | Credit | Free | Cancel) -> None:
        with contextlib.suppress(OSError):  # a dead worker is noticed when listening, and replaced
            self._workers[number].channel.send(message)

    def _cancel(self) -> None:
        """Leave what is not handed on."""
        for pending in self._pending:
            while pending.ready:
                self._credit(pending.worker, pending.ready.popleft()[1])
        if self._pending:
            self._pending.clear()
            for number in range(len(self._workers)):
                self._send(number, Cancel(self._run))


def _exit_code(handle: _Handle) -> int:
    try:
        return handle.process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        handle.kill()
        return handle.process.returncode


def _close_all(workers: list[_Handle]) -> None:
    for handle in workers:
        handle.close()
