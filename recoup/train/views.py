"""The local rows of every table as live views: weights and row-wise Adagrad's momentum, written in place.

What is set through a view is what the next step trains; what a step changes shows in the view. The names do not
depend on how tables are sharded.
"""

from typing import Any

import torch
from torch import Tensor
from torchrec.distributed.model_parallel import DistributedModelParallel

from recoup.checkpoint import TableView
from recoup.core import derive_seed
from recoup.model import DLRMConfig
from recoup.model.lookup import table_name

_BLOCK_ROWS = 65_536


def table_views(model: DistributedModelParallel) -> dict[str, TableView]:
    """Return a view of each table this rank holds rows of, by table name."""
    moments = _moments(model)
    views: dict[str, TableView] = {}
    for path, value in model.state_dict().items():
        if not hasattr(value, "local_shards"):
            continue
        name = table_name(path.split(".")[-2])
        for part in value.local_shards():
            first_row, _ = part.metadata.shard_offsets
            views[name] = TableView(
                name=name,
                weight=part.tensor.detach(),
                optimizer=moments[name],
                first_row=int(first_row),
                num_rows_total=int(value.metadata().size[0]),
            )
    return views


def _moments(model: DistributedModelParallel) -> dict[str, dict[str, Tensor]]:
    found: dict[str, dict[str, Tensor]] = {}
    state: Any = model.fused_optimizer.state_dict()["state"]
    for parts in state.values():
        for key, value in parts.items():
            table, _, moment = key.rpartition(".")
            tensors = [part.tensor for part in value.local_shards()] if hasattr(value, "local_shards") else [value]
            if tensors:
                found.setdefault(table_name(table), {})[moment] = tensors[0].detach()
    return found


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
