"""Names of a run's files: `<run>-g<generation>-n<serial>-s<step>...`; generation and serial give their order."""

import re

MANIFESTS = "checkpoints"
DATA = "data"
_REST = (
    r"-g(\d{4,})-n(\d{8,})-s\d{12,}(?:-dense|-shard\d{4,}-(?:base|delta|merged))?\.(?:json|safetensors)(?:\.\d+\.tmp)?"
)


def stem(run_id: str, generation: int, serial: int, step: int) -> str:
    """Return the common beginning of the names of one save."""
    return f"{run_id}-g{generation:04d}-n{serial:08d}-s{step:012d}"


def manifest_name(run_id: str, generation: int, serial: int, step: int) -> str:
    """Return the name of a manifest in the store."""
    return f"{MANIFESTS}/{stem(run_id, generation, serial, step)}.json"


def data_name(run_id: str, generation: int, serial: int, step: int, what: str) -> str:
    """Return the name of a data file in the store; `what` is "dense" or says shard and kind."""
    return f"{DATA}/{stem(run_id, generation, serial, step)}-{what}.safetensors"


def order_of(name: str, run_id: str) -> tuple[int, int] | None:
    """Return (generation, serial) of a file of the run, also of its temporary; None if it is not the run's.

    A process of an older generation can therefore never put its checkpoint in front of a newer one's.
    """
    found = re.fullmatch(rf"\.?{re.escape(run_id)}{_REST}", name.rpartition("/")[2])
    return (int(found[1]), int(found[2])) if found else None
