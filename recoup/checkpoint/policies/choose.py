"""The rows of one priority save: r of each large table as the policy ranks them, and the small tables whole."""

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from recoup.checkpoint.policies.contract import SAVE_FRACTION, RowPolicy
from recoup.checkpoint.policies.large_tables import large_tables
from recoup.checkpoint.views import TableView


def priority_rows(
    policy: RowPolicy,
    views: Mapping[str, TableView],
    *,
    fraction: float = SAVE_FRACTION,
    large: Collection[str] | None = None,
) -> dict[str, Tensor]:
    """Return the rows to save now, by table: `SaveRequest.rows`.

    Args:
        policy: tracks the large tables.
        views: live tables of this process.
        fraction: r; at most this part of a large table's rows here, and at least one row.
        large: tables saved by priority; None = the fewest that hold 99 % of the rows here.
    """
    held = {table: view.weight.shape[0] for table, view in views.items()}
    chosen = set(large_tables(held) if large is None else large)
    return {
        table: policy.select(table, max(1, int(fraction * held[table])))
        if table in chosen
        else torch.arange(view.first_row, view.first_row + held[table])
        for table, view in views.items()
    }
