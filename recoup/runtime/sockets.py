"""End a process group's connections at once, so that every rank that waits in one of its exchanges raises now.

Gloo raises on a rank whose own peer died, but a rank that waits for a survivor which has already left the exchange
waits for its full time-out, and Gloo's abort does not wake it (seen with torch 2.13). The connections of a group are
the sockets that its construction opened; shutting them down wakes both ends.
"""

import os
import socket
from collections.abc import Mapping
from pathlib import Path

_DESCRIPTORS = Path("/proc/self/fd")


def connected_sockets() -> dict[int, str]:
    """Return this process's connected internet sockets: descriptor -> identity that no later socket shares."""
    found: dict[int, str] = {}
    for entry in _DESCRIPTORS.iterdir():
        identity = _identity(int(entry.name))
        if identity.startswith("socket:") and _is_connected(int(entry.name)):
            found[int(entry.name)] = identity
    return found


def shut_down(sockets: Mapping[int, str]) -> None:
    """Shut down those of `sockets` that are still what they were."""
    for descriptor, identity in sockets.items():
        if _identity(descriptor) == identity:
            _shut(descriptor)


def _identity(descriptor: int) -> str:
    try:
        return str((_DESCRIPTORS / str(descriptor)).readlink())
    except OSError:
        return ""  # closed meanwhile


def _is_connected(descriptor: int) -> bool:
    try:
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            copy.getpeername()
            return copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM
    except OSError:
        return False


def _shut(descriptor: int) -> None:
    try:
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            copy.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # the peer was faster
