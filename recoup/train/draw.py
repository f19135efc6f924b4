"""Every row's start, drawn by block and seed: the same rows whatever the sharding."""

import torch

from recoup.checkpoint import TableView
from recoup.core import derive_seed
from recoup.model import DLRMConfig

_BLOCK_ROWS = 65_536


def draw_rows(views: dict[str, TableView], config: DLRMConfig, seed: int) -> None:
    """Set every local row to its start, and its momentum to zero.

    Rows are drawn by blocks of 65,536, each from its own stream of (seed, table, block): the same rows whatever the
    sharding.
    """
    with torch.no_grad():
        for table in config.tables:
            view = views.get(table.name)
            if view is None:
                continue
            for moment in view.optimizer.values():
                moment.zero_()
            num_rows = view.weight.shape[0]
            first_block = view.first_row // _BLOCK_ROWS
            for block in range(first_block, -(-(view.first_row + num_rows) // _BLOCK_ROWS)):
                start = block * _BLOCK_ROWS
                rng = torch.Generator().manual_seed(derive_seed(seed, "rows", table.name, block))
                rows = torch.empty(min(_BLOCK_ROWS, table.num_embeddings - start), table.embedding_dim)
                rows.uniform_(-table.bound, table.bound, generator=rng)
                low, high = max(start, view.first_row), min(start + rows.shape[0], view.first_row + num_rows)
                view.weight[low - view.first_row : high - view.first_row] = rows[low - start : high - start].to(
                    view.weight
                )
