"""Build a session table from a log: bucket by key, sort, encode, order by session start, commit.

Guarantee: the folder holds the older complete table or the newer one, at every moment; the manifest is the commit.
A build that was killed goes on with `resume`: the spool and the finished runs are not made again.
"""

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from recoup.core import ConfigError, Progress, no_progress, to_table
from recoup.log import LogSource
from recoup.schema import sample_schema
from recoup.table.added import with_histories
from recoup.table.arrays import IntArray
from recoup.table.arrival import LatenessFilter
from recoup.table.errors import TableError
from recoup.table.histories import HistoryFeature
from recoup.table.history_means import HistoryMean
from recoup.table.layout import row_schema
from recoup.table.manifest import MANIFEST, PARTS, Counts, Manifest, read_manifest, write_manifest
from recoup.table.sampling import key_hashes
from recoup.table.sessions import SessionRule
from recoup.table.spool import Spool
from recoup.table.stages import Encoding, Run, TimeSample, encode_bucket, read_run, rows_in_time_order, write_run
from recoup.table.stages import write_state as write_spool_state
from recoup.table.writer import WriterConfig, write_parts

NUM_BUCKETS = 64
"""Key buckets: one of a 14 GB log is 220 MB, so that it is sorted in memory."""
_WORK = ".build"


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildConfig:
    """How a log becomes a table."""

    sessions: SessionRule = field(default_factory=SessionRule)
    histories: tuple[HistoryFeature, ...] = ()
    means: tuple[HistoryMean, ...] = ()
    sample_sessions: float = 1.0
    """Share of whole sessions that is kept."""
    seed: int = 0
    """Of the session sampling."""
    memory_bytes: int = 384_000_000
    """Memory of a sort; what does not fit goes to disk beside the table."""
    writer: WriterConfig = field(default_factory=WriterConfig)

    def __post_init__(self) -> None:
        """Check the sampling and the memory."""
        if not 0.0 < self.sample_sessions <= 1.0:
            raise ConfigError(f"sample_sessions: expected a share in (0, 1], got {self.sample_sessions}")
        if self.memory_bytes < 1_000_000:
            raise ConfigError(f"memory_bytes: expected at least 1 MB, got {self.memory_bytes}")


def build_table(
    source: LogSource,
    path: Path,
    config: BuildConfig,
    *,
    overwrite: bool = False,
    resume: bool = False,
    progress: Progress = no_progress,
) -> Manifest:
    """Build the table of `source` in the folder `path` and return its manifest.

    Args:
        source: the log, streamed once.
        path: folder of the table; created.
        config: sessions, histories, memory.
        overwrite: replace a complete table that is already there; it stays whole until the new one is committed.
        resume: go on with a build of the same log and configuration that was stopped; a complete table is returned.
        progress: called as ("read log", ...), ("encode sessions", buckets), ("write table", samples).
    Raises:
        TableError: a table is already there, a build to resume is of another log, or the disk is full.
        LogError: the log is damaged.
    Cost: linear: every sample is spooled once, sorted within its bucket, encoded, written. Disk: less than the log's
        uncompressed size, freed at the end.
    """
    generation = _next_generation(path, overwrite=overwrite, resume=resume)
    if generation is None:
        return read_manifest(path)
    work = _Work(path / _WORK, source, config, resume=resume)
    runs = work.encode(progress)
    schema = row_schema(with_histories(source.schema, config.histories, config.means))
    counts = work.counts(runs)
    rows = _reported(rows_in_time_order(runs, schema, work.num_ranges), counts.rows, progress)
    try:
        parts = write_parts(path, rows, schema, config.writer, prefix=f"part-{generation:04d}")
    except OSError as err:
        raise TableError(f"the table in '{path}' could not be written: {err}: nothing was committed") from err
    manifest = Manifest(
        generation=generation,
        schema=with_histories(source.schema, config.histories, config.means),
        sessions=config.sessions,
        histories=config.histories,
        means=config.means,
        counts=counts,
        parts=parts,
        source=json.dumps(source.describe(), sort_keys=True, default=str),
    )
    write_manifest(path, manifest)
    _remove_strays(path, manifest)
    return manifest


