"""A TorchRec collection of one's own, fed with unique rows: the same outputs, each row looked up once.

Works on an EmbeddingBagCollection or an EmbeddingCollection as it is, sharded or not, tables shared between features
and groups included: the collection sees one KJT whose stride is the largest number of unique rows of a group, rows of
smaller groups padded with empty lists (no look-up). Its outputs are cut to each group's rows and expanded to samples.
Law: wrap(c)(dedup(x)) equals c(x), bit for bit, sequences included.
A sequence may pass an encoder of one's own on its unique rows; what it gives is expanded instead of the sequence.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor
from typing_extensions import override

from recoup.jagged import InverseKeyedJaggedTensor, dedup, expand_rows, offsets_of, pack_rows
from recoup.model.checks import check_ids
from recoup.model.errors import ModelError
from recoup.model.lint import check_deduplicated
from recoup.schema import DedupGroup

Answer: TypeAlias = KeyedTensor | dict[str, JaggedTensor | Tensor]


class Deduplicated(nn.Module):
    """A collection that takes IKJTs (or KJTs, which it deduplicates first) and answers for samples."""

    def __init__(
        self,
        collection: nn.Module,
        groups: Sequence[DedupGroup],
        sizes: Mapping[str, int | None],
        encoders: nn.ModuleDict,
    ) -> None:
        """Keep the modules: their parameters stay where they are.

        Args:
            collection: of TorchRec, sharded or not.
            groups: features that are deduplicated together.
            sizes: features of the collection in its order, each with its table's rows; None = not known.
            encoders: `of_<sequence feature>`, from the JaggedTensor of its unique rows to a tensor [U, ...].
        """
        super().__init__()
        self.collection = collection
        self.encoders = encoders
        self._groups = tuple(groups)
        self._keys = tuple(sizes)
        self._sizes = {key: size for key, size in sizes.items() if size is not None}

    @override
    def forward(self, batch: KeyedJaggedTensor | InverseKeyedJaggedTensor) -> Answer:
        """Return what the collection returns on the plain batch; for a feature with an encoder a tensor [B, ...].

        Raises:
            ModelError: a feature of the collection is not in the batch, or an ID is outside its table.
        """
        sparse = dedup(batch, self._groups) if isinstance(batch, KeyedJaggedTensor) else batch
        for key in self._keys:
            if key not in sparse.rows:
                raise ModelError(f"expected feature {key!r} in the batch, got {list(sparse.keys)}")
        check_ids(sparse, self._sizes)
        output = self.collection(self._padded(sparse))
        output = output.wait() if hasattr(output, "wait") else output
        return self._pooled(output, sparse) if isinstance(output, KeyedTensor) else self._sequences(output, sparse)

    def _padded(self, sparse: InverseKeyedJaggedTensor) -> KeyedJaggedTensor:
        packed = {key: pack_rows(sparse.rows[key]) for key in self._keys}
        # At least one row of empty lists: TorchRec itself cannot split a batch of none (case J01).
        stride = max(1, *(rows.num_rows for rows in packed.values()))
        lengths = [torch.nn.functional.pad(rows.length, (0, stride - rows.num_rows)) for rows in packed.values()]
        weights: Tensor | None = None
        if any(rows.weights is not None for rows in packed.values()):
            weights = torch.cat(
                [
                    torch.ones_like(r.values, dtype=torch.float32) if r.weights is None else r.weights
                    for r in packed.values()
                ]
            )
        return KeyedJaggedTensor(
            keys=list(self._keys),
            values=torch.cat([rows.values for rows in packed.values()]),
            lengths=torch.cat(lengths),
            weights=weights,
            stride=stride,
        )

    def _pooled(self, output: KeyedTensor, sparse: InverseKeyedJaggedTensor) -> KeyedTensor:
        parts = dict(zip(output.keys(), torch.split(output.values(), output.length_per_key(), dim=1), strict=True))
        expanded = []
        for name, rows in parts.items():
            key = name.split("@")[0]  # TorchRec calls a feature of two tables `feature@table`
            group = sparse.group_of(key).name
            own = rows[: sparse.num_rows(group)]
            inverse = sparse.inverse.get(group)
            expanded.append(own if inverse is None else expand_rows(own.contiguous(), inverse))
        return KeyedTensor(list(parts), output.length_per_key(), torch.cat(expanded, dim=1))

    def _sequences(
        self, output: Mapping[str, JaggedTensor], sparse: InverseKeyedJaggedTensor
    ) -> dict[str, JaggedTensor | Tensor]:
        result: dict[str, JaggedTensor | Tensor] = {}
        for key in self._keys:
            inverse = sparse.inverse.get(sparse.group_of(key).name)
            length = sparse.rows[key].length
            values = output[key].values()
            if f"of_{key}" in self.encoders:
                encoded: Tensor = self.encoders[f"of_{key}"](JaggedTensor(values=values, lengths=length))
                result[key] = encoded if inverse is None else expand_rows(encoded.contiguous(), inverse)
                continue
            if inverse is not None:
                index = _positions(length, inverse)
                values, length = expand_rows(values, index), length[inverse]
            result[key] = JaggedTensor(values=values, lengths=length)
        return result


def wrap(
    collection: nn.Module,
    groups: Sequence[DedupGroup],
    keys: Sequence[str] | None = None,
    *,
    encoders: Mapping[str, nn.Module] | None = None,
    allow: Collection[str] = (),
) -> Deduplicated:
    """Return a TorchRec collection that looks up unique rows and answers for samples.

    Args:
        collection: an EmbeddingBagCollection or EmbeddingCollection; or a sharded one, with `keys`.
        groups: features that are deduplicated together.
        keys: features of the collection, in its order; needed if it is sharded already.
        encoders: modules of your own for sequence features, run on unique rows: each takes the JaggedTensor of a
            feature's unique rows and returns a tensor [U, ...], which is expanded to [B, ...].
        allow: paths of random or batch-dependent layers that may stay in an encoder (`of_history.dropout`).
    Raises:
        ModelError: it is neither, and `keys` is not given; an encoder holds Dropout, BatchNorm or the like; an encoder
            of no sequence feature.
    """
    modules = nn.ModuleDict({f"of_{feature}": encoder for feature, encoder in (encoders or {}).items()})
    check_deduplicated(collection, allow=allow)
    check_deduplicated(modules, allow=allow)
    sizes: dict[str, int | None] = dict(_sizes(collection)) if keys is None else dict.fromkeys(keys)
    for feature in encoders or {}:
        if feature not in sizes or isinstance(collection, EmbeddingBagCollection):
            raise ModelError(
                f"expected encoders of features of an EmbeddingCollection, got one of {feature!r} for a "
                f"{type(collection).__name__} of {list(sizes)}: bags are pooled already"
            )
    return Deduplicated(collection, groups, sizes, modules)


def _sizes(collection: nn.Module) -> dict[str, int]:
    """Return the features of a collection in its order, each with the rows of its (smallest) table."""
    if isinstance(collection, EmbeddingBagCollection):
        configs = collection.embedding_bag_configs()
    elif isinstance(collection, EmbeddingCollection):
        configs = collection.embedding_configs()
    else:
        raise ModelError(
            f"expected an EmbeddingBagCollection or EmbeddingCollection, got {type(collection).__name__}: give keys"
        )
    sizes: dict[str, int] = {}
    for config in configs:
        for feature in config.feature_names:
            sizes[feature] = min(config.num_embeddings, sizes.get(feature, config.num_embeddings))
    return sizes


def _positions(length: Tensor, inverse: Tensor) -> Tensor:
    """Return where each expanded ID stands among the unique rows' IDs, int64."""
    offsets = offsets_of(length)
    sizes = length[inverse]
    ends = offsets_of(sizes)
    total = int(ends[-1])
    shift = torch.repeat_interleave(offsets[:-1][inverse] - ends[:-1], sizes, output_size=total)
    return torch.arange(total, device=length.device) + shift
