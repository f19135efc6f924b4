"""Messages between the reader and one of its workers: small pickles over a local packet socket, descriptors attached.

Tensors' data never passes here, only where it lies in shared memory.
"""

import contextlib
import pickle
import socket
import sys
from dataclasses import dataclass
from typing import TypeAlias

from recoup.reader.assemble import ReadTask
from recoup.reader.segments import PackedFragment

MAX_MESSAGE_BYTES = 1 << 17  # below Linux's default socket buffer (208 KiB)
_INT_BYTES = 4  # a descriptor in an ancillary message is a C int


@dataclass(frozen=True, slots=True)
class Work:
    """To a worker: read `task`; `run` tells the iterations of a reader apart."""

    run: int
    task: ReadTask


@dataclass(frozen=True, slots=True)
class Credit:
    """To a worker: one of its fragments was handed on, it may hold another ready."""


@dataclass(frozen=True, slots=True)
class Free:
    """To a worker: nobody looks at segment `segment` any more; forget it when `drop`."""

    segment: int
    drop: bool


@dataclass(frozen=True, slots=True)
class Cancel:
    """To a worker: leave the tasks of runs up to `run`."""

    run: int


@dataclass(frozen=True, slots=True)
class Alive:
    """From a worker: it runs."""


@dataclass(frozen=True, slots=True)
class Done:
    """From a worker: cut number `cut` of a task is in shared memory; a new segment's descriptor is attached."""

    run: int
    task: int
    cut: int
    packed: PackedFragment
    capacity: int
    """Bytes of the segment if it is new, else 0."""


@dataclass(frozen=True, slots=True)
class Failed:
    """From a worker: a task ended in an error."""

    run: int
    task: int
    message: str
    detail: str
    """Traceback, unless the error is a user's."""


Message: TypeAlias = Work | Credit | Free | Cancel | Alive | Done | Failed


class Channel:
    """One end of the packet socket."""

    def __init__(self, end: socket.socket) -> None:
        """Take over the socket."""
        self._socket = end

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._socket.fileno()

    def send(self, message: Message, descriptor: int = -1) -> None:
        """Send one message, with a descriptor if one is given.

        Raises:
            OSError: the other side is gone.
        """
        data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        assert len(data) <= MAX_MESSAGE_BYTES  # a task names one stripe, a fragment some hundred arrays
        if descriptor >= 0:
            socket.send_fds(self._socket, [data], [descriptor])
        else:
            self._socket.send(data)

    def receive(self, *, wait: bool) -> tuple[Message, int] | None:
        """Return the next message and its descriptor (or -1); None: nothing there and not to `wait`.

        Raises:
            EOFError: the other side is gone.
        """
        flags = socket.MSG_CMSG_CLOEXEC | (0 if wait else socket.MSG_DONTWAIT)
        try:  # socket.recv_fds ignores its flags in CPython 3.11
            data, ancillary, _, _ = self._socket.recvmsg(MAX_MESSAGE_BYTES, socket.CMSG_LEN(_INT_BYTES), flags)
        except BlockingIOError:
            return None
        except OSError as err:
            raise EOFError from err
        if not data:
            raise EOFError
        descriptor = int.from_bytes(ancillary[0][2][:_INT_BYTES], sys.byteorder) if ancillary else -1
        return pickle.loads(data), descriptor

    def close(self) -> None:
        """Close this end; the worker ends by itself."""
        with contextlib.suppress(OSError):
            self._socket.close()
