"""The local rows of every table as live views: weights and row-wise Adagrad's momentum, written in place.

What is set through a view is what the next step trains; what a step changes shows in the view. The names do not
depend on how tables are sharded.
"""

from typing import Any

from torch import Tensor
from torchrec.distributed.model_parallel import DistributedModelParallel

from recoup.checkpoint import TableView
from recoup.model.lookup import table_name


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
