"""Rows of a checkpoint and live rows: whether they fit, writing some into a table, merging a delta onto a base."""

from collections.abc import Mapping

import torch

from recoup.checkpoint.errors import CheckpointError
from recoup.checkpoint.manifest import Manifest, TableFacts
from recoup.checkpoint.snapshot import RowsCopy
from recoup.checkpoint.views import TableView


def table_facts(view: TableView) -> TableFacts:
    """Return what a table must be to restore into it."""
    return TableFacts(
        num_rows=view.num_rows_total,
        dim=view.weight.shape[1],
        dtype=_name(view.weight.dtype),
        optimizer={name: _name(state.dtype) for name, state in view.optimizer.items()},
        optimizer_shape={name: tuple(state.shape[1:]) for name, state in view.optimizer.items()},
    )


def check_fit(views: Mapping[str, TableView], manifest: Manifest, *, cast: bool) -> None:
    """Refuse to restore into tables of another size, dim, dtype or optimizer.

    Raises:
        CheckpointError: the message names the table, both sides, and what to do.
    """
    for name, view in views.items():
        saved, live = manifest.tables.get(name), table_facts(view)
        if saved is None:
            raise CheckpointError(f"table {name!r}: expected one of the checkpoint's {sorted(manifest.tables)}")
        for what in ("num_rows", "dim"):
            if getattr(saved, what) != getattr(live, what):
                raise CheckpointError(
                    f"table {name!r}: the checkpoint '{manifest.name}' has {what} {getattr(saved, what)}, "
                    f"the model {getattr(live, what)}: restore into the model it was saved from"
                )
        if set(saved.optimizer) != set(live.optimizer):
            raise CheckpointError(
                f"table {name!r}: the checkpoint has optimizer state {sorted(saved.optimizer)}, "
                f"the model {sorted(live.optimizer)}: use the same optimizer"
            )
        if saved.optimizer_shape != live.optimizer_shape:
            raise CheckpointError(
                f"table {name!r}: the checkpoint has optimizer rows of shape {saved.optimizer_shape}, "
                f"the model {live.optimizer_shape}: use the same optimizer"
            )
        if not cast and (saved.dtype != live.dtype or saved.optimizer != live.optimizer):
            raise CheckpointError(
                f"table {name!r}: the checkpoint has dtypes {saved.dtype} {saved.optimizer}, "
                f"the model {live.dtype} {live.optimizer}: ask for a cast to convert"
            )


def check_same_tables(previous: Manifest, tables: Mapping[str, TableFacts]) -> None:
    """Refuse a delta of tables that are not what their base was saved from."""
    for name, facts in tables.items():
        if name in previous.tables and previous.tables[name] != facts:
            raise CheckpointError(
                f"table {name!r}: the checkpoint '{previous.name}' has {previous.tables[name]}, the delta {facts}: "
                "save everything once"
            )


def put_rows(view: TableView, copy: RowsCopy) -> None:
    """Write the rows of `copy` that are in memory here into the live table; no other row is touched."""
    local = copy.rows - view.first_row
    held = view.weight.shape[0]
    inside = (local >= 0) & (local < held)
    everything = bool(inside.all())
    chosen = local if everything else local[inside]
    if chosen.numel() == 0:
        return
    first, count = int(chosen[0]), chosen.numel()
    is_range = int(chosen[-1]) - first + 1 == count  # rows ascend
    index = chosen.to(view.weight.device)
    with torch.no_grad():
        for name, live in view.parts().items():
            rows = copy.parts[name] if everything else copy.parts[name][inside]
            if is_range:
                live.narrow(0, first, count).copy_(rows)
            else:
                live.index_copy_(0, index, rows.to(device=live.device, dtype=live.dtype))


def merge_rows(base: RowsCopy, delta: RowsCopy) -> RowsCopy:
    """Return the rows of both, those of `delta` where both have a row; ascending."""
    rows = torch.cat([base.rows, delta.rows])
    order = torch.argsort(rows, stable=True)
    ordered = rows[order]
    last = torch.ones_like(ordered, dtype=torch.bool)
    last[:-1] = ordered[1:] != ordered[:-1]
    chosen = order[last]
    parts = {name: torch.cat([part, delta.parts[name]])[chosen] for name, part in base.parts.items()}
    return RowsCopy(rows=ordered[last], parts=parts)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
