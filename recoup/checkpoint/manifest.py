"""The manifest of a checkpoint: every file it needs, with size and checksum. Written last: its presence is the commit.

It guards itself too: the JSON holds a checksum of its own body, so a damaged byte anywhere is found before use.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from recoup.checkpoint.errors import CheckpointError
from recoup.checkpoint.names import manifest_name, order_of
from recoup.checkpoint.plan import ShardPlan
from recoup.core import ConfigError, from_table, to_table

FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class FileRef:
    """One file of a checkpoint."""

    name: str
    """Relative to the store."""
    bytes: int
    checksum: str
    """BLAKE2b-128, hexadecimal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """Rows of one shard: all of them (`base`) or some (`delta`), to be applied on the entry before."""

    shard: int
    kind: Literal["base", "delta"]
    step: int
    file: FileRef
    num_rows: int
    bits: Literal[0, 4, 8] = 0
    """Bits of a quantised weight in the file; 0 = whole numbers."""
    lossy: bool = False
    """Whether some weights went through a quantised delta, here or before they were merged into this base."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableFacts:
    """What a table must be to restore into it."""

    num_rows: int
    dim: int
    dtype: str
    """torch's name without "torch."."""
    optimizer: dict[str, str] = field(default_factory=dict)
    """State name -> dtype."""
    optimizer_shape: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """State name -> shape of one row's state."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """One checkpoint."""

    format_version: int = FORMAT_VERSION
    run_id: str
    generation: int
    step: int
    serial: int
    """Grows by one with every commit of a run: the order of its checkpoints."""
    plan: ShardPlan
    """How rows were assigned."""
    tables: dict[str, TableFacts]
    entries: tuple[Entry, ...]
    """For every shard its chain: a base, then deltas, in order."""
    dense: FileRef
    """Dense tensors: parameters and their optimizer."""
    extra: str
    """Plain state that travels along (reader position, counters, RNG), as JSON."""

    @property
    def name(self) -> str:
        """File name in the store."""
        return manifest_name(self.run_id, self.generation, self.serial, self.step)

    @property
    def exact(self) -> bool:
        """Whether every row is bit for bit what was saved."""
        return not any(entry.lossy for entry in self.entries)

    def chain(self, shard: int) -> tuple[Entry, ...]:
        """Return a shard's base and deltas, in order."""
        return tuple(entry for entry in self.entries if entry.shard == shard)

    def files(self) -> tuple[FileRef, ...]:
        """Return every data file."""
        return (*(entry.file for entry in self.entries), self.dense)


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the file of a manifest."""
    body = json.dumps(to_table(manifest), sort_keys=True)
    return json.dumps({"body": body, "checksum": checksum(body.encode())}).encode()


def decode_manifest(data: bytes, name: str) -> Manifest:
    """Return the manifest in a file.

    Raises:
        CheckpointError: it is cut, damaged, or of another format version.
    """
    try:
        outer: Mapping[str, Any] = json.loads(data)
        body = str(outer["body"])
        if json.dumps({"body": body, "checksum": checksum(body.encode())}).encode() != data:
            raise CheckpointError(f"manifest '{name}' is damaged: its checksum does not fit")
        table = json.loads(body)
        if table.get("format_version") != FORMAT_VERSION:
            raise CheckpointError(
                f"manifest '{name}': expected format version {FORMAT_VERSION}, got {table.get('format_version')!r}"
            )
        return _checked(from_table(Manifest, table, where=name), name)
    except (ValueError, KeyError, TypeError, ConfigError) as err:
        raise CheckpointError(f"manifest '{name}' is cut or damaged: {err}") from err


def _checked(manifest: Manifest, name: str) -> Manifest:
    """Refuse a manifest under another name, or one that names another run's files."""
    if manifest.name.rpartition("/")[2] != name.rpartition("/")[2]:
        raise CheckpointError(f"manifest '{name}': expected that of its name, got '{manifest.name}'")
    for file in manifest.files():
        if order_of(file.name, manifest.run_id) is None:
            raise CheckpointError(
                f"manifest '{name}': expected files of run {manifest.run_id!r}, got '{file.name}': it is another run's"
            )
    return manifest


def checksum(data: bytes) -> str:
    """Return the BLAKE2b-128 of some bytes, hexadecimal."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()
