"""The row-delta store: bases and deltas a shard, dense tensors, a manifest written last; partial saves cost their rows.

    save      copy rows -> one entry a shard -> dense -> manifest (the commit) -> retention
    restore   newest manifest whose files are all there -> dense, and each shard's base and deltas, checksums verified

Guarantees: a kill at any moment leaves the newest committed checkpoint loadable; retention runs after the commit is
durable and never touches a file that a kept checkpoint needs; a damaged byte is refused before anything is restored
into a table; a process of an older generation cannot commit over a newer one.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Literal

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from recoup.checkpoint.entry import decode_entry, encode_entry
from recoup.checkpoint.errors import CheckpointError, DamagedError, NoCheckpointError
from recoup.checkpoint.manifest import Entry, FileRef, Manifest, TableFacts, checksum, decode_manifest, encode_manifest
from recoup.checkpoint.names import belongs, generation_of, serial_of, stem
from recoup.checkpoint.plan import ShardPlan
from recoup.checkpoint.rows import check_fit, merge_rows, put_rows, table_facts
from recoup.checkpoint.snapshot import RowsCopy, take_snapshot
from recoup.checkpoint.storage import Storage
from recoup.checkpoint.views import TableView
from recoup.core import ConfigError, EventLog

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreConfig:
    """How checkpoints are kept.

    Raises:
        ConfigError: a count is not positive.
    """

    keep: int = 2
    """Complete checkpoints that retention leaves; the newest is never removed."""
    max_chain: int = 24
    """Deltas on a base before the next save of the shard writes a base again (compaction by saving)."""
    quantise_bits: Literal[0, 4, 8] = 0
    """Bits of the weights in deltas; 0 = exact. Bases are always exact."""

    def __post_init__(self) -> None:
        """Check the counts."""
        if self.keep < 1 or self.max_chain < 0:
            raise ConfigError(f"expected keep >= 1 and max_chain >= 0, got {self.keep} and {self.max_chain}")


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveRequest:
    """What to save now."""

    step: int
    views: Mapping[str, TableView]
    rows: Mapping[str, Tensor] | None = None
    """Row numbers by table to save as deltas; None = every row, as bases."""
    dense: Mapping[str, Tensor] = field(default_factory=dict)
    """Dense tensors by name; copied."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Plain state, JSON types only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """A save that no longer needs the live tables."""

    step: int
    full: bool
    shards: Mapping[int, Mapping[str, RowsCopy]]
    tables: Mapping[str, TableFacts]
    dense: Mapping[str, Tensor]
    extra: str
    stall_seconds: float
    """Time the copy took: what an asynchronous save costs training."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Restored:
    """What came back beside the rows."""

    manifest: Manifest
    dense: dict[str, Tensor]
    extra: dict[str, Any]


class PendingSave:
    """A save being written in the background."""

    def __init__(self, future: "Future[Manifest]", stall_seconds: float) -> None:
        """Keep the future."""
        self._future = future
        self.stall_seconds = stall_seconds

    @property
    def done(self) -> bool:
        """Whether it is committed or failed."""
        return self._future.done()

    def result(self, timeout: float | None = None) -> Manifest:
        """Wait for the commit and return its manifest.

        Raises:
            CheckpointError: the save failed; older checkpoints are intact.
        """
        return self._future.result(timeout)


