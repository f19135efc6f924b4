"""Restore: verify every file of the chosen shards, then write their rows into the live tables, base first.

No row is touched before everything that is needed has been read and verified. Up to a limit the verified bytes are
kept; files beyond it are read, and verified, a second time.
"""

import json
from collections.abc import Mapping, Sequence

from safetensors.torch import load as load_tensors

from recoup.checkpoint.errors import CheckpointError
from recoup.checkpoint.files import RunFiles
from recoup.checkpoint.manifest import Manifest
from recoup.checkpoint.requests import Restored
from recoup.checkpoint.rows import check_fit, put_rows
from recoup.checkpoint.views import TableView


def restore_rows(
    files: RunFiles,
    manifest: Manifest,
    views: Mapping[str, TableView],
    shards: Sequence[int] | None,
    *,
    cast: bool,
    max_bytes: int,
) -> Restored:
    """Set live rows to a checkpoint. Arguments as `CheckpointStore.restore`; `max_bytes` of verified files are kept."""
    check_fit(views, manifest, cast=cast)
    here = _shards_here(manifest, views, shards)
    entries = [entry for shard in here for entry in manifest.chain(shard)]
    held: dict[str, bytes] = {}
    room = max_bytes
    for entry in entries:
        data = files.entry(entry)
        if len(data) <= room:
            held[entry.file.name] = data
            room -= len(data)
    dense = load_tensors(files.get(manifest.dense))
    for entry in entries:
        for table, copy in files.rows_of(entry, manifest, held.pop(entry.file.name, None)).items():
            if table in views:
                put_rows(views[table], copy)
    return Restored(manifest=manifest, dense=dense, extra=json.loads(manifest.extra), shards=here)


def _shards_here(manifest: Manifest, views: Mapping[str, TableView], shards: Sequence[int] | None) -> tuple[int, ...]:
    """Return the chosen shards that may hold rows of `views`: no other's file is read."""
    plan = manifest.plan
    chosen = range(plan.num_shards) if shards is None else shards
    wrong = [shard for shard in chosen if not 0 <= shard < plan.num_shards]
    if wrong:
        raise CheckpointError(f"checkpoint '{manifest.name}': expected shards in [0, {plan.num_shards}), got {wrong}")
    held = {name: (view.first_row, view.first_row + view.weight.shape[0]) for name, view in views.items()}
    return tuple(shard for shard in chosen if any(plan.may_hold(name, shard, *rows) for name, rows in held.items()))
