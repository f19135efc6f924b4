"""Build a session table from a log: sort by key and time (DuckDB, spilling), encode, order by session start, commit.

Guarantee: the folder holds the older complete table or the newer one, at every moment; the manifest is the commit.
"""

import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pyarrow as pa

from recoup.core import ConfigError, Progress, no_progress
from recoup.log import LogSource
from recoup.schema import sample_schema
from recoup.table.arrival import LatenessFilter
from recoup.table.encode import SessionEncoder, encode_sessions
from recoup.table.errors import TableError
from recoup.table.histories import HistoryFeature
from recoup.table.layout import CHUNK, KEY, NUM_SAMPLES, START, row_schema
from recoup.table.manifest import MANIFEST, PARTS, Counts, Manifest, read_manifest, write_manifest
from recoup.table.order import sort_stream
from recoup.table.sampling import sampled_sessions
from recoup.table.sessions import SessionRule
from recoup.table.writer import WriterConfig, write_parts

_SPILL = ".spill"


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildConfig:
    """How a log becomes a table."""

    sessions: SessionRule = field(default_factory=SessionRule)
    histories: tuple[HistoryFeature, ...] = ()
    order: Literal["time", "key"] = "time"
    """Order of the rows: by session start (to train in time order, to split by time), or by key (one sort less)."""
    sample_sessions: float = 1.0
    """Share of whole sessions that is kept."""
    seed: int = 0
    """Of the session sampling."""
    memory_bytes: int = 384_000_000
    """Limit of the sort's memory; more spills to disk beside the table."""
    writer: WriterConfig = field(default_factory=WriterConfig)

    def __post_init__(self) -> None:
        """Check the sampling and the memory."""
        if not 0.0 < self.sample_sessions <= 1.0:
            raise ConfigError(f"sample_sessions: expected a share in (0, 1], got {self.sample_sessions}")
        if self.memory_bytes < 100_000_000:
            raise ConfigError(f"memory_bytes: expected at least 100 MB, got {self.memory_bytes}")


def build_table(
    source: LogSource,
    path: Path,
    config: BuildConfig,
    *,
    overwrite: bool = False,
    progress: Progress = no_progress,
) -> Manifest:
    """Build the table of `source` in the folder `path` and return its manifest.

    Args:
        source: the log, streamed once.
        path: folder of the table; created.
        config: sessions, histories, order, memory.
        overwrite: replace a complete table that is already there; it stays whole until the new one is committed.
        progress: called as ("read log", ...) and ("encode sessions", samples, samples read).
    Raises:
        TableError: a table is already there and `overwrite` is not set, or the disk is full.
        LogError: the log is damaged.
    Cost: two external sorts; memory is the sort's limit and a few batches.
    """
    generation = _next_generation(path, overwrite=overwrite)
    spill = path / _SPILL
    shutil.rmtree(spill, ignore_errors=True)
    encoder = SessionEncoder(source.schema, config.sessions, config.histories)
    arrivals = LatenessFilter(source.schema.time, config.sessions.lateness)
    counter = _Counter(config)
    samples = sort_stream(
        arrivals.on_time(source.batches(progress=progress)),
        sample_schema(source.schema),
        [name for name in (source.schema.key, source.schema.time, source.schema.event_id) if name],
        memory_bytes=config.memory_bytes,
        spill=spill / "samples",
        batch_rows=8192,
    )
    rows = counter.count(encode_sessions(_reported(samples, arrivals, progress), encoder))
    schema = row_schema(encoder.schema)
    if config.order == "time":
        rows = sort_stream(
            rows, schema, (START, KEY, CHUNK), memory_bytes=config.memory_bytes, spill=spill / "rows", batch_rows=512
        )
    try:
        parts = write_parts(path, rows, schema, config.writer, prefix=f"part-{generation:04d}")
    except OSError as err:
        raise TableError(f"the table in '{path}' could not be written: {err.strerror}: nothing was committed") from err
    manifest = Manifest(
        generation=generation,
        schema=encoder.schema,
        sessions=config.sessions,
        histories=config.histories,
        order=config.order,
        counts=counter.counts(encoder, arrivals),
        parts=parts,
        source=json.dumps(source.describe(), sort_keys=True, default=str),
    )
    write_manifest(path, manifest)
    _remove_strays(path, manifest)
    return manifest


class _Counter:
    def __init__(self, config: BuildConfig) -> None:
        self._config = config
        self._rows = 0
        self._samples = 0
        self._sampled_out = 0
        self._sessions = 0

    def count(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            kept = batch
            if self._config.sample_sessions < 1.0:
                keep = sampled_sessions(batch, self._config.sample_sessions, self._config.seed)
                kept = batch.filter(pa.array(keep))
            samples = int(kept.column(NUM_SAMPLES).to_numpy().sum())
            self._sampled_out += int(batch.column(NUM_SAMPLES).to_numpy().sum()) - samples
            self._samples += samples
            self._rows += kept.num_rows
            self._sessions += int((kept.column(CHUNK).to_numpy() == 0).sum())
            if kept.num_rows:
                yield kept

    def counts(self, encoder: SessionEncoder, arrivals: LatenessFilter) -> Counts:
        return Counts(
            samples=self._samples,
            sessions=self._sessions,
            rows=self._rows,
            repeated=encoder.num_repeated,
            late=arrivals.num_late,
            sampled_out=self._sampled_out,
        )


def _reported(
    batches: Iterable[pa.RecordBatch], arrivals: LatenessFilter, progress: Progress
) -> Iterator[pa.RecordBatch]:
    done = 0
    for batch in batches:
        done += batch.num_rows
        progress("encode sessions", done, arrivals.num_samples - arrivals.num_late)
        yield batch


def _next_generation(path: Path, *, overwrite: bool) -> int:
    if not (path / MANIFEST).exists():
        path.mkdir(parents=True, exist_ok=True)
        return 0
    if not overwrite:
        raise TableError(f"expected no table in '{path}', got a complete one: use --overwrite, or another folder")
    return read_manifest(path).generation + 1


def _remove_strays(path: Path, manifest: Manifest) -> None:
    named = {part.name for part in manifest.parts}
    for file in (path / PARTS).iterdir():
        if file.name not in named:
            file.unlink(missing_ok=True)
    shutil.rmtree(path / _SPILL, ignore_errors=True)