class _Work:
    """The folder of a build under way: spool, runs, state."""

    def __init__(self, folder: Path, source: LogSource, config: BuildConfig, *, resume: bool) -> None:
        self._folder = folder
        self._source = source
        self._config = config
        self._fingerprint = _fingerprint(source, config)
        self._spool = Spool(
            folder, sample_schema(source.schema), NUM_BUCKETS, memory_bytes=min(64_000_000, config.memory_bytes // 4)
        )
        self._state = self._load() if resume else None
        if self._state is None:
            shutil.rmtree(folder, ignore_errors=True)

    @property
    def num_ranges(self) -> int:
        """Time ranges: one is sorted in memory even if nothing repeats."""
        return 1 + int(self._spool.bytes.sum()) // max(1, self._config.memory_bytes // 2)

    def encode(self, progress: Progress) -> list[Run]:
        """Return the runs of all buckets; those of an earlier attempt are taken as they are."""
        if self._state is None:
            self._fill(progress)
        else:
            self._spool.reopen(self._state["bytes"])
        assert self._state is not None
        config = self._config
        encoding = Encoding(
            schema=self._source.schema,
            rule=config.sessions,
            histories=config.histories,
            means=config.means,
            sample_sessions=config.sample_sessions,
            seed=config.seed,
            memory_bytes=config.memory_bytes,
        )
        runs: list[Run] = []
        for bucket in range(NUM_BUCKETS):
            runs.append(self._run(bucket, encoding, self._state["bounds"]))
            progress("encode sessions", bucket + 1, NUM_BUCKETS)
        return runs

    def counts(self, runs: list[Run]) -> Counts:
        """Return what all stages counted."""
        assert self._state is not None
        names = ("samples", "sessions", "rows", "repeated", "sampled_out")
        totals = {name: sum(getattr(run.counts, name) for run in runs) for name in names}
        return Counts(late=self._state["late"], **totals)

    def _run(self, bucket: int, encoding: Encoding, bounds: list[int]) -> Run:
        path = self._folder / f"run-{bucket:04d}.arrow"
        if path.exists():
            return read_run(path)
        pieces, counts = encode_bucket(self._spool, bucket, encoding, bounds)
        if self._spool.in_memory:
            return Run(tuple(pieces), path, counts)
        return write_run(path, pieces, counts)

    def _fill(self, progress: Progress) -> None:
        schema = self._source.schema
        arrivals = LatenessFilter(schema.time, self._config.sessions.lateness)
        times = TimeSample()

        def bucket_of(batch: pa.RecordBatch) -> IntArray:
            times.add(batch, schema.time)
            return (key_hashes(batch.column(schema.key)) % np.uint64(NUM_BUCKETS)).astype(np.int64)

        self._spool.fill(arrivals.on_time(self._source.batches(progress=progress)), bucket_of)
        self._state = {
            "fingerprint": self._fingerprint,
            "bounds": times.bounds(self.num_ranges),
            "late": arrivals.num_late,
            "bytes": self._spool.bytes.tolist(),
        }
        if not self._spool.in_memory:
            write_spool_state(self._folder, self._state)

    def _load(self) -> dict[str, Any] | None:
        path = self._folder / "state.json"
        if not path.exists():
            return None
        state = json.loads(path.read_bytes())
        if state["fingerprint"] != self._fingerprint:
            raise TableError(
                f"expected a stopped build of the same log and settings in '{self._folder}', got another: "
                "build without --resume to start again"
            )
        return state


def _fingerprint(source: LogSource, config: BuildConfig) -> str:
    facts = [source.describe(), to_table(source.schema), to_table(config)]
    return hashlib.blake2b(json.dumps(facts, sort_keys=True, default=str).encode(), digest_size=16).hexdigest()


def _reported(rows: Iterable[pa.RecordBatch], total: int, progress: Progress) -> Iterator[pa.RecordBatch]:
    done = 0
    for batch in rows:
        yield batch
        done += batch.num_rows
        progress("write table", done, total)


def _next_generation(path: Path, *, overwrite: bool, resume: bool) -> int | None:
    if not (path / MANIFEST).exists():
        path.mkdir(parents=True, exist_ok=True)
        return 0
    if overwrite:
        return read_manifest(path).generation + 1
    if resume:
        return None
    raise TableError(
        f"expected no table in '{path}', got a complete one: use --overwrite to replace it or --resume to keep it"
    )


def _remove_strays(path: Path, manifest: Manifest) -> None:
    named = {part.name for part in manifest.parts}
    for file in (path / PARTS).iterdir():
        if file.name not in named:
            file.unlink(missing_ok=True)
    shutil.rmtree(path / _WORK, ignore_errors=True)
