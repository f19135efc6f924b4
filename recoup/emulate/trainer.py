"""The real learner of an emulation: a DLRM on TorchRec, one table a sparse feature."""

from recoup.emulate.config import EmulateConfig
from recoup.emulate.samples import Dataset
from recoup.model import DLRMConfig, EmbeddingTable
from recoup.train import TrainConfig, Trainer


def make_trainer(config: EmulateConfig, dataset: Dataset, seed: int) -> Trainer:
    """Return a trainer for `dataset`, initialised by `seed`."""
    chosen = config.learner
    tables = tuple(
        EmbeddingTable(
            name=name,
            num_embeddings=rows,
            embedding_dim=chosen.embedding_dim,
            features=(name,),
            init_range=chosen.init_range,
        )
        for name, rows in dataset.num_rows.items()
    )
    model = DLRMConfig(tables=tables, bottom_mlp=chosen.bottom, top_mlp=chosen.top, interaction="dot_concat")
    train = TrainConfig(seed=seed, table_lr=chosen.learning_rate, dense_lr=chosen.dense_learning_rate)
    return Trainer(model, train, dataset.schema)
