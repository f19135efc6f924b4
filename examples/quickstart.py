"""A log to a trained model on unique rows, in thirty lines; run it with `python examples/quickstart.py`."""

import tempfile
from pathlib import Path

from recoup.jagged import measured_factor
from recoup.log import SyntheticLog, open_log
from recoup.model import DLRMConfig, EmbeddingTable
from recoup.reader import Log1p, Modulo, ReaderConfig, SessionReader
from recoup.table import BuildConfig, build_table, open_table
from recoup.train import TrainConfig, Trainer

folder = Path(tempfile.mkdtemp())
log = open_log(SyntheticLog(num_samples=50_000))  # declared synthetic; see `recoup log list` for real formats
build_table(log, folder / "table", BuildConfig())
table = open_table(folder / "table")
print(f"{table.num_samples} samples in {table.num_bytes / 1e6:.1f} MB")

features = table.schema.sparse_names
transforms = (Modulo(features=features, size=20_000), Log1p(features=table.schema.dense_names))
reader = SessionReader(table, ReaderConfig(batch_size=2048, shuffle="full", transforms=transforms))
tables = tuple(EmbeddingTable(name=f, num_embeddings=20_000, embedding_dim=16, features=(f,)) for f in features)
trainer = Trainer(DLRMConfig(tables=tables), TrainConfig(dense_lr=1e-3), table.schema)
for batch in reader:
    result = trainer.step(batch)
    if result.step % 8 == 0:
        factors = {g.name: round(measured_factor(batch.sparse, g.name), 1) for g in batch.sparse.groups if g.name}
        print(f"step {result.step}: loss {result.loss:.4f}, samples a unique row {factors}")
