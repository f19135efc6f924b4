"""DLRM on unique rows: bottom MLP, tables, sequence encoders, dot interaction, top MLP.

Data in: a batch, deduplicated or plain. Data out: logits of its samples, in sample order. Every vector of a dedup
group is computed once a unique row (look-up, pooling, sequence encoder) and goes to its samples by one gather; target
attention projects a history once a position and reads it once a sample.
Guarantee: forward on a deduplicated batch equals forward on the plain one, within the rounding of equal sums.
Source: DLRM (arXiv 1906.00091); RecD (arXiv 2211.05239) on unique rows.

Legend: B samples, U unique rows, F vectors a sample, D embedding dim.
"""

import torch
from torch import Tensor, nn
from typing_extensions import override

from recoup.jagged import Batch, InverseKeyedJaggedTensor, expand_rows
from recoup.model.checks import with_missing
from recoup.model.config import AttentionEncoder, DLRMConfig, TargetEncoder
from recoup.model.interaction import DotInteraction
from recoup.model.lint import check_deduplicated
from recoup.model.lookup import Lookup, LookupOutput
from recoup.model.mlp import mlp, seed_parameters
from recoup.model.sequence import SequenceAttention
from recoup.model.target_attention import TargetAttention
from recoup.schema import DedupGroup, Schema


class DLRM(nn.Module):
    """A DLRM for batches of one schema; tables are made on device "meta" and get rows when they are sharded."""

    def __init__(
        self, config: DLRMConfig, schema: Schema, *, seed: int = 0, table_device: torch.device | None = None
    ) -> None:
        """Build the modules; dense parameters are drawn from `seed`, each from its own stream.

        Raises:
            ConfigError: a feature of the model is not in the schema.
        """
        super().__init__()
        config.check_schema(schema)
        self.config = config
        self.schema = schema
        dim = config.embedding_dim
        self._encoded = [s.feature for s in config.sequences if isinstance(s, AttentionEncoder)]
        self._targets = [s for s in config.sequences if isinstance(s, TargetEncoder)]
        self._groups = _model_groups(config, schema)
        self._dense_columns = _columns(config, schema)
        num_dense = len(config.dense_features(schema))
        num_vectors = len(config.features) + int(num_dense > 0)
        weighted = [feature.name for feature in schema.sparse if feature.weighted]
        histories = [sequence.feature for sequence in config.sequences]
        self.lookup = Lookup(config.tables, histories, self._groups, weighted=weighted, device=table_device)
        self.encoders = nn.ModuleDict({f"of_{s.feature}": _encoder(s, dim) for s in config.sequences})
        self.bottom = mlp((num_dense, *config.bottom_mlp, dim), last_relu=True) if num_dense else None
        check_deduplicated(self.encoders)
        concat = config.interaction == "dot_concat"
        self.interaction = DotInteraction(num_vectors, concat=concat, has_dense=num_dense > 0)
        self.top = mlp((self.interaction.width(dim), *config.top_mlp, 1), last_relu=False)
        seed_parameters(self, seed)

    @override
    def forward(self, batch: Batch) -> Tensor:
        """Return the logits, float32 [B]."""
        sparse = with_missing(batch.sparse, self.config.features, self.schema)
        dense_BD = None
        if self.bottom is not None:
            dense = batch.dense if self._dense_columns is None else batch.dense[:, self._dense_columns]
            dense_BD = self.bottom(dense)
        # Looked-up vectors have no reader but the interaction: where target attention reads them too, it has a copy.
        logits_B1: Tensor = self.top(self.interaction(dense_BD, self._vectors(sparse), spend=True))
        return logits_B1.squeeze(1)

    def _vectors(self, sparse: InverseKeyedJaggedTensor) -> list[tuple[Tensor, Tensor | None]]:
        """Return the vectors of every group on its unique rows, [U, F_g, D], and its inverse; then a sample's own."""
        found = self.lookup(sparse)
        vectors: list[tuple[Tensor, Tensor | None]] = []
        for group in self._groups:
            parts_UFD = [found.pooled[group.name]] if group.name in found.pooled else []
            encoded = [self.encoders[f"of_{f}"](found.rows[f]) for f in group.features if f in self._encoded]
            if encoded:
                parts_UFD.append(torch.stack(encoded, dim=1))
            if parts_UFD:
                vectors_UFD = torch.cat(parts_UFD, dim=1) if len(parts_UFD) > 1 else parts_UFD[0]
                vectors.append((vectors_UFD, sparse.inverse.get(group.name)))
        if self._targets:
            read = [self._read_history(target, found, sparse) for target in self._targets]
            vectors.append((torch.stack(read, dim=1), None))
        return vectors

    def _read_history(self, target: TargetEncoder, found: LookupOutput, sparse: InverseKeyedJaggedTensor) -> Tensor:
        """Return what every sample's candidate reads from its history, [B, D]."""
        group = sparse.group_of(target.candidate).name
        home = next(name for name, features in self.lookup.pooled_features.items() if target.candidate in features)
        column = self.lookup.pooled_features[home].index(target.candidate)
        candidate_BD = found.pooled[home][:, column]
        asking = sparse.inverse.get(group)
        if asking is not None:
            candidate_BD = expand_rows(candidate_BD, asking)
        history = sparse.inverse.get(sparse.group_of(target.feature).name)
        read_BD: Tensor = self.encoders[f"of_{target.feature}"](candidate_BD, found.rows[target.feature], history)
        return read_BD


def _encoder(config: AttentionEncoder | TargetEncoder, dim: int) -> nn.Module:
    return TargetAttention(config, dim) if isinstance(config, TargetEncoder) else SequenceAttention(config, dim)


def _model_groups(config: DLRMConfig, schema: Schema) -> tuple[DedupGroup, ...]:
    """Return the schema's dedup groups with the model's features only."""
    kept = [
        DedupGroup(name=group.name, features=tuple(f for f in group.features if f in config.features))
        for group in schema.groups
    ]
    return tuple(group for group in kept if group.features)


def _columns(config: DLRMConfig, schema: Schema) -> list[int] | None:
    """Return the columns of the model's dense features; None = all, in order."""
    columns = [schema.dense_names.index(name) for name in config.dense_features(schema)]
    return None if columns == list(range(len(schema.dense))) else columns
