"""One checkpoint by many ranks: each writes its own shards, reports, and rank 0 commits after all have reported.

    rank k:  copy -> entries of its shards -> report ─┐
    rank 0:                                           ├─> manifest (the commit) -> outcome -> every rank
    rank k:  wait for the outcome <───────────────────┘

Law: every rank returns the same manifest, or every rank raises `CheckpointError` with the same message, and the older
checkpoint is intact, so that training may go on with it. Ranks meet through a `Gather`; nothing here is a collective of
the training's process group, and restoring needs none of it: a lone rank reads its own shards.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Event
from time import monotonic, perf_counter, sleep
from typing import Any, TypeAlias, TypeVar

from recoup.checkpoint.errors import CheckpointError
from recoup.checkpoint.manifest import Entry, Manifest, TableFacts, decode_manifest, encode_manifest
from recoup.checkpoint.requests import PendingSave, SaveRequest, Snapshot
from recoup.checkpoint.storage import Storage
from recoup.checkpoint.store import CheckpointStore
from recoup.core import RecoupError, from_table, to_table

Gather: TypeAlias = Callable[[str], list[str]]
"""Takes this rank's text and returns every rank's, in rank order; called by all ranks the same number of times."""

T = TypeVar("T")
_FAILED = "-failed"


def start_save_together(
    store: CheckpointStore, request: SaveRequest, *, rank: int, shards: Sequence[int], gather: Gather
) -> PendingSave:
    """Copy this rank's shards, return, and write, report and commit in the background.

    Args:
        store: of the run, under the same plan on every rank.
        request: the same step and kind on every rank; `rows` may name rows of other ranks' shards, they are left out;
            rank 0's `dense` and `extra` are saved.
        rank: of this process; 0 commits.
        shards: those whose rows are in memory here; all ranks' together are all shards.
        gather: called in the background (three times): it must not share a process group with training.
    Raises:
        CheckpointError: the save before failed, on any rank.
    """
    snapshot = _snapshot(store, request, shards)
    stall = 0.0 if isinstance(snapshot, CheckpointError) else snapshot.stall_seconds
    return store.submit(lambda: _write_together(store, snapshot, rank, gather), stall)


def save_together(
    store: CheckpointStore, request: SaveRequest, *, rank: int, shards: Sequence[int], gather: Gather
) -> Manifest:
    """Save as `start_save_together`, but in this thread (`gather` may be a collective of training's), to the end.

    Raises:
        CheckpointError: a rank failed; the same on all ranks.
    """
    store.wait()
    return _write_together(store, _snapshot(store, request, shards), rank, gather)


class FileGather:
    """A `Gather` through the checkpoint storage itself: needs no process group, and works in any thread."""

    def __init__(self, storage: Storage, token: str, *, rank: int, world_size: int, timeout_seconds: float) -> None:
        """Keep what is given; nothing is written.

        Args:
            storage: of the store.
            token: the same on all ranks, and another one for every start and generation of the job.
            rank: of this process.
            world_size: number of ranks.
            timeout_seconds: how long to wait for the slowest rank; a dead one is named after that.
        """
        self._storage = storage
        self._token = token
        self._rank = rank
        self._world_size = world_size
        self._timeout = timeout_seconds
        self._calls = 0
        self._given_up = Event()

    def __call__(self, text: str) -> list[str]:
        """Return every rank's text.

        Raises:
            CheckpointError: a rank did not report in time.
        """
        call, self._calls = self._calls, self._calls + 1
        names = [self._name(call, rank) for rank in range(self._world_size)]
        self._report(names[self._rank], text)
        until = monotonic() + self._timeout
        while set(names) - set(found := self._storage.sizes("reports")):
            failed = [rank for rank, name in enumerate(names) if f"{name}{_FAILED}" in found]
            if failed:
                raise CheckpointError(self._unable(failed[0]))
            if self._given_up.is_set():
                raise CheckpointError("the save was given up: a rank was lost while it was written")
            if monotonic() > until:
                missing = [rank for rank, name in enumerate(names) if name not in found]
                raise CheckpointError(f"ranks {missing} did not report a save within {self._timeout} s: are they alive")
            sleep(0.01)  # polls a storage that cannot call back
        texts = [self._storage.read(name).decode() for name in names]
        if call:  # all have passed the call before, so none reads its reports any more
            self._storage.remove(self._name(call - 1, self._rank))
        return texts

    def give_up(self) -> None:
        """Fail the call in progress, and every later one: somebody who would report is gone."""
        self._given_up.set()

    def _report(self, name: str, text: str) -> None:
        try:
            self._storage.write(name, text.encode(), durable=False)
        except CheckpointError as err:
            self._storage.write(f"{name}{_FAILED}", b"", durable=False)  # an empty file fits where nothing else does
            raise CheckpointError(self._unable(self._rank)) from err

    def _unable(self, rank: int) -> str:
        return f"rank {rank} of {self._world_size} could not write its report of a save: is its disk full"

    def _name(self, call: int, rank: int) -> str:
        return f"reports/{self._token}-c{call:08d}-r{rank:04d}"


def remove_reports(storage: Storage, *, keep: str) -> None:
    """Remove the reports of saves that were given up: all but those under the token `keep`."""
    for name in storage.sizes("reports"):
        if not name.startswith(f"reports/{keep}-"):
            storage.remove(name)


def _snapshot(store: CheckpointStore, request: SaveRequest, shards: Sequence[int]) -> Snapshot | CheckpointError:
    """Return the copy, or why there is none: the others must hear of it, or they would wait for this rank."""
    try:
        return store.snapshot(request, shards)
    except CheckpointError as err:
        return err


def _write_together(
    store: CheckpointStore, snapshot: Snapshot | CheckpointError, rank: int, gather: Gather
) -> Manifest:
    began = perf_counter()
    serial, base = _agree_on_serial(store, snapshot, rank, gather)
    own = snapshot.shards.keys() if isinstance(snapshot, Snapshot) else ()
    chains = [to_table(entry) for shard in own for entry in (base.chain(shard) if base else ())]
    entries, problem = _attempt(lambda: _own_entries(store, snapshot, base, serial))
    report: dict[str, Any] = {"problem": problem, "chains": chains, "entries": [to_table(e) for e in entries or ()]}
    if isinstance(snapshot, Snapshot):
        report["tables"] = {name: to_table(facts) for name, facts in snapshot.tables.items()}
    reports = _exchange(gather, "entries", report)
    committed, problem = _attempt(
        lambda: _commit(store, snapshot, reports, (serial, base), began) if rank == 0 else None
    )
    outcome = {"problem": problem, "manifest": "", "name": ""}
    if committed is not None:
        outcome |= {"manifest": encode_manifest(committed).decode(), "name": committed.name}
    first = _exchange(gather, "outcome", outcome)[0]
    manifest = decode_manifest(first["manifest"].encode(), first["name"])
    store.go_on_from(manifest, range(manifest.plan.num_shards))
    return manifest


def _agree_on_serial(
    store: CheckpointStore, snapshot: Snapshot | CheckpointError, rank: int, gather: Gather
) -> tuple[int, Manifest | None]:
    """Return rank 0's serial and, for a delta, what this rank's shards go on."""

    def propose() -> tuple[int, Manifest | None]:
        if isinstance(snapshot, CheckpointError):
            raise snapshot
        base = None if snapshot.full else store.base_of_deltas(snapshot.step)
        return store.next_serial() if rank == 0 else 0, base

    proposal, problem = _attempt(propose)
    serial, base = proposal or (0, None)
    first = _exchange(gather, "serial", {"problem": problem, "serial": serial})[0]
    return int(first["serial"]), base


def _own_entries(
    store: CheckpointStore, snapshot: Snapshot | CheckpointError, base: Manifest | None, serial: int
) -> list[Entry]:
    assert isinstance(snapshot, Snapshot)
    return store.write_entries(snapshot, base, serial)


def _commit(
    store: CheckpointStore,
    snapshot: Snapshot | CheckpointError,
    reports: Sequence[dict[str, Any]],
    agreed: tuple[int, Manifest | None],
    began: float,
) -> Manifest:
    assert isinstance(snapshot, Snapshot)
    serial, base = agreed
    entries, chains = (
        [from_table(Entry, table, where="report") for report in reports for table in report[key]]
        for key in ("entries", "chains")
    )
    tables = {
        name: from_table(TableFacts, table, where="report")
        for report in reports
        for name, table in report["tables"].items()
    }
    previous = None if base is None else replace(base, entries=tuple(chains))
    return store.finish(replace(snapshot, tables=tables), entries, previous, serial, began=began)


def _attempt(work: Callable[[], T]) -> tuple[T | None, str]:
    """Return the result and "", or None and the error's message."""
    try:
        return work(), ""
    except (RecoupError, OSError) as err:
        return None, str(err)


def _exchange(gather: Gather, stage: str, report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all ranks' reports of a stage, or raise the first rank's problem, the same on every rank."""
    reports: list[dict[str, Any]] = [json.loads(text) for text in gather(json.dumps({"stage": stage, **report}))]
    for rank, found in enumerate(reports):
        if found["problem"]:
            raise CheckpointError(f"rank {rank} of {len(reports)}: {found['problem']}")
    stages = [str(found["stage"]) for found in reports]
    if set(stages) != {stage}:  # one of them gave up an earlier save that another still waits for
        raise CheckpointError(f"expected every rank at stage {stage!r} of one save, got {stages}: the save is given up")
    return reports
