"""Build a session table from a log: bucket by key, sort, encode, order by session start, commit.

Guarantee: the folder holds the older complete table or the newer one, at every moment; the manifest is the commit.
A build that was killed goes on with `resume`: the spool and the finished runs are not made again,
nor finished parts.
"""

import hashlib
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from recoup.core import ConfigError, Progress, from_table, no_progress, to_table, write_json_atomic
from recoup.log import LogSource
from recoup.schema import DedupGroup, sample_schema
from recoup.table.added import regrouped, with_histories
from recoup.table.ahead import ahead
from recoup.table.arrays import IntArray
from recoup.table.arrival import LatenessFilter
from recoup.table.disk import check_disk, disk_needed
from recoup.table.errors import TableError
from recoup.table.histories import HistoryFeature
from recoup.table.history_means import HistoryMean
from recoup.table.layout import row_schema
from recoup.table.manifest import (
    MANIFEST,
    PARTS,
    Counts,
    GroupPrediction,
    Manifest,
    Part,
    read_manifest,
    write_manifest,
)
from recoup.table.runs import Run, read_run, rows_in_order, write_run
from recoup.table.sampling import key_hashes
from recoup.table.sessions import SessionRule
from recoup.table.spool import Spool
from recoup.table.stages import Encoding, encode_bucket
from recoup.table.writer import TableWriter, WriterConfig

