"""What launchers and ranks tell each other through the store.

generation          number; added to by a launcher whenever a rank of its host died: everyone meets again in the newest
owner/<rank>        incarnation that holds the rank; an older process of the rank must end
beat/<rank>         JSON of the rank's last heartbeat
death/<generation>  JSON: ranks whose death began the generation, and the cause
joined/<generation>/<rank>   set by a rank that waits to meet in the generation
assign/<spare>      JSON: rank and incarnation a spare takes over
launcher/<node>     the launcher's own heartbeat
finished            number of hosts other than host 0 whose ranks have all ended well
"""

import json
from datetime import timedelta
from typing import Any

import torch.distributed as dist

GENERATION = "generation"
FINISHED = "finished"


def owner(rank: int) -> str:
    """Return the key of a rank's incarnation."""
    return f"owner/{rank}"


def beat(rank: int) -> str:
    """Return the key of a rank's heartbeat."""
    return f"beat/{rank}"


def death(generation: int) -> str:
    """Return the key of the deaths that began a generation."""
    return f"death/{generation}"


def joined(generation: int, rank: int) -> str:
    """Return the key that a rank sets when it waits in a generation."""
    return f"joined/{generation}/{rank}"


def assign(spare: str) -> str:
    """Return the key of a spare's task."""
    return f"assign/{spare}"


def launcher(node: int) -> str:
    """Return the key of a launcher's heartbeat."""
    return f"launcher/{node}"


def get_json(store: dist.Store, key: str) -> Any:  # noqa: ANN401
    """Return the value of a key, or None if it is not set."""
    return json.loads(store.get(key)) if store.check([key]) else None


def set_json(store: dist.Store, key: str, value: Any) -> None:  # noqa: ANN401
    """Set a key to a plain value."""
    store.set(key, json.dumps(value))


def generation_of(store: dist.Store) -> int:
    """Return the newest generation."""
    return store.add(GENERATION, 0)


def connect(host: str, port: int, *, limit: timedelta) -> dist.TCPStore:
    """Return a client of the store. Each thread needs its own: a client serves one call at a time."""
    return dist.TCPStore(host, port, is_master=False, timeout=limit, wait_for_workers=False)
