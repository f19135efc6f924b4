"""A snapshot: the rows of a save, copied out of the live tables, so that training goes on while they are written.

This copy is the whole stall of an asynchronous save. It holds only the rows asked for: a save of 1 % of the rows
copies and writes 1 % of the bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from recoup.checkpoint.copies import copy_of, rows_copy
from recoup.checkpoint.errors import CheckpointError
from recoup.checkpoint.grouping import rows_by_shard
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
    shards: Sequence[int],
    rows: Mapping[str, Tensor] | None,
) -> dict[int, dict[str, RowsCopy]]:
    """Copy rows out of the live tables, by shard and table.

    Args:
        views: live tables; all the rows that `shards` hold (all = None) or are asked of them must be in memory here.
        plan: who holds what.
        shards: shards to save; rows of other shards are left out.
        rows: row numbers by table, in any order, repeats allowed; None = every row.
    Raises:
        CheckpointError: a table or row of these shards is not in memory here, or a row is not in its table.
    Cost: O(rows saved), on one thread: memory sets the pace, and two threads were slower at every size tried.
    """
    wanted = _wanted(views, plan, shards, rows)
    return {
        shard: {table: _copied(views[table], numbers) for table, numbers in tables.items()}
        for shard, tables in wanted.items()
    }


def snapshot_bytes(
    views: Mapping[str, TableView], plan: ShardPlan, shards: Sequence[int], rows: Mapping[str, Tensor] | None
) -> int:
    """Return what `take_snapshot` would copy at most, in bytes; nothing is copied."""
    total = 0
    for table, view in views.items():
        row = 8 + sum(part[:1].numel() * part.element_size() for part in view.parts().values())
        if rows is None:
            total += row * sum(plan.rows_of(table, shard).numel() for shard in shards)
        elif table in rows:
            total += row * rows[table].numel()
    return total


def _wanted(
    views: Mapping[str, TableView], plan: ShardPlan, shards: Sequence[int], rows: Mapping[str, Tensor] | None
) -> dict[int, dict[str, Tensor]]:
    """Return the row numbers to copy, int64, ascending, each once, by shard and table; empty ones left out."""
    found: dict[int, dict[str, Tensor]] = {shard: {} for shard in shards}
    for table, view in views.items():
        if plan.num_rows.get(table) != view.num_rows_total:
            raise CheckpointError(
                f"table {table!r}: expected {plan.num_rows.get(table)} rows (the plan), got {view.num_rows_total}"
            )
    for table in plan.num_rows if rows is None else rows:
        numbers = None if rows is None else _checked_rows(table, rows[table], plan)
        grouped = None if numbers is None else rows_by_shard(numbers, plan.shard_of(table, numbers), plan.num_shards)
        for shard in shards:
            chosen = plan.rows_of(table, shard) if grouped is None else grouped[shard]
            if chosen.numel():
                found[shard][table] = chosen
                _check_held(table, views.get(table), shard, chosen)
    return found


def _checked_rows(table: str, rows: Tensor, plan: ShardPlan) -> Tensor:
    if table not in plan.num_rows:
        raise CheckpointError(f"expected rows of the plan's tables {sorted(plan.num_rows)}, got table {table!r}")
    numbers = rows.to(device="cpu", dtype=torch.int64)
    plain = numbers.numpy()
    if (plain[1:] <= plain[:-1]).any():
        numbers = torch.from_numpy(np.unique(plain))
    total = plan.num_rows[table]
    if numbers.numel() and (int(numbers[0]) < 0 or int(numbers[-1]) >= total):
        wrong = int(numbers[0]) if int(numbers[0]) < 0 else int(numbers[-1])
        raise CheckpointError(f"table {table!r}: expected rows in [0, {total}), got {wrong}")
    return numbers


def _check_held(table: str, view: TableView | None, shard: int, rows: Tensor) -> None:
    """Refuse a save that would silently leave rows out; `rows` ascend."""
    first = 0 if view is None else view.first_row
    last = first + (0 if view is None else view.weight.shape[0])
    if int(rows[0]) < first or int(rows[-1]) >= last:
        raise CheckpointError(
            f"shard {shard} holds rows {int(rows[0])} to {int(rows[-1])} of table {table!r}, this process "
            f"[{first}, {last}): save only the shards whose rows are here"
        )


def _copied(view: TableView, rows: Tensor) -> RowsCopy:
    local = rows - view.first_row
    first, count = int(local[0]), rows.numel()
    if int(local[-1]) - first + 1 == count:  # a range
        parts = {name: copy_of(tensor[first : first + count]) for name, tensor in view.parts().items()}
    else:
        parts = {name: rows_copy(tensor, local) for name, tensor in view.parts().items()}
    return RowsCopy(rows=rows, parts=parts)
