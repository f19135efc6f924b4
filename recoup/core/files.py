"""Atomic local files: written to a temporary name beside the target, flushed, then renamed.

Guarantee: a reader sees the old file or the new one, whole; a kill at any moment leaves one of the two.
Temporary names end in `.tmp` and start with a dot: readers ignore them, a retry replaces them.
"""

import json
import os
from pathlib import Path
from typing import Any


def write_atomic(path: Path, data: bytes) -> None:
    """Replace the file at `path` by `data`, durably: the data and the folder entry are flushed."""
    temporary = temporary_path(path)
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def write_json_atomic(path: Path, value: Any) -> None:  # noqa: ANN401
    """Replace the file at `path` by `value` as indented JSON with sorted keys."""
    write_atomic(path, (json.dumps(value, indent=1, sort_keys=True) + "\n").encode())


def temporary_path(path: Path) -> Path:
    """Return the hidden name beside `path` under which it is written before the rename."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def sync_folder(folder: Path) -> None:
    """Flush the folder's entries, so that a rename in it survives a power loss."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
