"""The manifest of a session table: what the folder holds. Written last, by rename: its presence is the commit.

A file that the manifest does not name is not part of the table. Form: JSON, `docs/format.md`.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recoup.core import ConfigError, from_table, to_table, write_json_atomic
from recoup.schema import Schema
from recoup.table.errors import TableError
from recoup.table.histories import HistoryFeature
from recoup.table.history_means import HistoryMean
from recoup.table.sessions import SessionRule

FORMAT_VERSION = 2
MANIFEST = "manifest.json"
PARTS = "parts"
WORK = ".build"
"""Folder of a build under way."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowGroup:
    """What one Parquet row group holds."""

    rows: int
    samples: int
    bytes: int
    """Uncompressed size."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One Parquet file of the table."""

    name: str
    """File name in the folder `parts`."""
    rows: int
    samples: int
    bytes: int
    """Size of the file."""
    checksum: str
    """BLAKE2b-128 of the file, hexadecimal."""
    first_start: int
    """Least session start, ms."""
    last_start: int
    """Greatest session start, ms."""
    row_groups: tuple[RowGroup, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """What the builder counted."""

    samples: int = 0
    sessions: int = 0
    rows: int = 0
    repeated: int = 0
    """Samples left out: same key, time and event id as another."""
    late: int = 0
    """Samples left out: arrived later than the allowed lateness."""
    sampled_out: int = 0
    """Samples of sessions that whole-session sampling left out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupPrediction:
    """What `table suggest` foretold of a dedup group, from a sample of the log."""

    name: str
    repeat: float
    """d: chance that the group stays unchanged from one sample to the next."""
    factor: float
    """Samples over versions."""
    window_factor: float
    """IDs of all samples over IDs stored."""
    bytes_per_sample: float
    """Compressed bytes of the group's columns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """The table's whole description; `parts` are in reading order, rows by (start, key, chunk)."""

    format_version: int = FORMAT_VERSION
    generation: int = 0
    """Grows by one with every build into the folder; part names carry it."""
    schema: Schema
    sessions: SessionRule
    histories: tuple[HistoryFeature, ...] = ()
    means: tuple[HistoryMean, ...] = ()
    predictions: tuple[GroupPrediction, ...] = ()
    counts: Counts = field(default_factory=Counts)
    parts: tuple[Part, ...] = ()
    source: str = ""
    """The log it was built from, as JSON."""


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Commit the table: every part must be written and flushed before."""
    write_json_atomic(folder / MANIFEST, to_table(manifest))


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of the table in `folder`.

    Raises:
        TableError: there is none, it is damaged, or it is of another format version.
    """
    path = folder / MANIFEST
    return decode_manifest(_bytes(path), str(path))


@dataclass(frozen=True, slots=True)
class Committed:
    """What whoever replaces a table must know of it, of whatever format version it is."""

    generation: int
    checksums: dict[str, str]
    """By part."""


def decode_committed(data: bytes, path: str) -> Committed:
    """Return what the manifest that these bytes of the file `path` hold says to whoever replaces its table.

    Raises:
        TableError: it is damaged.
    """
    table = _object(data, path)
    try:
        return Committed(int(table["generation"]), {part["name"]: part["checksum"] for part in table["parts"]})
    except (KeyError, TypeError, ValueError) as err:
        raise TableError(
            f"expected a table's manifest in '{path}', got one without {err}: remove it and build again"
        ) from err


def committed_generation(folder: Path) -> int:
    """Return the generation of the table in `folder`, of whatever format version.

    Raises:
        TableError: there is none, or it is damaged.
    """
    path = folder / MANIFEST
    return decode_committed(_bytes(path), str(path)).generation


def decode_manifest(data: bytes, path: str) -> Manifest:
    """Return the manifest that these bytes of the file `path` hold.

    Raises:
        TableError: it is damaged, or of another format version.
    """
    table = _object(data, path)
    version = table.get("format_version")
    if version != FORMAT_VERSION:
        raise TableError(
            f"expected format version {FORMAT_VERSION} in '{path}', got {version!r}: rebuild the table from its log "
            "with --overwrite"
        )
    try:
        return from_table(Manifest, table, where=path)
    except ConfigError as err:
        raise TableError(str(err)) from err


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as err:
        raise TableError(
            f"expected a session table in '{path.parent}', got no {MANIFEST}: build it with 'table build'"
        ) from err
    except OSError as err:
        raise TableError(f"expected JSON in '{path}', got: {err}") from err


def _object(data: bytes, path: str) -> dict[str, Any]:
    try:
        table: Any = json.loads(data)
    except ValueError as err:
        raise TableError(f"expected JSON in '{path}', got: {err}") from err
    return table if isinstance(table, dict) else {}
