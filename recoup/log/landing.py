"""What a Kafka lander leaves behind: Parquet files by hour and session shard, committed by manifests of offsets.

    landing.json                                      topic, schema, number of shards; written once
    manifests/p00003-00000000000000001234.json        offsets 1234 .. `to` of partition 3 are in these files, no others
    data/hour=2024-05-01T10/shard=00007/p00003-00000000000000001234-<run>.parquet
    dead/p00003-00000000000000001234-<run>.jsonl      messages that broke the schema: offset, reason, value

A manifest is made by an exclusive link after its files are flushed: it is the commit. Its name is the partition and the
first offset, so two landers can never both commit a message, and a file that no manifest names does not exist.
`LandedLog` reads committed files only, in the order of hour, shard, partition and offset.
"""

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq

from recoup.core import ConfigError, from_table, sync_folder, temporary_path, to_table
from recoup.log.errors import LogError
from recoup.log.filelog import FileLog, Piece, Request
from recoup.log.files import file_bytes, natural_key
from recoup.schema import Schema

FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class LandedFile:
    """One Parquet file of a segment."""

    path: str
    """Relative to the landing folder."""
    num_samples: int
    num_bytes: int
    crc32: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """Consecutive offsets of one partition, and where their samples are."""

    partition: int
    first: int
    """First offset."""
    to: int
    """Offset after the last one; the next segment starts here."""
    num_samples: int
    num_dead: int
    files: tuple[LandedFile, ...]
    dead_letters: str = ""
    """File of the messages that broke the schema; "" = none."""
    version: int = FORMAT_VERSION

    @property
    def name(self) -> str:
        """Name of its manifest, without suffix."""
        return f"p{self.partition:05d}-{self.first:020d}"


@dataclass(frozen=True, kw_only=True, slots=True)
class LandedLog:
    """A landing folder as a log source; the schema is the landing's own."""

    kind: Literal["landed"] = "landed"
    path: str


def open_landed(config: LandedLog) -> FileLog:
    """Return the committed samples of a landing folder.

    Raises:
        LogError: it is no landing folder, a committed file is absent or of another size, or offsets are missing.
    """
    root = Path(config.path)
    schema = landing_schema(root)
    segments = read_segments(root)
    sizes = {file.path: file.num_bytes for one in segments for file in one.files}
    for path, num_bytes in sizes.items():
        found = file_bytes(str(root / path)) if (root / path).exists() else None
        if found != num_bytes:
            raise LogError(f"expected {num_bytes} bytes, got {found} (file '{root / path}'): the landing is damaged")
    facts = {
        "segments": len(segments),
        "dead_letters": sum(one.num_dead for one in segments),
        "offsets": {str(key): to for key, to in next_offsets(segments).items()},
    }
    files = tuple(str(root / path) for path in sorted(sizes, key=natural_key))
    return FileLog(schema=schema, files=files, read=_read, kind=config.kind, facts=facts)


def _read(request: Request) -> Iterator[Piece]:
    total = file_bytes(request.path)
    done = 0
    with pq.ParquetFile(request.path, pre_buffer=False, page_checksum_verification=True) as file:
        for batch in file.iter_batches(request.batch_samples, columns=list(request.columns), use_threads=False):
            done += batch.num_rows
            yield Piece(batch, total * done // file.metadata.num_rows)


def create_landing(root: Path, topic: str, schema: Schema, num_shards: int) -> None:
    """Make the folder, or check that it was made for the same topic, schema and shards.

    Raises:
        LogError: it was made for others.
    """
    for folder in ("manifests", "data", "dead"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    wanted = {"version": FORMAT_VERSION, "topic": topic, "num_shards": num_shards, "schema": to_table(schema)}
    wanted = json.loads(json.dumps(wanted))
    if not (root / "landing.json").exists():
        with suppress(FileExistsError):
            create_exclusive(root / "landing.json", wanted)
    found = _read_json(root / "landing.json")
    for key, value in wanted.items():
        if found.get(key) != value:
            raise LogError(f"expected {key} {found.get(key)} of the landing '{root}', got {value}: use another folder")


def landing_schema(root: Path) -> Schema:
    """Return the schema that a landing folder was made with."""
    try:
        return from_table(Schema, _read_json(root / "landing.json")["schema"])
    except (KeyError, ConfigError) as err:
        raise LogError(f"expected a schema in '{root / 'landing.json'}', got: {err}") from err


def read_segments(root: Path) -> tuple[Segment, ...]:
    """Return the committed segments by partition and offset.

    Raises:
        LogError: a manifest is unreadable, or the offsets of a partition do not follow one another.
    """
    segments: list[Segment] = []
    for path in sorted((root / "manifests").glob("p*.json")):
        table = _read_json(path)
        try:
            segments.append(from_table(Segment, table, where=str(path)))
        except ConfigError as err:
            raise LogError(f"expected the manifest of a segment, got: {err}") from err
    segments.sort(key=lambda one: (one.partition, one.first))
    for before, after in pairwise(segments):
        if before.partition == after.partition and before.to != after.first:
            raise LogError(
                f"expected a segment from offset {before.to} of partition {before.partition}, got {after.first} "
                f"(folder '{root / 'manifests'}'): a manifest is missing"
            )
    return tuple(segments)


def next_offsets(segments: tuple[Segment, ...]) -> dict[int, int]:
    """Return the first offset of each partition that is not landed yet."""
    return {one.partition: one.to for one in segments}


def commit_segment(root: Path, segment: Segment) -> None:
    """Write the manifest: from here on the segment's samples are in the log.

    Raises:
        LogError: these offsets are landed already, by another lander.
    """
    path = root / "manifests" / f"{segment.name}.json"
    try:
        create_exclusive(path, asdict(segment))
    except FileExistsError:
        raise LogError(
            f"expected to be the only lander of partition {segment.partition}, got offset {segment.first} landed by "
            f"another (file '{path}'): stop one of them; nothing was landed twice"
        ) from None


def create_exclusive(path: Path, value: Mapping[str, Any]) -> None:
    """Write JSON to a new file: whole, flushed, and only if no file of that name is there."""
    temporary = temporary_path(path)
    with temporary.open("w") as file:
        json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(temporary, path)
    finally:
        temporary.unlink()
    sync_folder(path.parent)


def remove_orphans(root: Path, partitions: frozenset[int], segments: tuple[Segment, ...]) -> int:
    """Remove files of `partitions` that a dead lander wrote but did not commit; return how many."""
    kept = {file.path for one in segments for file in one.files} | {one.dead_letters for one in segments}
    removed = 0
    for path in [*(root / "data").glob("*/*/p*"), *(root / "dead").glob("p*"), *(root / "data").glob("*/*/.p*")]:
        partition = int(path.name.lstrip(".")[1:6])
        if partition in partitions and str(path.relative_to(root)) not in kept:
            path.unlink()
            removed += 1
    return removed


def file_crc32(path: Path) -> int:
    """Return the CRC-32 of a file's bytes."""
    value = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            value = zlib.crc32(chunk, value)
    return value


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError) as err:
        raise LogError(f"expected JSON of a landing, got: {err} (file '{path}')") from err
    if not isinstance(value, dict):
        raise LogError(f"expected a JSON object, got {value!r} (file '{path}')")
    return value
