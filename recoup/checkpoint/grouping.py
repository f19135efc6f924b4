"""Rows grouped by shard in one pass: a save of many rows into many shards must not look at every row once a shard."""

import numpy as np
import torch
from torch import Tensor


def rows_by_shard(rows: Tensor, owner: Tensor, num_shards: int) -> tuple[Tensor, ...]:
    """Return for every shard its rows, in the order they have in `rows`.

    Args:
        rows: int64 [n].
        owner: int64 [n], shard of each row.
        num_shards: number of shards.
    Cost: O(n + num_shards): numpy sorts 16-bit keys by radix.
    """
    keys = owner.numpy()
    narrow = keys.astype(np.uint16) if num_shards <= 1 << 16 else keys
    grouped = rows.numpy()[np.argsort(narrow, kind="stable")]
    return torch.split(torch.from_numpy(grouped), np.bincount(keys, minlength=num_shards).tolist())
