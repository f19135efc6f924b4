"""The end of a table in time, where appended samples begin.

Law: an append changes no session of the table and doubles no sample. Samples up to the border (the time of the table's
last sample) are not appended: those that the table holds (same key, time and event id) are repeats, the others late;
both are counted. A session that goes on over the border goes on as a new one.
Features made from the log (histories, means) see the table's samples too: what came before the border is not lost.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from recoup.schema import Schema, sample_schema
from recoup.table.arrays import compute
from recoup.table.session_table import SessionTable


class Border:
    """Keep back what is not later than the table's last sample; state: the keys of what was kept back."""

    def __init__(self, table: SessionTable, *, earlier: bool) -> None:
        """Find the table's last sample. Cost: one pass over its time column.

        Args:
            table: to append to.
            earlier: whether the encoder needs the table's samples too.
        """
        self._table = table
        self._earlier = earlier
        column = table.schema.time
        lasts = [compute.max(batch.column(column)).as_py() for batch in table.iter_samples([column])]
        self.time = 1 + max((last for last in lasts if last is not None), default=-(2**62))
        """Appended samples are of this time (ms) or later."""
        self.num_bytes = table.expanded_bytes() if earlier else 0
        """About what the table's samples take in the spool."""
        self.num_early = 0
        self._early: list[pa.RecordBatch] = []

    def joined(self, samples: Iterable[pa.RecordBatch], schema: Schema) -> Iterator[pa.RecordBatch]:
        """Yield the table's samples, if they are needed, and then those of `samples` that are appended."""
        if self._earlier:
            target = sample_schema(schema)
            for batch in self._table.iter_samples():
                yield batch.select(target.names).cast(target)
        identity = [name for name in (schema.key, schema.time, schema.event_id) if name]
        for batch in samples:
            late = batch.column(schema.time).to_numpy(zero_copy_only=False) < self.time
            if not late.any():
                yield batch
                continue
            self.num_early += int(np.count_nonzero(late))
            if schema.event_id:
                self._early.append(batch.filter(pa.array(late)).select(identity))
            yield batch.filter(pa.array(~late))

    def repeated(self) -> int:
        """Return how many of the samples kept back the table holds. Cost: a pass over its keys, times, event ids.

        Memory: the keys, times and event ids of the samples kept back. Without event ids nothing counts as repeated.
        """
        if not self._early:
            return 0
        early = pa.Table.from_batches(self._early)
        names = early.column_names
        schema = self._table.schema
        first = compute.min(early.column(schema.time)).as_py()
        held = [early.slice(0, 0)]
        for batch in self._table.iter_samples(names):
            mine = batch.select(names).filter(compute.greater_equal(batch.column(schema.time), first))
            held.append(pa.Table.from_batches([mine]).cast(early.schema))
        return int(early.join(pa.concat_tables(held), keys=names, join_type="left semi").num_rows)
