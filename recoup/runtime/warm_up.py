"""What a spare does before it is needed: one step of the run's model on one real batch, in a world of its own.

So imports, compiled kernels and the first-call set-up of every library are behind it when it takes a rank's place. Its
tables are cut to a thousand rows, so that a spare costs no memory that matters.
"""

from dataclasses import replace

import torch.distributed as dist

from recoup.jagged import Batch
from recoup.reader import SessionReader
from recoup.table import open_table
from recoup.train import RunConfig, Trainer
from recoup.train.regroup import forget_first_broadcast
from recoup.train.run_config import batch_schema, training_reader

_ROWS = 1000


def warm_up(config: RunConfig) -> None:
    """Build a small copy of the run's model and train one batch; leaves no process group behind."""
    forget_first_broadcast()
    table = open_table(config.table)
    reader = training_reader(config, table.schema)
    schema = batch_schema(table.schema, reader)
    tables = tuple(replace(one, num_embeddings=min(one.num_embeddings, _ROWS)) for one in config.model.tables)
    trainer = Trainer(replace(config.model, tables=tables), config.train, schema)
    one_batch = replace(reader, num_workers=0, shuffle="chronological", max_samples_per_session_per_batch=0)
    for batch in SessionReader(table, one_batch):
        trainer.step(_first_row(batch))
        break
    trainer.table_views()
    dist.destroy_process_group()


def _first_row(batch: Batch) -> Batch:
    rows = {name: replace(rows, values=rows.values * 0) for name, rows in batch.sparse.rows.items()}
    return replace(batch, sparse=replace(batch.sparse, rows=rows))
