"""The row-delta store: bases and deltas a shard, dense tensors, a manifest written last; partial saves cost their rows.

    save      copy rows -> one entry a shard -> dense -> manifest (the commit) -> retention
    restore   newest manifest whose files are all there -> dense, and each shard's base and deltas, checksums verified

Guarantees: a kill at any moment leaves the newest committed checkpoint loadable; retention runs after the commit is
durable and never touches a file that a kept checkpoint needs; a damaged byte is refused before anything is restored
into a table; a process of an older generation cannot commit over a newer one.
"""

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter

from safetensors.torch import save as save_tensors

from recoup.checkpoint.chains import joined_chains, merged_base
from recoup.checkpoint.copies import copy_of
from recoup.checkpoint.entry import check_finite, encode_entry, entry_owner
from recoup.checkpoint.errors import CheckpointError, DamagedError, NoCheckpointError
from recoup.checkpoint.files import RunFiles
from recoup.checkpoint.manifest import Entry, Manifest, encode_manifest
from recoup.checkpoint.names import data_name
from recoup.checkpoint.plan import ShardPlan
from recoup.checkpoint.requests import PendingSave, Restored, SaveRequest, Snapshot, StoreConfig
from recoup.checkpoint.restore import restore_rows
from recoup.checkpoint.rows import check_same_tables, table_facts
from recoup.checkpoint.snapshot import snapshot_bytes, take_snapshot
from recoup.checkpoint.storage import Storage
from recoup.checkpoint.views import TableView
from recoup.core import EventLog

logger = logging.getLogger(__name__)


