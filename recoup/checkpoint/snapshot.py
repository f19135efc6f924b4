"""A snapshot: the rows of a save, copied out of the live tables, so that training goes on while they are written.

This copy is the whole stall of an asynchronous save. It holds only the rows asked for: a save of 1 % of the rows
copies and writes 1 % of the bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from recoup.checkpoint.errors import CheckpointError
from recoup.checkpoint.plan import ShardPlan
from recoup.checkpoint.views import TableView


@dataclass(frozen=True, kw_only=True, slots=True)
class RowsCopy:
    """Some rows of one table."""

    rows: Tensor
    """int64 [n], the table's row numbers."""
    parts: Mapping[str, Tensor]
    """`weight` [n, D] and `optimizer.<name>` [n, ...], on the CPU."""

    @property
    def num_bytes(self) -> int:
        """Size of everything."""
        return sum(tensor.numel() * tensor.element_size() for tensor in (self.rows, *self.parts.values()))


def take_snapshot(
    views: Mapping[str, TableView],
    plan: ShardPlan,
    shards: tuple[int, ...],
    rows: Mapping[str, Tensor] | None,
) -> dict[int, dict[str, RowsCopy]]:
    """Copy rows out of the live tables, by shard and table.

    Args:
        views: live tables; rows that are not in memory here are left out.
        plan: who holds what.
        shards: shards to save.
        rows: row numbers by table; None = every row. A table that is not named has no rows to save.
    Raises:
        CheckpointError: a table of the plan is not in memory, or a row is not in its table.
    Cost: O(rows saved).
    """
    result: dict[int, dict[str, RowsCopy]] = {shard: {} for shard in shards}
    for table, view in views.items():
        if plan.num_rows.get(table) != view.num_rows_total:
            raise CheckpointError(
                f"table {table!r}: expected {plan.num_rows.get(table)} rows (the plan), got {view.num_rows_total}"
            )
        if rows is not None and table not in rows:
            continue
        if rows is None:
            for shard in shards:
                _add(result[shard], view, plan.rows_of(table, shard))
            continue
        wanted = rows[table].to(torch.int64).cpu()
        if wanted.numel() and (int(wanted.min()) < 0 or int(wanted.max()) >= view.num_rows_total):
            raise CheckpointError(f"table {table!r}: expected rows in [0, {view.num_rows_total}), got others")
        owner = plan.shard_of(table, wanted)
        for shard in shards:
            _add(result[shard], view, wanted[owner == shard])
    return result


def _add(into: dict[str, RowsCopy], view: TableView, rows: Tensor) -> None:
    held = view.weight.shape[0]
    local = rows - view.first_row
    if rows.numel() and (
        int(local[0]) < 0 or int(local[-1]) >= held or int(local.min()) < 0 or int(local.max()) >= held
    ):
        inside = (local >= 0) & (local < held)
        rows, local = rows[inside], local[inside]
    if rows.numel() == 0:
        return
    with torch.no_grad():
        if rows.numel() == held and bool((local[1:] > local[:-1]).all()):
            parts = {name: tensor.detach().to("cpu", copy=True) for name, tensor in view.parts().items()}
        else:
            index = local.to(view.weight.device)
            parts = {name: tensor.detach().index_select(0, index).cpu() for name, tensor in view.parts().items()}
    into[view.name] = RowsCopy(rows=rows, parts=parts)