WORK = ".build"
STATE = "state.json"
"""Says that the spool is complete, and what it was made from; finished runs and parts stand beside it."""
_SPOOL_BYTES = 64_000_000  # a log smaller than this is never spilled


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildConfig:
    """How a log becomes a table."""

    sessions: SessionRule = field(default_factory=SessionRule)
    histories: tuple[HistoryFeature, ...] = ()
    means: tuple[HistoryMean, ...] = ()
    groups: tuple[DedupGroup, ...] = ()
    """Dedup groups instead of the log's own; features in none are not deduplicated. None given = as the schema says."""
    predictions: tuple[GroupPrediction, ...] = ()
    """What `table suggest` foretold; kept in the manifest, so that `table inspect` shows it beside what came."""
    sample_sessions: float = 1.0
    """Share of whole sessions that is kept."""
    seed: int = 0
    """Of the session sampling."""
    memory_bytes: int = 384_000_000
    """Memory of a sort; what does not fit goes to disk beside the table."""
    num_buckets: int = 64
    """Key buckets; the table does not depend on it. One of 64 of a 14 GB log is 220 MB: sorted in memory."""
    writer: WriterConfig = field(default_factory=WriterConfig)

    def __post_init__(self) -> None:
        """Check the sampling, the memory and the buckets."""
        if self.num_buckets < 1:
            raise ConfigError(f"num_buckets: expected at least 1, got {self.num_buckets}")
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
        resume: go on with a build of the same log and configuration that was stopped, whatever it finished is kept;
            without one, a complete table is returned as it is.
        progress: called as ("read log", ...), ("encode sessions", buckets), ("write table", samples).
    Raises:
        TableError: a table is already there, a build to resume is of another log, or the disk is full.
        LogError: the log is damaged.
    Cost: linear: every sample is spooled once, sorted within its bucket, encoded, written. Disk: `disk_needed`,
        freed at the end.
    """
    if not _starts(path, overwrite=overwrite, resume=resume):
        return read_manifest(path)
    work = _Work(path, source, config, resume=resume)
    if work.is_committed:
        manifest = read_manifest(path)
    else:
        runs = work.encode(progress)
        schema = regrouped(with_histories(source.schema, config.histories, config.means), config.groups)
        manifest = Manifest(
            generation=work.generation,
            schema=schema,
            sessions=config.sessions,
            histories=config.histories,
            means=config.means,
            predictions=config.predictions,
            counts=work.counts(runs),
            parts=work.write(runs, row_schema(schema), progress),
            source=json.dumps(source.describe(), sort_keys=True, default=str),
        )
        write_manifest(path, manifest)
    _remove_strays(path, manifest)
    return manifest


class _Work:
    """A build under way and its folder: spool, runs, finished parts, state."""

    def __init__(self, path: Path, source: LogSource, config: BuildConfig, *, resume: bool) -> None:
        self._path = path
        self._folder = path / WORK
        self._source = source
        self._config = config
        self._fingerprint = _fingerprint(source, config)
        memory = min(_SPOOL_BYTES, config.memory_bytes // 4)
        self._spool = Spool(self._folder, sample_schema(source.schema), config.num_buckets, memory_bytes=memory)
        self._committed = read_manifest(path).generation if (path / MANIFEST).exists() else -1
        self.generation = self._committed + 1
        self._state = self._load() if resume else None
        if self._state is None:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def is_committed(self) -> bool:
        """Whether the build that is resumed was stopped after its commit."""
        return self._state is not None and self._state["generation"] == self._committed

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
            groups=config.groups,
            sample_sessions=config.sample_sessions,
            seed=config.seed,
            memory_bytes=config.memory_bytes,
        )
        runs: list[Run] = []
        # Two buckets at a time where both fit: encoded bytes, their sorted copy and the samples are about five buckets.
        workers = 2 if int(self._spool.bytes.max(initial=0)) * 5 <= config.memory_bytes else 1
        with ThreadPoolExecutor(workers) as pool:
            try:
                for run in pool.map(partial(self._run, encoding), range(config.num_buckets)):
                    runs.append(run)
                    progress("encode sessions", len(runs), config.num_buckets)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return runs

    def counts(self, runs: list[Run]) -> Counts:
        """Return what all stages counted."""
        assert self._state is not None
        names = ("samples", "sessions", "rows", "repeated", "sampled_out")
        totals = {name: sum(getattr(run.counts, name) for run in runs) for name in names}
        return Counts(late=self._state["late"], **totals)

    def write(self, runs: list[Run], rows: pa.Schema, progress: Progress) -> tuple[Part, ...]:
        """Write the parts; those that an earlier attempt finished stay as they are."""
        prefix = f"part-{self.generation:04d}"
        record = self._folder / "parts.json"

        def finish(parts: tuple[Part, ...]) -> None:
            if not self._spool.in_memory:
                write_json_atomic(record, {"parts": [to_table(part) for part in parts]})

        finished = self._finished(record, prefix)
        done, total = sum(part.rows for part in finished), sum(run.counts.rows for run in runs)
        ordered = rows_in_order(runs, rows, range_bytes=self._config.memory_bytes // 8, skip=done)
        writer = TableWriter(self._path, rows, self._config.writer, prefix=prefix, finished=finished)
        try:
            for batch in ahead(ordered):
                writer.write(batch, finish)
                done += batch.num_rows
                progress("write table", done, total)
            return writer.close()
        except OSError as err:
            raise TableError(f"the table in '{self._path}' could not be written: {err}: nothing was committed") from err

    def _finished(self, record: Path, prefix: str) -> tuple[Part, ...]:
        if not record.exists():
            return ()
        parts = [from_table(Part, part, where=str(record)) for part in json.loads(record.read_bytes())["parts"]]
        whole = [(self._path / PARTS / part.name).is_file() and part.name.startswith(prefix) for part in parts]
        return tuple(parts) if all(whole) else ()

    def _run(self, encoding: Encoding, bucket: int) -> Run:
        path = self._folder / f"run-{bucket:04d}.arrow"
        if path.exists():
            return read_run(path)
        rows, counts = encode_bucket(self._spool, bucket, encoding)
        run = write_run(path, rows, counts, in_memory=self._spool.in_memory)
        self._spool.path(bucket).unlink(missing_ok=True)
        return run

    def _fill(self, progress: Progress) -> None:
        schema, config = self._source.schema, self._config
        check_disk(self._path, disk_needed(self._source))
        arrivals = LatenessFilter(schema.time, config.sessions.lateness)

        def bucket_of(batch: pa.RecordBatch) -> IntArray:
            return (key_hashes(batch.column(schema.key)) % np.uint64(config.num_buckets)).astype(np.int64)

        self._spool.fill(arrivals.on_time(ahead(self._source.batches(progress=progress), 2)), bucket_of)
        self._state = {
            "fingerprint": self._fingerprint,
            "generation": self.generation,
            "late": arrivals.num_late,
            "bytes": self._spool.bytes.tolist(),
        }
        if not self._spool.in_memory:
            write_json_atomic(self._folder / STATE, self._state)

    def _load(self) -> dict[str, Any] | None:
        path = self._folder / STATE
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


def _starts(path: Path, *, overwrite: bool, resume: bool) -> bool:
    """Return whether there is something to build: no complete table, one to replace, or a stopped build."""
    if not (path / MANIFEST).exists():
        path.mkdir(parents=True, exist_ok=True)
        return True
    if overwrite or resume:
        return overwrite or (path / WORK / STATE).exists()
    raise TableError(
        f"expected no table in '{path}', got a complete one: use --overwrite to replace it or --resume to keep it"
    )


def _remove_strays(path: Path, manifest: Manifest) -> None:
    named = {part.name for part in manifest.parts}
    for file in (path / PARTS).iterdir():
        if file.name not in named:
            file.unlink(missing_ok=True)
    shutil.rmtree(path / WORK, ignore_errors=True)
