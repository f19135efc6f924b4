"""A build under way in the folder `.build` of its table: spool, runs, finished parts, state; each resumable."""

import hashlib
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from recoup.core import Progress, from_table, to_table, write_json_atomic
from recoup.log import LogSource
from recoup.schema import sample_schema
from recoup.table.ahead import ahead
from recoup.table.arrays import IntArray
from recoup.table.arrival import LatenessFilter
from recoup.table.border import Border
from recoup.table.build_config import BuildConfig
from recoup.table.disk import check_disk, log_size
from recoup.table.errors import TableError
from recoup.table.manifest import FORMAT_VERSION, MANIFEST, PARTS, WORK, Counts, Part, committed_generation
from recoup.table.runs import Run, read_run, rows_in_order, write_run
from recoup.table.sampling import key_hashes
from recoup.table.spool import Spool
from recoup.table.stages import Encoding, encode_bucket
from recoup.table.writer import TableWriter

STATE = "state.json"
"""Says that the spool is complete, and what it was made from; finished runs and parts stand beside it."""
_LAYOUT = 3  # of the work folder: a build that another version stopped is not gone on with
_SPOOL_BYTES = 64_000_000  # a log smaller than this is never spilled
_LEAST_BUCKETS, _MOST_BUCKETS = 16, 1024  # one open file each while the log is read
_BUCKETS_HELD = 5  # what encoding two buckets holds at once: their samples, the sorted copies, encoded bytes


class BuildWork:
    """A build under way and its folder: spool, runs, finished parts, state."""

    def __init__(
        self, path: Path, source: LogSource, config: BuildConfig, *, resume: bool, border: Border | None = None
    ) -> None:
        self._path = path
        self._folder = path / WORK
        self._source = source
        self._config = config
        self._border = border
        self._fingerprint = _fingerprint(source, config, appends=border is not None)
        self._committed = committed_generation(path) if (path / MANIFEST).exists() else -1
        self.generation = self._committed + 1
        self._state = self._load() if resume else None
        self._disk = 0
        if self._state is None:
            shutil.rmtree(self._folder, ignore_errors=True)
            size = log_size(source)
            before = 0 if border is None else border.num_bytes
            self._disk = size.rows + before
            num_buckets = self._num_buckets(size.spooled + before)
        else:
            num_buckets = len(self._state["bytes"])
        memory = min(_SPOOL_BYTES, config.memory_bytes // 4)
        self._spool = Spool(self._folder, sample_schema(source.schema), num_buckets, memory_bytes=memory)

    @property
    def is_committed(self) -> bool:
        """Whether the build that is resumed was stopped after its commit."""
        return self._state is not None and self._state["generation"] == self._committed

    def encode(self, progress: Progress) -> list[Run]:
        """Return the runs of all buckets; those of an earlier attempt are taken as they are."""
        if self._state is None:
            self._fill(progress)
        else:
            self._spool.reopen(self._state["bytes"], self._state["rows"])
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
            border=self._border.time if self._border is not None else None,
        )
        runs: list[Run] = []
        # Two buckets at a time where both fit: encoded bytes, their sorted copy and the samples are about five buckets.
        workers = 2 if int(self._spool.bytes.max(initial=0)) * _BUCKETS_HELD <= config.memory_bytes else 1
        with ThreadPoolExecutor(workers) as pool:
            try:
                for run in pool.map(partial(self._run, encoding), range(self._spool.num_buckets)):
                    runs.append(run)
                    progress("encode sessions", len(runs), self._spool.num_buckets)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return runs

    def counts(self, runs: list[Run]) -> Counts:
        """Return what all stages counted."""
        assert self._state is not None
        names = ("samples", "sessions", "rows", "repeated", "sampled_out")
        totals = {name: sum(getattr(run.counts, name) for run in runs) for name in names}
        totals["repeated"] += self._state["repeated"]
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
        whole = [
            (self._path / PARTS / part.name).is_file() and part.name.rpartition("/")[2].startswith(prefix)
            for part in parts
        ]
        return tuple(parts) if all(whole) else ()

    def _num_buckets(self, spooled: int) -> int:
        if self._config.num_buckets is not None:
            return self._config.num_buckets
        wanted = spooled * _BUCKETS_HELD // self._config.memory_bytes
        return min(max(wanted + wanted // 4, _LEAST_BUCKETS), _MOST_BUCKETS)  # keys are not spread quite evenly

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
        check_disk(self._path, self._disk)
        arrivals = LatenessFilter(schema.time, config.sessions.lateness)
        border = self._border

        def bucket_of(batch: pa.RecordBatch) -> IntArray:
            return (key_hashes(batch.column(schema.key)) % np.uint64(self._spool.num_buckets)).astype(np.int64)

        samples = arrivals.on_time(ahead(self._source.batches(progress=progress), 2))
        self._spool.fill(samples if border is None else border.joined(samples, schema), bucket_of)
        repeated = 0 if border is None else border.repeated()
        self._state = {
            "fingerprint": self._fingerprint,
            "generation": self.generation,
            "border": None if border is None else border.time,
            "late": arrivals.num_late + (0 if border is None else border.num_early - repeated),
            "repeated": repeated,
            "bytes": self._spool.bytes.tolist(),
            "rows": self._spool.rows.tolist(),
        }
        if not self._spool.in_memory:
            write_json_atomic(self._folder / STATE, self._state)

    def _load(self) -> dict[str, Any] | None:
        path = self._folder / STATE
        if not path.exists():
            return None
        state = json.loads(path.read_bytes())
        begun = (state["generation"], state["border"])  # on the table that is there, or it is that table already
        fits = state["generation"] == self._committed or begun == (
            self.generation,
            None if self._border is None else self._border.time,
        )
        if state["fingerprint"] != self._fingerprint or not fits:
            raise TableError(
                f"expected a stopped {'build' if self._border is None else 'append'} of the same log and settings in "
                f"'{self._folder}', got another: start again without --resume"
            )
        return state


def _fingerprint(source: LogSource, config: BuildConfig, *, appends: bool) -> str:
    facts = [
        "append" if appends else "build",
        _LAYOUT,
        FORMAT_VERSION,
        source.describe(),
        to_table(source.schema),
        to_table(config),
    ]
    return hashlib.blake2b(json.dumps(facts, sort_keys=True, default=str).encode(), digest_size=16).hexdigest()
