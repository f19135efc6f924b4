"""Which shard holds which rows: whole tables, ranges of rows, or rows by hash. A pure function of table and row."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from recoup.checkpoint.errors import CheckpointError


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardPlan:
    """Assign every (table, row) to one of `num_shards` shards; make it by `by_table`, `by_range` or `by_hash`."""

    kind: Literal["table", "range", "hash"]
    num_rows: dict[str, int]
    """Rows by table."""
    num_shards: int
    owners: dict[str, int] = field(default_factory=dict)
    """Shard by table, for the kind "table"."""

    def __post_init__(self) -> None:
        """Check the counts and owners."""
        if self.num_shards < 1:
            raise CheckpointError(f"a plan needs at least one shard, got {self.num_shards}")
        for table, owner in self.owners.items():
            if not 0 <= owner < self.num_shards:
                raise CheckpointError(f"table {table!r}: expected a shard in [0, {self.num_shards}), got {owner}")
        if self.kind == "table" and set(self.owners) != set(self.num_rows):
            raise CheckpointError(f"expected an owner of each table {sorted(self.num_rows)}, got {sorted(self.owners)}")

    @staticmethod
    def by_table(num_rows: Mapping[str, int], num_shards: int, owners: Mapping[str, int] | None = None) -> "ShardPlan":
        """Give whole tables to shards: as `owners` says, or the largest first to the emptiest shard."""
        if owners is None:
            load = [0] * max(1, num_shards)
            greedy: dict[str, int] = {}
            for table in sorted(num_rows, key=lambda name: (-num_rows[name], name)):
                greedy[table] = load.index(min(load))
                load[greedy[table]] += num_rows[table]
            owners = greedy
        return ShardPlan(kind="table", num_rows=dict(num_rows), num_shards=num_shards, owners=dict(owners))

    @staticmethod
    def by_range(num_rows: Mapping[str, int], num_shards: int) -> "ShardPlan":
        """Cut every table into `num_shards` ranges of nearly equal length."""
        return ShardPlan(kind="range", num_rows=dict(num_rows), num_shards=num_shards)

    @staticmethod
    def by_hash(num_rows: Mapping[str, int], num_shards: int) -> "ShardPlan":
        """Spread every table's rows by a hash of the row: hot rows do not gather in one shard."""
        return ShardPlan(kind="hash", num_rows=dict(num_rows), num_shards=num_shards)

    def shard_of(self, table: str, rows: Tensor) -> Tensor:
        """Return the shard of each row, int64 [n]."""
        total = self._total(table)
        if self.kind == "table":
            return torch.full_like(rows, self.owners[table])
        if self.kind == "range":
            return rows * self.num_shards // max(1, total)
        return _hash_shard(rows, self.num_shards)

    def rows_of(self, table: str, shard: int) -> Tensor:
        """Return the rows of a table in a shard, int64, ascending; do not write to it, it may be shared."""
        total = self._total(table)
        if not 0 <= shard < self.num_shards:
            raise CheckpointError(f"expected a shard in [0, {self.num_shards}), got {shard}")
        if self.kind == "table":
            return torch.arange(total if self.owners[table] == shard else 0)
        if self.kind == "range":
            return torch.arange(*self._range(table, shard))
        return _hash_rows(total, self.num_shards)[shard]

    def may_hold(self, table: str, shard: int, first: int, last: int) -> bool:
        """Whether a shard may hold rows in [first, last) of a table; a hashed shard may hold any. Cost: O(1)."""
        if table not in self.num_rows or first >= last:
            return False
        if self.kind == "table":
            return self.owners[table] == shard
        if self.kind == "hash":
            return True
        begin, end = self._range(table, shard)
        return begin < last and first < end

    def num_rows_of(self, shard: int) -> int:
        """Return the rows of all tables in a shard."""
        return sum(self.rows_of(table, shard).numel() for table in self.num_rows)

    def _range(self, table: str, shard: int) -> tuple[int, int]:
        total = self.num_rows[table]
        return -(-total * shard // self.num_shards), -(-total * (shard + 1) // self.num_shards)

    def _total(self, table: str) -> int:
        if table not in self.num_rows:
            raise CheckpointError(f"expected a table of the plan {sorted(self.num_rows)}, got {table!r}")
        return self.num_rows[table]


def _hash_shard(rows: Tensor, num_shards: int) -> Tensor:
    mixed = rows.numpy() * 0x9E3779B1 + 0x7F4A7C15  # Knuth's multiplicative hash; the high bits are the good ones
    return torch.from_numpy(((mixed >> 16) & 0xFFFF_FFFF) % num_shards)


@functools.lru_cache(maxsize=64)
def _hash_rows(total: int, num_shards: int) -> tuple[Tensor, ...]:
    """Return the rows of every shard of a table; kept, 8 bytes a row: a save must not hash every row again."""
    owner = _hash_shard(torch.arange(total), num_shards)
    return tuple((owner == shard).nonzero().flatten() for shard in range(num_shards))
