"""What a run trains on, prepared once and shared by every strategy: batches, their row accesses, sample positions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from recoup.emulate.learner import Learner
from recoup.jagged import Batch
from recoup.recovery import RowAccesses


class Shards(Protocol):
    """Who holds which rows (`recoup.checkpoint.ShardPlan`)."""

    @property
    def num_shards(self) -> int:
        """N_emb."""
        ...

    def rows_of(self, table: str, shard: int) -> Tensor:
        """Return the rows of a table in a shard, int64."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """A sequence of steps, and what each accesses."""

    batches: Sequence[Batch]
    ids: Sequence[Mapping[str, Tensor]]
    """Row numbers of each step, by table, repeats included."""
    positions: Sequence[int]
    """Samples trained before step s, for s up to and including the number of steps."""
    num_rows: Mapping[str, int]
    """Rows by table."""
    rows_of_shard: Sequence[Mapping[str, Tensor]]
    """Rows by shard and table."""
    total_accesses: int
    shares: tuple[float, ...]
    """Each shard's share of all accesses."""

    @property
    def num_steps(self) -> int:
        """Batches in all."""
        return len(self.batches)

    @property
    def num_shards(self) -> int:
        """N_emb."""
        return len(self.rows_of_shard)


def prepare_course(batches: Sequence[Batch], learner: Learner, shards: Shards) -> Course:
    """Return the course of `batches`. Cost: one pass over all IDs."""
    num_rows = {table: view.weight.shape[0] for table, view in learner.table_views().items()}
    ids = [learner.ids_by_table(batch) for batch in batches]
    rows_of_shard = [{table: shards.rows_of(table, k) for table in num_rows} for k in range(shards.num_shards)]
    accesses = RowAccesses(num_rows)
    for step in ids:
        for table, rows in step.items():
            accesses.observe(table, rows)
    counts = [accesses.lost(rows) for rows in rows_of_shard]
    return Course(
        batches=batches,
        ids=ids,
        positions=np.cumsum([0, *(batch.num_samples for batch in batches)]).tolist(),
        num_rows=num_rows,
        rows_of_shard=rows_of_shard,
        total_accesses=accesses.total,
        shares=tuple(count / accesses.total for count in counts),
    )