class CheckpointStore:
    """Checkpoints of one run under a URL."""

    def __init__(
        self,
        url: str | Storage,
        run_id: str,
        plan: ShardPlan,
        *,
        config: StoreConfig | None = None,
        generation: int = 0,
        events: EventLog | None = None,
    ) -> None:
        """Open the store; nothing is written.

        Args:
            url: folder of any fsspec file system; a `Storage` if that needs options (keys, end points).
            run_id: names the run; files of other runs under the URL are neither read nor removed.
            plan: which shard holds which rows.
            config: retention, chains, quantisation, memory.
            generation: grows with every recovery; commits of an older one are refused.
            events: `checkpoint_committed`, `checkpoint_skipped` and `checkpoint_removed` are written to it.
        """
        if not run_id or any(c in run_id for c in "/\\ ") or run_id.startswith("."):
            raise CheckpointError(f"a run id is a plain name, got {run_id!r}")
        self.run_id = run_id
        self.plan = plan
        self.generation = generation
        self.storage = url if isinstance(url, Storage) else Storage(url)
        self._config = config or StoreConfig()
        self._events = events or EventLog()
        self._files = RunFiles(self.storage, run_id, self._events)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="recoup-checkpoint")
        self._pending: PendingSave | None = None
        self._base: dict[int, Manifest] = {}
        """By shard, the checkpoint that the live rows go on from: restored or committed last. Deltas go on its chain,
        not on a newer one's that a restore found damaged."""

    # Saving

    def save(self, request: SaveRequest) -> Manifest:
        """Save and wait for the commit."""
        return self.start_save(request).result()

    def start_save(self, request: SaveRequest) -> PendingSave:
        """Copy what is to be saved, return, and write it in the background.

        One save is in flight at a time: this waits for the one before, whose error, if it has not been seen yet, is
        raised here, once; the next call goes on.
        Cost: the copy (`stall_seconds`); memory is the copy, and one shard's file while it is written. A copy beyond
        `StoreConfig.max_snapshot_bytes` is not made: that save is written shard by shard before this returns.
        """
        self.wait()
        everyone = range(self.plan.num_shards)
        limit = self._config.max_snapshot_bytes
        if limit and snapshot_bytes(request.views, self.plan, everyone, request.rows) > limit:
            began = perf_counter()
            finished: Future[Manifest] = Future()
            finished.set_result(self._save_by_shard(request))
            return PendingSave(finished, perf_counter() - began)
        snapshot = self.snapshot(request)
        return self.submit(lambda: self._write(snapshot), snapshot.stall_seconds)

    def submit(self, write: Callable[[], Manifest], stall_seconds: float) -> PendingSave:
        """Run the writing of a save in the background, after the one in flight (see `start_save`)."""
        self.wait()
        self._pending = PendingSave(self._writer.submit(write), stall_seconds)
        return self._pending

    def wait(self) -> None:
        """Wait for the save in flight.

        Raises:
            CheckpointError: it failed, and nobody has seen that yet.
        """
        pending, self._pending = self._pending, None
        if pending is not None and not (pending.done and pending.seen):
            pending.result()

    def snapshot(self, request: SaveRequest, shards: Sequence[int] | None = None) -> Snapshot:
        """Copy the rows of some shards (None = all) and the dense tensors out of the live state.

        Raises:
            CheckpointError: a table does not fit the plan, a row is not in memory here, or a dense tensor holds NaN or
                infinity (rows are looked at when they are written).
        """
        began = perf_counter()
        chosen = range(self.plan.num_shards) if shards is None else shards
        copies = take_snapshot(request.views, self.plan, chosen, request.rows)
        dense = {name: copy_of(tensor) for name, tensor in request.dense.items()}
        for name, tensor in dense.items():
            check_finite(f"dense tensor {name!r} at step {request.step}", tensor)
        try:
            extra = json.dumps(request.extra, allow_nan=False)
        except (TypeError, ValueError) as err:
            raise CheckpointError(
                f"expected plain JSON types in the extra state of step {request.step}: {err}"
            ) from err
        return Snapshot(
            step=request.step,
            full=request.rows is None,
            exact=request.exact or request.rows is None,
            shards=copies,
            tables={name: table_facts(view) for name, view in request.views.items()},
            dense=dense,
            extra=extra,
            stall_seconds=perf_counter() - began,
        )

    def write_entry(self, snapshot: Snapshot, shard: int, serial: int, *, base: bool) -> Entry:
        """Write one shard's rows of a snapshot and drop them; not a commit. Each rank calls this for its own shard."""
        kind = "base" if base else "delta"
        bits = 0 if base or snapshot.exact else self._config.quantise_bits
        copies = snapshot.shards.pop(shard)
        name = data_name(self.run_id, self.generation, serial, snapshot.step, f"shard{shard:04d}-{kind}")
        data = encode_entry(copies, entry_owner(self.run_id, shard, kind, snapshot.step), bits=bits)
        num_rows = sum(copy.rows.numel() for copy in copies.values())
        del copies
        file = self._files.put(name, data)
        return Entry(
            shard=shard,
            kind="base" if base else "delta",
            step=snapshot.step,
            file=file,
            num_rows=num_rows,
            bits=bits,
            lossy=bits > 0,
        )

    def write_entries(self, snapshot: Snapshot, previous: Manifest | None, serial: int) -> list[Entry]:
        """Write the snapshot's shards; those without rows to save are left out, those with a long chain merged."""
        chosen = [shard for shard, copies in snapshot.shards.items() if copies or snapshot.full]
        entries = [self.write_entry(snapshot, shard, serial, base=snapshot.full) for shard in chosen]
        if previous is None or previous.plan != self.plan:
            return entries
        return [
            self.compact_shard(previous, entry.shard, serial, newest=entry)
            if self.base_due(previous, entry.shard)
            else entry
            for entry in entries
        ]

    def commit(self, snapshot: Snapshot, entries: Sequence[Entry], previous: Manifest | None, serial: int) -> Manifest:
        """Write the dense tensors and the manifest of new entries on the chains of `previous`.

        Raises:
            CheckpointError: a shard would have no base, an entry is foreign, or a newer generation has committed.
        """
        newest = self._files.newest_order()
        if newest is not None and newest[0] > self.generation:
            raise CheckpointError(
                f"generation {self.generation} of run {self.run_id!r} is over: generation {newest[0]} has committed: "
                "end this process"
            )
        chains = joined_chains(self.run_id, self.plan, previous, entries)
        if previous is not None and not snapshot.full:
            check_same_tables(previous, snapshot.tables)
        tables = dict(previous.tables if previous is not None else {}) | dict(snapshot.tables)
        unknown = sorted(set(self.plan.num_rows) - set(tables))
        if unknown:
            raise CheckpointError(
                f"expected facts of every table of the plan, got none of {unknown}: gather all ranks'"
            )
        name = data_name(self.run_id, self.generation, serial, snapshot.step, "dense")
        dense = self._files.put(name, save_tensors(dict(snapshot.dense)))
        manifest = Manifest(
            run_id=self.run_id,
            generation=self.generation,
            step=snapshot.step,
            serial=serial,
            plan=self.plan,
            tables={name: facts for name, facts in tables.items() if name in self.plan.num_rows},
            entries=tuple(chains),
            dense=dense,
            extra=snapshot.extra,
        )
        self.storage.write(manifest.name, encode_manifest(manifest))
        self.go_on_from(manifest, range(self.plan.num_shards))
        return manifest

    def go_on_from(self, manifest: Manifest, shards: Iterable[int]) -> None:
        """Take note that the live rows of these shards are those of a checkpoint: their next deltas go on it."""
        self._base |= dict.fromkeys(shards, manifest)

    def base_of_deltas(self, step: int) -> Manifest:
        """Return the chains that the next deltas go on: of every shard's checkpoint, else of the newest one.

        Raises:
            NoCheckpointError: there is none.
            CheckpointError: a file of them has gone.
        """
        newest = self.latest()
        if newest is None and not self._base:
            raise NoCheckpointError(
                f"step {step}: a save of some rows needs a save of all rows before it: save everything once"
            )
        return self._files.composed(self.plan, self._base, newest)

    def finish(
        self, snapshot: Snapshot, entries: Sequence[Entry], previous: Manifest | None, serial: int, *, began: float
    ) -> Manifest:
        """Commit as `commit`, write the event, and then remove what is old; `began` is `perf_counter` at the start.

        What cannot be removed is warned about: the new checkpoint is durable all the same.
        """
        manifest = self.commit(snapshot, entries, previous, serial)
        self._events.emit(
            "checkpoint_committed",
            step=manifest.step,
            serial=serial,
            full=snapshot.full,
            rows=sum(entry.num_rows for entry in entries),
            bytes=sum(entry.file.bytes for entry in entries) + manifest.dense.bytes,
            stall_seconds=snapshot.stall_seconds,
            write_seconds=perf_counter() - began,
        )
        try:
            self.remove_old()
        except CheckpointError as err:
            logger.warning("old checkpoints stay: %s", err)
        return manifest

    def next_serial(self) -> int:
        """Return a serial after every checkpoint of the run that was ever committed and not removed."""
        newest = self._files.newest_order()
        return 0 if newest is None else newest[1] + 1

    def base_due(self, previous: Manifest | None, shard: int) -> bool:
        """Whether the next save of a shard must be a base: it has none under this plan, or its chain is long."""
        if previous is None or previous.plan != self.plan:
            return True
        return not 0 < len(previous.chain(shard)) <= self._config.max_chain

    def compact_shard(self, manifest: Manifest, shard: int, serial: int, newest: Entry | None = None) -> Entry:
        """Write a shard's whole chain, and a delta on top of it, as one base; the live tables are not needed."""
        return merged_base(self._files, manifest, shard, newest, (self.generation, serial))

    def compact(self) -> Manifest:
        """Merge every chain of the newest checkpoint into bases and commit that as a checkpoint of the same step.

        Raises:
            NoCheckpointError: there is none.
        """
        self.wait()
        began = perf_counter()
        manifest = self.base_of_deltas(0) if self._base else self._newest()
        serial = self.next_serial()
        entries = [self.compact_shard(manifest, shard, serial) for shard in range(manifest.plan.num_shards)]
        dense = restore_rows(self._files, manifest, {}, (), cast=False, max_bytes=0).dense
        snapshot = Snapshot(
            step=manifest.step,
            full=True,
            exact=True,
            shards={},
            tables=manifest.tables,
            dense=dense,
            extra=manifest.extra,
            stall_seconds=0.0,
        )
        return self.finish(snapshot, entries, manifest, serial, began=began)

    # Reading

    def checkpoints(self) -> list[Manifest]:
        """Return the complete checkpoints of the run, newest first; others are skipped with a warning."""
        return self._files.checkpoints()

    def latest(self) -> Manifest | None:
        """Return the newest complete checkpoint, or None if the run has none."""
        found = self._files.checkpoints(1)
        return found[0] if found else None

    def restore(
        self,
        views: Mapping[str, TableView],
        *,
        manifest: Manifest | None = None,
        shards: Sequence[int] | None = None,
        cast: bool = False,
    ) -> Restored:
        """Set live rows to a checkpoint, and return its dense tensors and plain state.

        Args:
            views: live tables; rows that are not in memory here are passed over, so any sharding may be restored, and
                shards that can hold none of these rows are not read.
            manifest: the checkpoint; None = the newest whose files are intact (damaged ones are skipped, and said so).
            shards: shards of the checkpoint's plan to restore; only their files are read. None = all.
            cast: convert dtypes; otherwise another dtype is refused.
        Raises:
            NoCheckpointError: there is none.
            CheckpointError: the chosen checkpoint is damaged or does not fit; no row was changed.
        """
        limit = self._config.max_restore_bytes
        for candidate in (manifest,) if manifest is not None else self.checkpoints():
            try:
                found = restore_rows(self._files, candidate, views, shards, cast=cast, max_bytes=limit)
            except DamagedError as err:
                if manifest is not None:
                    raise
                self._files.skipped(candidate.name, str(err))
            else:
                same = candidate.plan == self.plan
                self.go_on_from(candidate, found.shards if same else range(self.plan.num_shards))
                return found
        raise self._none()

    def remove_old(self) -> None:
        """Remove the run's checkpoints beyond the newest `keep`, then the data files that no kept one needs."""
        self._files.remove_old(self._config.keep)

    def close(self) -> None:
        """Wait for the save in flight, and end the writer. Its error, if any, is in `PendingSave.result`."""
        self._writer.shutdown(wait=True)

    def _newest(self) -> Manifest:
        found = self.latest()
        if found is None:
            raise self._none()
        return found

    def _none(self) -> NoCheckpointError:
        return NoCheckpointError(
            f"expected a complete checkpoint of run {self.run_id!r} in '{self.storage.url}', got none: "
            "check the path, or start without resuming"
        )

    def _save_by_shard(self, request: SaveRequest) -> Manifest:
        head = self.snapshot(request, shards=())
        serial, began = self.next_serial(), perf_counter()
        entries: list[Entry] = []
        previous = None if head.full else self.base_of_deltas(head.step)
        for shard in range(self.plan.num_shards):
            copies = take_snapshot(request.views, self.plan, (shard,), request.rows)
            head.shards.update(copies)
            entries += self.write_entries(head, previous, serial)
        return self.finish(head, entries, previous, serial, began=began)

    def _write(self, snapshot: Snapshot) -> Manifest:
        began = perf_counter()
        previous = None if snapshot.full else self.base_of_deltas(snapshot.step)
        serial = self.next_serial()
        entries = self.write_entries(snapshot, previous, serial)
        return self.finish(snapshot, entries, previous, serial, began=began)
