"""What a model is: embedding tables, which features look them up, MLP sizes, interaction, sequence encoders."""

from dataclasses import dataclass
from typing import Literal

from recoup.core import ConfigError
from recoup.schema import Schema


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingTable:
    """One embedding table and the sparse features that look it up; features of several dedup groups may share one."""

    name: str
    num_embeddings: int
    """Rows: IDs are 0 .. num_embeddings - 1."""
    embedding_dim: int
    features: tuple[str, ...]
    pooling: Literal["sum", "mean"] = "sum"
    """How the rows of a list become one vector; features that a sequence encoder reads are not pooled."""
    init_range: float | None = None
    """Rows start uniform in +-init_range; left out: 1 / sqrt(num_embeddings), as DLRM does."""

    def __post_init__(self) -> None:
        """Check sizes and names."""
        if self.num_embeddings < 1 or self.embedding_dim < 1:
            raise ConfigError(
                f"table {self.name!r}: expected num_embeddings and embedding_dim >= 1, "
                f"got {self.num_embeddings} and {self.embedding_dim}"
            )
        if not self.name or "." in self.name:
            raise ConfigError(f"expected a table name without dots, got {self.name!r}")
        if not self.features or len(set(self.features)) < len(self.features):
            raise ConfigError(f"table {self.name!r}: expected distinct features, got {list(self.features)}")
        if self.init_range is not None and self.init_range < 0:
            raise ConfigError(f"table {self.name!r}: expected init_range >= 0, got {self.init_range}")

    @property
    def bound(self) -> float:
        """Rows start uniform in +-bound."""
        return self.num_embeddings**-0.5 if self.init_range is None else self.init_range


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionEncoder:
    """A history becomes one vector: one attention layer read at its last position, then a feed-forward layer.

    Keys and values are projected once a distinct position of the buffer, attention runs once a unique row.
    """

    kind: Literal["attention"] = "attention"
    feature: str
    num_heads: int = 2
    max_length: int = 100
    """Positions further than this from the end share one position bias."""
    hidden: int = 0
    """Width of the feed-forward layer; 0 = 2 * embedding_dim."""

    def __post_init__(self) -> None:
        """Check the sizes."""
        if self.num_heads < 1 or self.max_length < 1 or self.hidden < 0:
            raise ConfigError(
                f"sequence {self.feature!r}: expected num_heads and max_length >= 1 and hidden >= 0, "
                f"got {self.num_heads}, {self.max_length} and {self.hidden}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetEncoder:
    """A history becomes one vector a sample: the sample's candidate attends to it (DIN-like).

    Keys and values are projected once a distinct position of the buffer; a history is never expanded.
    """

    kind: Literal["target_attention"] = "target_attention"
    feature: str
    """The history."""
    candidate: str
    """Pooled feature that asks, of any dedup group; its table may be the history's."""
    num_heads: int = 1
    max_length: int = 100
    """Positions further than this from the end share one position bias."""

    def __post_init__(self) -> None:
        """Check the sizes."""
        if self.num_heads < 1 or self.max_length < 1:
            raise ConfigError(
                f"sequence {self.feature!r}: expected num_heads and max_length >= 1, "
                f"got {self.num_heads} and {self.max_length}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class DLRMConfig:
    """A DLRM (Naumov et al., arXiv 1906.00091): bottom MLP, embedding tables, dot interaction, top MLP.

    Differs: features of a dedup group are looked up on unique rows; histories may pass a sequence encoder instead of
    pooling; one table may serve several features, each of which is one vector of the interaction.
    """

    tables: tuple[EmbeddingTable, ...]
    bottom_mlp: tuple[int, ...] = (64,)
    """Hidden layers from the dense features on; a layer of the embedding dim follows. Unused without dense features."""
    top_mlp: tuple[int, ...] = (64,)
    """Hidden layers; one output (the logit) follows."""
    interaction: Literal["dot", "dot_concat"] = "dot"
    """`dot`: dense vector and all pair dots; `dot_concat`: every vector and all pair dots (helps small models)."""
    sequences: tuple[AttentionEncoder | TargetEncoder, ...] = ()
    """Encoders of histories; the other features are pooled."""
    dense: tuple[str, ...] | None = None
    """Dense features, in order; left out = all of the schema."""
    label: str = ""
    """Label to learn; "" = the schema's first."""

    def __post_init__(self) -> None:
        """Check that tables and features fit together."""
        names = [table.name for table in self.tables]
        encoded = [sequence.feature for sequence in self.sequences]
        for what, values in (("table", names), ("feature", list(self.features)), ("sequence feature", encoded)):
            repeated = sorted({value for value in values if values.count(value) > 1})
            if repeated:
                raise ConfigError(f"expected every {what} once, got {repeated[0]!r} {values.count(repeated[0])} times")
        if not self.tables:
            raise ConfigError("expected at least one table, got none")
        dims = sorted({table.embedding_dim for table in self.tables})
        if len(dims) > 1:
            raise ConfigError(f"expected one embedding_dim (the dot interaction needs it), got {dims}")
        for sequence in self.sequences:
            self._check_sequence(sequence)

    def _check_sequence(self, sequence: AttentionEncoder | TargetEncoder) -> None:
        where = f"sequence {sequence.feature!r}"
        if "." in sequence.feature:
            raise ConfigError(f"{where}: expected a feature name without dots")
        if sequence.feature not in self.features:
            raise ConfigError(f"{where}: expected a feature of {list(self.features)}")
        if self.embedding_dim % sequence.num_heads:
            raise ConfigError(
                f"{where}: expected num_heads to divide embedding_dim {self.embedding_dim}, got {sequence.num_heads}"
            )
        if isinstance(sequence, TargetEncoder):
            encoded = {other.feature for other in self.sequences}
            pooled = [feature for feature in self.features if feature not in encoded]
            if sequence.candidate not in pooled:
                raise ConfigError(f"{where}: expected a candidate of the pooled {pooled}, got {sequence.candidate!r}")

    @property
    def embedding_dim(self) -> int:
        """D, the same for every table."""
        return self.tables[0].embedding_dim

    @property
    def features(self) -> tuple[str, ...]:
        """Sparse features the model looks up, in table order."""
        return tuple(feature for table in self.tables for feature in table.features)

    @property
    def num_embeddings(self) -> dict[str, int]:
        """Table size by feature: what IDs are checked against."""
        return {feature: table.num_embeddings for table in self.tables for feature in table.features}

    def check_schema(self, schema: Schema) -> None:
        """Refuse a schema without one of the model's features, or without its label.

        Raises:
            ConfigError: names what is absent.
        """
        for kind, wanted, there in (
            ("sparse", self.features, schema.sparse_names),
            ("dense", self.dense or (), schema.dense_names),
            ("label", (self.label,) if self.label else (), schema.labels),
        ):
            for name in wanted:
                if name not in there:
                    raise ConfigError(f"model: expected {kind} names of {list(there)}, got {name!r}")

    def dense_features(self, schema: Schema) -> tuple[str, ...]:
        """Return the dense features the model takes, in order."""
        return schema.dense_names if self.dense is None else self.dense

    def label_index(self, schema: Schema) -> int:
        """Return the column of the label to learn."""
        return schema.labels.index(self.label) if self.label else 0
