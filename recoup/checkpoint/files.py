"""A run's files in the store: written with their checksum, read back verified; manifests listed and judged complete."""

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from recoup.checkpoint.entry import check_owner, decode_entry, entry_owner
from recoup.checkpoint.errors import CheckpointError, DamagedError
from recoup.checkpoint.manifest import Entry, FileRef, Manifest, checksum, decode_manifest
from recoup.checkpoint.names import DATA, MANIFESTS, order_of
from recoup.checkpoint.plan import ShardPlan
from recoup.checkpoint.snapshot import RowsCopy
from recoup.checkpoint.storage import Storage
from recoup.core import EventLog

logger = logging.getLogger(__name__)


class RunFiles:
    """The files of one run; those of other runs under the same URL are neither read nor removed."""

    def __init__(self, storage: Storage, run_id: str, events: EventLog) -> None:
        """Keep what is given; nothing is read."""
        self.storage = storage
        self.run_id = run_id
        self.events = events

    def put(self, name: str, data: bytes) -> FileRef:
        """Write a file, durably, and return what a manifest says of it. Its checksum is taken while it is written."""
        with ThreadPoolExecutor(1, thread_name_prefix="recoup-checksum") as beside:
            found = beside.submit(checksum, data)
            self.storage.write(name, data)
            return FileRef(name=name, bytes=len(data), checksum=found.result())

    def get(self, file: FileRef) -> bytes:
        """Return a file's verified bytes.

        Raises:
            DamagedError: it is missing, cut or has another checksum.
        """
        try:
            data = self.storage.read(file.name)
        except CheckpointError as err:
            raise DamagedError(str(err)) from err
        found = checksum(data)
        if found != file.checksum:
            raise DamagedError(
                f"'{file.name}': expected {file.bytes} bytes of checksum {file.checksum}, got {len(data)} of {found}: "
                "it is damaged"
            )
        return data

    def entry(self, entry: Entry) -> bytes:
        """Return an entry's verified file.

        Raises:
            DamagedError: as `get`, or the file says it is another run's or shard's.
        """
        data = self.get(entry.file)
        check_owner(data, entry_owner(self.run_id, entry.shard, entry.kind, entry.step), entry.file.name)
        return data

    def rows_of(self, entry: Entry, manifest: Manifest, data: bytes | None = None) -> dict[str, RowsCopy]:
        """Return an entry's rows by table; `data` is its file if it was read already."""
        return decode_entry(self.entry(entry) if data is None else data, manifest.tables, bits=entry.bits)

    def manifest_names(self) -> list[str]:
        """Return the manifests of the run, complete or not, newest first."""
        order = {name: self.order(name) for name in self.storage.sizes(MANIFESTS)}
        held = {name: place for name, place in order.items() if place and not _temporary(name)}
        return sorted(held, key=lambda name: held[name] or (0, 0), reverse=True)

    def newest_order(self) -> tuple[int, int] | None:
        """Return (generation, serial) of the newest manifest."""
        names = self.manifest_names()
        return self.order(names[0]) if names else None

    def order(self, name: str) -> tuple[int, int] | None:
        """Return (generation, serial) of a file, None if it is not the run's."""
        return order_of(name, self.run_id)

    def checkpoints(self, limit: int | None = None) -> list[Manifest]:
        """Return the complete checkpoints, newest first, at most `limit`; others are skipped with a warning."""
        found: list[Manifest] = []
        names = self.manifest_names()
        sizes = self.storage.sizes(DATA) if names else {}
        for name in names:
            if len(found) == limit:
                break
            try:
                manifest = decode_manifest(self.storage.read(name), name)
                _check_complete(manifest, sizes)
            except CheckpointError as err:
                self.skipped(name, str(err))
            else:
                found.append(manifest)
        return found

    def composed(self, plan: ShardPlan, bases: Mapping[int, Manifest], newest: Manifest | None) -> Manifest:
        """Return the newest of `bases` and `newest` with each shard's chain from its base, or else from `newest`.

        A base under another plan is returned as it is: no delta can go on it.
        """
        sources = [*bases.values(), *((newest,) if newest is not None else ())]
        for one in sources:
            if one.plan != plan:
                return one
        chosen = {shard: bases.get(shard, newest) for shard in range(plan.num_shards)}
        entries = tuple(entry for shard, one in chosen.items() if one is not None for entry in one.chain(shard))
        sizes = self.storage.sizes(DATA)
        for entry in entries:
            if sizes.get(entry.file.name) != entry.file.bytes:
                raise CheckpointError(
                    f"expected '{entry.file.name}' of {entry.file.bytes} bytes to go on, got "
                    f"{sizes.get(entry.file.name, 'none')}: save everything once"
                )
        template = max(sources, key=lambda one: (one.generation, one.serial))
        return replace(template, entries=entries)

    def skipped(self, name: str, reason: str) -> None:
        """Say that a checkpoint is passed over, and why."""
        logger.warning("checkpoint '%s' is skipped: %s", name, reason)
        self.events.emit("checkpoint_skipped", name=name, reason=reason)

    def remove_old(self, keep: int) -> None:
        """Remove checkpoints beyond the newest `keep`, then what no kept one needs, left-overs of kills included.

        Also kept is the newest one that shares no file with the very newest. Nothing of the age of the newest `keep` or
        newer is touched, complete or not: another process may be writing it.
        """
        found = self.checkpoints()
        if not found:
            return
        kept = found[:keep]
        oldest = (kept[-1].generation, kept[-1].serial)
        newest = set(found[0].files())
        kept += [one for one in found if newest.isdisjoint(one.files())][:1]
        needed = {manifest.name for manifest in kept} | {file.name for one in kept for file in one.files()}
        for folder in (MANIFESTS, DATA):  # manifests first: a kill in between leaves data that nobody names
            for name in self.storage.sizes(folder):
                place = self.order(name)
                if place is not None and place < oldest and name not in needed:
                    self.storage.remove(name)
                    if folder == MANIFESTS:
                        self.events.emit("checkpoint_removed", name=name)


def _temporary(name: str) -> bool:
    return name.rpartition("/")[2].startswith(".")


def _check_complete(manifest: Manifest, sizes: dict[str, int]) -> None:
    for file in manifest.files():
        found = sizes.get(file.name)
        if found != file.bytes:
            raise DamagedError(
                f"expected '{file.name}' of {file.bytes} bytes, got {'none' if found is None else found}"
            )
