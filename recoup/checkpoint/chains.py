"""Chains: for every shard a base, then deltas in order. New entries join them; a long chain is merged into a base."""

from collections.abc import Sequence

from recoup.checkpoint.entry import encode_entry, entry_owner
from recoup.checkpoint.errors import CheckpointError
from recoup.checkpoint.files import RunFiles
from recoup.checkpoint.manifest import Entry, Manifest
from recoup.checkpoint.names import data_name, order_of
from recoup.checkpoint.plan import ShardPlan
from recoup.checkpoint.rows import merge_rows
from recoup.checkpoint.snapshot import RowsCopy


def joined_chains(run_id: str, plan: ShardPlan, previous: Manifest | None, entries: Sequence[Entry]) -> list[Entry]:
    """Return the chains of `previous` with new entries on them, a new base in the place of its shard's chain.

    Raises:
        CheckpointError: an entry is another run's, a delta has no base under the same plan, or a base lacks rows.
    """
    new = {entry.shard: entry for entry in entries}
    for entry in entries:
        _check_own(entry, run_id, plan)
    if previous is not None and previous.plan != plan:
        if any(entry.kind == "delta" for entry in entries) or set(new) != set(range(plan.num_shards)):
            raise CheckpointError(
                f"expected the plan of '{previous.name}' ({previous.plan.kind}, {previous.plan.num_shards} shards), "
                f"got another ({plan.kind}, {plan.num_shards} shards): save everything once under the new one"
            )
        previous = None
    chains: list[Entry] = []
    for shard in range(plan.num_shards):
        old = () if previous is None else previous.chain(shard)
        entry = new.get(shard)
        chain = old if entry is None else (*old, entry) if entry.kind == "delta" else (entry,)
        if not chain or chain[0].kind != "base":
            raise CheckpointError(f"shard {shard}: expected a base before its first delta: save everything once")
        chains += [one for one in chain if one.kind == "base" or one.num_rows]
    return chains


def merged_base(files: RunFiles, manifest: Manifest, shard: int, newest: Entry | None, place: tuple[int, int]) -> Entry:
    """Write a shard's whole chain, and a delta on top of it, as one base; the live tables are not needed.

    Args:
        files: of the run.
        manifest: holds the chain.
        shard: whose.
        newest: a delta that is not in the manifest yet.
        place: generation and serial for the new file's name.
    Cost: reads the chain; memory is one shard, its newest delta, and the new file.
    """
    chain = (*manifest.chain(shard), *((newest,) if newest is not None else ()))
    merged: dict[str, RowsCopy] = {}
    for entry in chain:
        for table, copy in files.rows_of(entry, manifest).items():
            merged[table] = merge_rows(merged[table], copy) if table in merged else copy
    step = chain[-1].step
    name = data_name(files.run_id, *place, step, f"shard{shard:04d}-merged")
    file = files.put(name, encode_entry(merged, entry_owner(files.run_id, shard, "base", step)))
    rows = sum(copy.rows.numel() for copy in merged.values())
    lossy = any(entry.lossy for entry in chain)
    return Entry(shard=shard, kind="base", step=step, file=file, num_rows=rows, lossy=lossy)


def _check_own(entry: Entry, run_id: str, plan: ShardPlan) -> None:
    if order_of(entry.file.name, run_id) is None:
        raise CheckpointError(f"expected an entry of run {run_id!r}, got '{entry.file.name}': it is another run's")
    if not 0 <= entry.shard < plan.num_shards:
        raise CheckpointError(f"'{entry.file.name}': expected a shard in [0, {plan.num_shards}), got {entry.shard}")
    if entry.kind == "base" and entry.num_rows != plan.num_rows_of(entry.shard):
        raise CheckpointError(
            f"'{entry.file.name}': expected all {plan.num_rows_of(entry.shard)} rows of shard {entry.shard}, "
            f"got {entry.num_rows}"
        )
