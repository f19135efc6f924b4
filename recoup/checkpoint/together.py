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
            if monotonic() > until:
                missing = [rank for rank, name in enumerate(names) if name not in found]
                raise CheckpointError(f"ranks {missing} did not report a save within {self._timeout} s: are they alive")
            sleep(0.01)  # polls a storage that cannot call back
        texts = [self._storage.read(name).decode() for name in names]
        if call:  # all have passed the call before, so none reads its reports any more
            self._storage.remove(self._name(call - 1, self._rank))
        return texts

    def _report(self, name: str, text: str) -> None:
        try:
            self._storage.write(name, text.encode())
        except CheckpointError as err:
            self._storage.write(f"{name}{_FAILED}", b"")  # an empty file fits where nothing else does
            raise CheckpointError(self._unable(self._rank)) from err

    def _unable(self, rank: int) -> str:
        return f"rank {rank} of {self._world_size} could not write its report of a save: is its disk full"

    def _name(self, call: int, rank: int) -> str:
        return f"reports/{self._token}-c{call:08d}-r{rank:04d}"


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
    serial, previous = base = _agree_on_base(store, snapshot, rank, gather)
    entries, problem = _attempt(lambda: _own_entries(store, snapshot, previous, serial))
    own: dict[str, Any] = {"problem": problem, "entries": [to_table(entry) for entry in entries or ()]}
    if isinstance(snapshot, Snapshot):
        own["tables"] = {name: to_table(facts) for name, facts in snapshot.tables.items()}
    reports = _exchange(gather, "entries", own)
    assert isinstance(snapshot, Snapshot)
    committed, problem = _attempt(lambda: _commit(store, snapshot, reports, base, began) if rank == 0 else None)
    outcome = {"problem": problem, "manifest": "", "name": ""}
    if committed is not None:
        outcome |= {"manifest": encode_manifest(committed).decode(), "name": committed.name}
    outcomes = _exchange(gather, "outcome", outcome)
    return decode_manifest(outcomes[0]["manifest"].encode(), outcomes[0]["name"])


def _agree_on_base(
    store: CheckpointStore, snapshot: Snapshot | CheckpointError, rank: int, gather: Gather
) -> tuple[int, Manifest | None]:
    """Return rank 0's serial and, for a delta, the checkpoint it goes on."""

    def propose() -> dict[str, Any]:
        if isinstance(snapshot, CheckpointError):
            raise snapshot
        if rank != 0:
            return {}
        previous = None if snapshot.full else store.latest()
        if previous is None and not snapshot.full:
            raise CheckpointError("a save of some rows needs a save of all rows before it: save everything once")
        text = "" if previous is None else encode_manifest(previous).decode()
        return {"serial": store.next_serial(), "previous": text, "name": previous.name if previous else ""}

    proposal, problem = _attempt(propose)
    first = _exchange(gather, "base", {"problem": problem, **(proposal or {})})[0]
    found = decode_manifest(first["previous"].encode(), first["name"]) if first["previous"] else None
    return int(first["serial"]), found


def _own_entries(
    store: CheckpointStore, snapshot: Snapshot | CheckpointError, previous: Manifest | None, serial: int
) -> list[Entry]:
    assert isinstance(snapshot, Snapshot)
    return store.write_entries(snapshot, previous, serial)


def _commit(
    store: CheckpointStore,
    snapshot: Snapshot,
    reports: Sequence[dict[str, Any]],
    base: tuple[int, Manifest | None],
    began: float,
) -> Manifest:
    serial, previous = base
    entries = [from_table(Entry, table, where="report") for report in reports for table in report["entries"]]
    tables = {
        name: from_table(TableFacts, table, where="report")
        for report in reports
        for name, table in report["tables"].items()
    }
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