class CheckpointStore:
    """Checkpoints of one run under a URL."""

    def __init__(
        self,
        url: str,
        run_id: str,
        plan: ShardPlan,
        *,
        config: StoreConfig | None = None,
        generation: int = 0,
        events: EventLog | None = None,
    ) -> None:
        """Open the store; nothing is written.

        Args:
            url: folder of any fsspec file system.
            run_id: names the run; files of other runs under the URL are neither read nor removed.
            plan: which shard holds which rows.
            config: retention, chains, quantisation.
            generation: grows with every recovery; commits of an older one are refused.
            events: `checkpoint_committed`, `checkpoint_skipped` and `checkpoint_removed` are written to it.
        """
        if not run_id or any(c in run_id for c in "/\\ ") or run_id.startswith("."):
            raise CheckpointError(f"a run id is a plain name, got {run_id!r}")
        self.run_id = run_id
        self.plan = plan
        self.generation = generation
        self.storage = Storage(url)
        self._config = config or StoreConfig()
        self._events = events or EventLog()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="recoup-checkpoint")
        self._pending: PendingSave | None = None

    # Saving

    def save(self, request: SaveRequest) -> Manifest:
        """Save and wait for the commit."""
        return self.start_save(request).result()

    def start_save(self, request: SaveRequest) -> PendingSave:
        """Copy what is to be saved, return, and write it in the background.

        One save is in flight at a time: this waits for the one before, whose error is raised here.
        Cost: the copy (`stall_seconds`); memory is the copy until it is written.
        """
        if self._pending is not None:
            self._pending.result()
        snapshot = self.snapshot(request)
        future = self._writer.submit(self._write, snapshot)
        self._pending = PendingSave(future, snapshot.stall_seconds)
        return self._pending

    def snapshot(self, request: SaveRequest, shards: Sequence[int] | None = None) -> Snapshot:
        """Copy the rows of some shards (None = all) and the dense tensors out of the live state.

        Raises:
            CheckpointError: a table does not fit the plan, or a dense tensor holds NaN or infinity.
        """
        began = perf_counter()
        chosen = tuple(range(self.plan.num_shards)) if shards is None else tuple(shards)
        copies = take_snapshot(request.views, self.plan, chosen, request.rows)
        dense = {name: tensor.detach().to("cpu", copy=True) for name, tensor in request.dense.items()}
        for name, tensor in dense.items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise CheckpointError(
                    f"dense tensor {name!r} at step {request.step}: expected finite numbers, got NaN or inf"
                )
        return Snapshot(
            step=request.step,
            full=request.rows is None,
            shards=copies,
            tables={name: table_facts(view) for name, view in request.views.items()},
            dense=dense,
            extra=json.dumps(request.extra),
            stall_seconds=perf_counter() - began,
        )

    def write_entry(self, snapshot: Snapshot, shard: int, serial: int, *, base: bool) -> Entry:
        """Write one shard's rows of a snapshot; not a commit. Each rank calls this for its own shard."""
        kind: Literal["base", "delta"] = "base" if base else "delta"
        bits = 0 if base else self._config.quantise_bits
        copies = snapshot.shards[shard]
        name = f"shards/{shard:04d}/{self._stem(serial, snapshot.step)}-{kind}.safetensors"
        file = self._put(name, encode_entry(copies, bits=bits))
        num_rows = sum(copy.rows.numel() for copy in copies.values())
        return Entry(shard=shard, kind=kind, step=snapshot.step, file=file, num_rows=num_rows, bits=bits)

    def commit(self, snapshot: Snapshot, entries: Sequence[Entry], previous: Manifest | None, serial: int) -> Manifest:
        """Write the dense tensors and the manifest of new entries on the chains of `previous`.

        Raises:
            CheckpointError: a shard would have no base, or a newer generation has committed.
        """
        newest = self._newest_name()
        if newest is not None and generation_of(newest, self.run_id) > self.generation:
            raise CheckpointError(
                f"generation {self.generation} of run {self.run_id!r} is over: '{newest}' is newer: end this process"
            )
        new = {entry.shard: entry for entry in entries}
        chains: list[Entry] = []
        for shard in range(self.plan.num_shards):
            old = previous.chain(shard) if previous is not None else ()
            entry = new.get(shard)
            chain = (*old, entry) if entry is not None and entry.kind == "delta" else (entry,) if entry else old
            if not chain or chain[0].kind != "base":
                raise CheckpointError(f"shard {shard}: expected a base before its first delta: save everything once")
            chains += [one for one in chain if one.kind == "base" or one.num_rows]
        dense = self._put(f"dense/{self._stem(serial, snapshot.step)}.safetensors", save_tensors(dict(snapshot.dense)))
        tables = dict(previous.tables if previous is not None else {}) | dict(snapshot.tables)
        manifest = Manifest(
            run_id=self.run_id,
            generation=self.generation,
            step=snapshot.step,
            serial=serial,
            plan=self.plan,
            tables=tables,
            entries=tuple(chains),
            dense=dense,
            extra=snapshot.extra,
        )
        self.storage.write(manifest.name, encode_manifest(manifest))
        return manifest

    def next_serial(self) -> int:
        """Return a serial after every checkpoint of the run that was ever committed and not removed."""
        newest = self._newest_name()
        return 0 if newest is None else serial_of(newest, self.run_id) + 1

    def base_due(self, previous: Manifest | None, shard: int) -> bool:
        """Whether the next save of a shard must be a base: there is none yet, or its chain is long."""
        return previous is None or not previous.chain(shard) or len(previous.chain(shard)) > self._config.max_chain

    def _write(self, snapshot: Snapshot) -> Manifest:
        began = perf_counter()
        previous = None if snapshot.full else self.latest()
        if previous is None and not snapshot.full:
            raise NoCheckpointError("a save of some rows needs a save of all rows before it: save everything once")
        serial = self.next_serial()
        chosen = [shard for shard, copies in snapshot.shards.items() if copies or snapshot.full]
        entries = [self.write_entry(snapshot, shard, serial, base=snapshot.full) for shard in chosen]
        if previous is not None:
            entries = [self._compacted(entry, previous, serial) for entry in entries]
        manifest = self.commit(snapshot, entries, previous, serial)
        num_bytes = sum(entry.file.bytes for entry in entries) + manifest.dense.bytes
        self._events.emit(
            "checkpoint_committed",
            step=manifest.step,
            serial=serial,
            full=snapshot.full,
            rows=sum(entry.num_rows for entry in entries),
            bytes=num_bytes,
            stall_seconds=snapshot.stall_seconds,
            write_seconds=perf_counter() - began,
        )
        self.remove_old()
        return manifest

    def _compacted(self, entry: Entry, previous: Manifest, serial: int) -> Entry:
        if len(previous.chain(entry.shard)) <= self._config.max_chain:
            return entry
        return self.compact_shard(previous, entry.shard, serial, newest=entry)

    def compact_shard(self, manifest: Manifest, shard: int, serial: int, newest: Entry | None = None) -> Entry:
        """Write a shard's whole chain, and a delta on top of it, as one base; the live tables are not needed."""
        chain = (*manifest.chain(shard), *((newest,) if newest is not None else ()))
        merged: dict[str, RowsCopy] = {}
        for entry in chain:
            for table, copy in self._decode(entry, manifest).items():
                merged[table] = merge_rows(merged[table], copy) if table in merged else copy
        name = f"shards/{shard:04d}/{self._stem(serial, chain[-1].step)}-compact.safetensors"
        file = self._put(name, encode_entry(merged))
        rows = sum(copy.rows.numel() for copy in merged.values())
        return Entry(shard=shard, kind="base", step=chain[-1].step, file=file, num_rows=rows)

    # Reading

    def checkpoints(self) -> list[Manifest]:
        """Return the complete checkpoints of the run, newest first; others are skipped with a warning."""
        found: list[Manifest] = []
        sizes: dict[str, dict[str, int]] = {}
        for name in sorted(self._manifest_names(), key=lambda n: serial_of(n, self.run_id), reverse=True):
            reason = ""
            try:
                manifest = decode_manifest(self.storage.read(name), name)
                reason = self._missing(manifest, sizes)
            except CheckpointError as err:
                reason = str(err)
            else:
                if not reason:
                    found.append(manifest)
            if reason:
                logger.warning("checkpoint '%s' is skipped: %s", name, reason)
                self._events.emit("checkpoint_skipped", name=name, reason=reason)
        return found

    def latest(self) -> Manifest | None:
        """Return the newest complete checkpoint, or None if the run has none."""
        found = self.checkpoints()
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
            views: live tables; rows that are not in memory here are passed over, so any sharding may be restored.
            manifest: the checkpoint; None = the newest whose files are intact (damaged ones are skipped, and said so).
            shards: shards to restore; only their files are read. None = all.
            cast: convert dtypes; otherwise another dtype is refused.
        Raises:
            NoCheckpointError: there is none.
            CheckpointError: the chosen checkpoint is damaged or does not fit; no row was changed.
        """
        if manifest is not None:
            return self._restore(views, manifest, shards, cast=cast)
        for candidate in self.checkpoints():
            try:
                return self._restore(views, candidate, shards, cast=cast)
            except DamagedError as err:
                logger.warning("checkpoint '%s' is skipped: %s", candidate.name, err)
                self._events.emit("checkpoint_skipped", name=candidate.name, reason=str(err))
        raise NoCheckpointError(
            f"expected a complete checkpoint of run {self.run_id!r} in '{self.storage.url}', got none: "
            "check the path, or start without resuming"
        )

    def _restore(
        self, views: Mapping[str, TableView], manifest: Manifest, shards: Sequence[int] | None, *, cast: bool
    ) -> Restored:
        check_fit(views, manifest, cast=cast)
        chosen = range(manifest.plan.num_shards) if shards is None else shards
        chains = {shard: manifest.chain(shard) for shard in chosen}
        for chain in chains.values():  # everything is verified before the first row is touched
            for entry in chain:
                self._get(entry.file)
        dense = load_tensors(self._get(manifest.dense))
        for chain in chains.values():
            for entry in chain:
                for table, copy in self._decode(entry, manifest).items():
                    if table in views:
                        put_rows(views[table], copy)
        return Restored(manifest=manifest, dense=dense, extra=json.loads(manifest.extra))

    def remove_old(self) -> None:
        """Remove the run's checkpoints beyond the newest `keep`, then the data files that no kept one needs."""
        kept = self.checkpoints()[: self._config.keep]
        if not kept:
            return
        names = {manifest.name for manifest in kept}
        oldest = min(manifest.serial for manifest in kept)
        for name in self._manifest_names():
            if name not in names and serial_of(name, self.run_id) < oldest:
                self.storage.remove(name)
                self._events.emit("checkpoint_removed", name=name)
        needed = {file.name for manifest in kept for file in manifest.files()}
        folders = ["dense", *(f"shards/{shard:04d}" for shard in range(self.plan.num_shards))]
        for folder in folders:
            for file in self.storage.sizes(folder):
                if belongs(file, self.run_id) and file not in needed and serial_of(file, self.run_id) < oldest:
                    self.storage.remove(file)

    def close(self) -> None:
        """Wait for the save in flight, and end the writer."""
        self._writer.shutdown(wait=True)

    def _stem(self, serial: int, step: int) -> str:
        return stem(self.run_id, self.generation, serial, step)

    def _put(self, name: str, data: bytes) -> FileRef:
        self.storage.write(name, data)
        return FileRef(name=name, bytes=len(data), checksum=checksum(data))

    def _get(self, file: FileRef) -> bytes:
        try:
            data = self.storage.read(file.name)
        except CheckpointError as err:
            raise DamagedError(str(err)) from err
        if checksum(data) != file.checksum:
            raise DamagedError(f"'{file.name}': expected checksum {file.checksum}, got {checksum(data)}: it is damaged")
        return data

    def _decode(self, entry: Entry, manifest: Manifest) -> dict[str, RowsCopy]:
        facts = {name: {"dim": table.dim, "dtype": table.dtype} for name, table in manifest.tables.items()}
        return decode_entry(self._get(entry.file), facts, bits=entry.bits)

    def _manifest_names(self) -> list[str]:
        return [name for name in self.storage.sizes("checkpoints") if belongs(name, self.run_id)]

    def _newest_name(self) -> str | None:
        return max(self._manifest_names(), key=lambda name: serial_of(name, self.run_id), default=None)

    def _missing(self, manifest: Manifest, sizes: dict[str, dict[str, int]]) -> str:
        for file in manifest.files():
            folder = file.name.rpartition("/")[0]
            if folder not in sizes:
                sizes[folder] = self.storage.sizes(folder)
            found = sizes[folder].get(file.name)
            if found != file.bytes:
                return f"expected '{file.name}' of {file.bytes} bytes, got {'none' if found is None else found}"
        return ""
