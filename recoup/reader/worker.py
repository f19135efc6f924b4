"""The worker process: reads tasks, packs fragments into shared memory, and ends when its reader does.

Memory: one decoded stripe, at most `prefetch` fragments that the reader has not handed on, and the segments that are
kept for use again. Imports no torch.
"""

import ctypes
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from dataclasses import dataclass

from recoup.core import RecoupError
from recoup.reader.assemble import Assembler, ReadJob, ReadTask
from recoup.reader.channel import Alive, Cancel, Channel, Credit, Done, Failed, Free, Work
from recoup.reader.fragment import Fragment
from recoup.reader.segments import Segment, packed_bytes

ALIVE_SECONDS = 1.0
_PR_SET_PDEATHSIG = 1  # of Linux's prctl
HEADROOM = 1.25  # fragments of one reader differ by some per cent in bytes; a segment of this surplus fits the next


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """What a worker is told at its start."""

    job: ReadJob
    prefetch: int
    parent: int
    """Process id of the reader."""
    die_with_parent: bool
    """True: the kernel kills the worker when the thread that started it ends, even while the worker is stopped; only
    right if that is the main thread. Otherwise the worker itself notices, which it cannot while it is stopped."""


def main(socket_descriptor: int, start_descriptor: int) -> None:
    """Run until the reader closes the socket or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the reader's to handle; its end ends us
    with os.fdopen(start_descriptor, "rb") as file:
        start: WorkerStart = pickle.load(file)
    if start.die_with_parent and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    channel = Channel(socket.socket(fileno=socket_descriptor))
    threading.Thread(target=_report, args=(channel, start.parent), daemon=True).start()
    try:
        _Worker(start, channel).run()
    except (EOFError, OSError):
        os._exit(0)


def _report(channel: Channel, parent: int) -> None:
    """Send a sign of life once a second; end the process when there is nobody to send it to."""
    while True:
        try:
            channel.send(Alive())
        except OSError:
            os._exit(0)
        if os.getppid() != parent:
            os._exit(0)
        time.sleep(ALIVE_SECONDS)


class _Worker:
    def __init__(self, start: WorkerStart, channel: Channel) -> None:
        self._assembler = Assembler(start.job)
        self._channel = channel
        self._credits = start.prefetch
        self._work: deque[Work] = deque()
        self._cancelled = -1
        self._idle: list[Segment] = []
        self._leased: dict[int, Segment] = {}
        self._next_segment = 0
        self._capacity = 0

    def run(self) -> None:
        while True:
            while not self._work:
                self._listen(wait=True)
            work = self._work.popleft()
            if work.run <= self._cancelled:
                continue
            try:
                self._read(work.run, work.task)
            except (EOFError, BrokenPipeError, ConnectionError):
                raise
            except Exception as err:
                detail = "" if isinstance(err, RecoupError) else traceback.format_exc()
                self._channel.send(Failed(work.run, work.task.number, str(err)[:4000], detail[-8000:]))

    def _read(self, run: int, task: ReadTask) -> None:
        for cut, fragment in enumerate(self._assembler.read(task)):
            self._listen(wait=False)
            while not self._credits and run > self._cancelled:
                self._listen(wait=True)
            if run <= self._cancelled:
                return
            self._send(run, task.number, cut, fragment)

    def _send(self, run: int, task: int, cut: int, fragment: Fragment) -> None:
        size = packed_bytes(fragment)
        segment = self._take(size)
        capacity = 0
        if segment is None:
            self._capacity = capacity = max(int(size * HEADROOM), self._capacity)
            segment = Segment(self._next_segment, capacity)
            self._next_segment += 1
        self._leased[segment.number] = segment
        packed = segment.pack(fragment)
        self._channel.send(Done(run, task, cut, packed, capacity), segment.descriptor)
        if capacity:
            segment.close_descriptor()
        self._credits -= 1

    def _take(self, size: int) -> Segment | None:
        """Return an idle segment of at least `size` bytes, the smallest, or None."""
        fitting = [segment for segment in self._idle if segment.capacity >= size]
        if not fitting:
            return None
        best = min(fitting, key=lambda segment: segment.capacity)
        self._idle.remove(best)
        return best

    def _listen(self, *, wait: bool) -> None:
        """Handle what the reader sent; with `wait`, at least one message."""
        received = self._channel.receive(wait=wait)
        while received is not None:
            message, _ = received
            match message:
                case Work():
                    self._work.append(message)
                case Credit():
                    self._credits += 1
                case Cancel():
                    self._cancelled = message.run
                case Free():
                    segment = self._leased.pop(message.segment)
                    if not message.drop:
                        self._idle.append(segment)
                case _:
                    raise AssertionError(message)
            received = self._channel.receive(wait=False)
