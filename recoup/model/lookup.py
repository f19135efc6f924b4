"""Embedding look-ups on unique rows: every list once a dedup group, tables shared between groups included.

Legend: B samples, U unique rows of a group, N IDs of a buffer, F features, D embedding dim.

How: a table's lists, from whatever features and groups, are laid one after the other as the bags of one feature, so a
table sees one stream of bags: U bags of a history, B of the candidate item. Tables with equal streams share an
EmbeddingBagCollection of that stride. A sequence is a stream of bags of one ID each: its rows come back bit-equal to
the table (times the ID's weight, if it has one), one a position of the buffer that a row reads, so windows that share
the buffer share the look-up. TorchRec shards, and FBGEMM's fused bag kernels do the rest; nothing is expanded before or
inside the look-up. Lists whose windows overlap enough (`recoup.model.pooling`) are fed as bags of one ID too, and
summed window by window: the same bits.
Measured (1 core, FBGEMM CPU 1.8, 49,152 IDs of dim 64 in 12 tables, forward, backward and update): bags 7.9 ms, the
un-pooled kernel behind EmbeddingCollection 116 ms; hence no EmbeddingCollection here.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor
from typing_extensions import override

from recoup.jagged import InverseKeyedJaggedTensor, JaggedRows, drop_unused, pack_rows
from recoup.model.config import EmbeddingTable
from recoup.model.fused import FusedTable, OwnTables
from recoup.model.own_lookup import own_lookup
from recoup.model.pooling import pool_rows, windows_pay
from recoup.schema import DedupGroup

_PREFIX = "table_"
_POOLING = {"sum": PoolingType.SUM, "mean": PoolingType.MEAN}


@dataclass(frozen=True, slots=True)
class EmbeddedRows:
    """Rows of a sequence feature: position n of the feature's buffer has the vector `values[n]`."""

    values: Tensor
    """float [N, D]: the table's row of the position's ID, times the ID's weight if it has one."""
    start: Tensor
    """int64 [U]."""
    length: Tensor
    """int64 [U]."""


@dataclass(frozen=True, slots=True)
class LookupOutput:
    """What a look-up found, on unique rows."""

    pooled: dict[str, Tensor]
    """Group -> float [U, F, D], features in the order of `Lookup.pooled_features[group]`; U = B for the group ""."""
    rows: dict[str, EmbeddedRows]
    """Sequence feature -> its rows, un-pooled."""


@dataclass(frozen=True, slots=True)
class _Stream:
    name: str
    tables: tuple[EmbeddingTable, ...]
    weighted: bool
    """True: IDs carry weights; a feature without any has ones."""

    @property
    def features(self) -> tuple[str, ...]:
        """All features, by table."""
        return tuple(feature for table in self.tables for feature in table.features)


class Lookup(nn.Module):
    """Look up each unique row once; the caller expands."""

    def __init__(
        self,
        tables: Sequence[EmbeddingTable],
        sequences: Collection[str],
        groups: Sequence[DedupGroup],
        *,
        weighted: Collection[str] = (),
        device: torch.device | None = None,
    ) -> None:
        """Plan the streams and make the collections; rows are left to the caller to fill.

        Args:
            tables: tables and the features that use them.
            sequences: features whose rows are wanted un-pooled.
            groups: the schema's dedup groups.
            weighted: features whose IDs carry weights: a row counts as often as its weight says.
            device: of the tables; "meta" when DistributedModelParallel will place them (the default).
        """
        super().__init__()
        self._sequences = frozenset(sequences)
        group_of = {feature: group.name for group in groups for feature in group.features}
        looked_up = [feature for table in tables for feature in table.features]
        self.pooled_features: dict[str, tuple[str, ...]] = {}
        for group in groups:
            pooled = tuple(f for f in group.features if f in looked_up and f not in self._sequences)
            if pooled:
                self.pooled_features[group.name] = pooled
        streams: dict[tuple[str, ...], list[EmbeddingTable]] = {}
        for table in tables:
            signature = (f"sequence {f}" if f in self._sequences else f"rows of {group_of[f]}" for f in table.features)
            kind = "weighted" if set(table.features) & set(weighted) else ""
            streams.setdefault((kind, *signature), []).append(table)
        order = {feature: i for i, feature in enumerate(f for group in groups for f in group.features)}
        for same in streams.values():
            same.sort(key=lambda table: order[table.features[0]])
        self._streams = [
            _Stream(f"stream_{i}", tuple(same), signature[0] == "weighted")
            for i, (signature, same) in enumerate(streams.items())
        ]
        self._whole = {  # groups whose vectors are one stream's output as it is
            stream.name: group
            for stream in self._streams
            for group, features in self.pooled_features.items()
            if stream.features == features and all(len(table.features) == 1 for table in stream.tables)
        }
        self._own: dict[str, OwnTables | None] = {}
        where = torch.device("meta") if device is None else device
        self.collections = nn.ModuleDict({stream.name: _collection(stream, where) for stream in self._streams})

    @override
    def forward(self, sparse: InverseKeyedJaggedTensor) -> LookupOutput:
        """Return the rows of all features of a batch, deduplicated or plain alike.

        Every feature of the tables must be in the batch with IDs inside its table (`recoup.model.checks`).
        Cost: one copy of the IDs; all collections are asked before the first answer is awaited.
        """
        waiting: list[tuple[_Stream, bool, Any]] = []
        positions: dict[str, JaggedRows] = {}  # features looked up by position of their buffers
        for stream in self._streams:
            tables = self._own_tables(stream)
            windowed = tables is None and self._is_windowed(stream, sparse)
            for feature in stream.features:
                if windowed or feature in self._sequences:
                    positions[feature] = drop_unused(sparse.rows[feature])
            if tables is None:
                answer = self.collections[stream.name](_bags(stream, sparse, positions))
            else:
                answer = _read(stream, tables, sparse, positions)
            waiting.append((stream, windowed, answer))
        found: dict[str, Tensor] = {}
        pooled: dict[str, Tensor] = {}
        for stream, windowed, output in waiting:
            answer = output.wait() if hasattr(output, "wait") else output
            values = answer.values() if isinstance(answer, KeyedTensor) else answer
            group = self._whole.get(stream.name)
            if group is None:
                found |= _split(stream, values, sparse, positions, windowed=windowed)
                continue
            if windowed:
                means = [table.pooling == "mean" for table in stream.tables]
                values = pool_rows(values, [positions[f] for f in stream.features], means=means)
            pooled[group] = values.view(-1, len(stream.tables), stream.tables[0].embedding_dim)
        for group, features in self.pooled_features.items():
            if group not in pooled:
                pooled[group] = torch.stack([found[feature] for feature in features], dim=1)
        rows = {
            name: EmbeddedRows(found[name], positions[name].start, positions[name].length)
            for name in sorted(self._sequences)
        }
        return LookupOutput(pooled, rows)

    def _own_tables(self, stream: _Stream) -> dict[str, FusedTable] | None:
        """Return the stream's tables if this process may read them itself; weights of IDs are left to FBGEMM."""
        collection = self.collections[stream.name]
        known = self._own.get(stream.name)
        if known is None or not known.are_of(collection):
            known = self._own[stream.name] = None if stream.weighted else OwnTables.of(collection)
        return None if known is None else known.tables

    def _is_windowed(self, stream: _Stream, sparse: InverseKeyedJaggedTensor) -> bool:
        """Whether the stream's lists are looked up by position of their buffers; each batch and rank for itself."""
        if stream.weighted or self._sequences.intersection(stream.features):
            return False
        return windows_pay([sparse.rows[feature] for feature in stream.features])


def _bags(stream: _Stream, sparse: InverseKeyedJaggedTensor, positions: Mapping[str, JaggedRows]) -> KeyedJaggedTensor:
    values: list[Tensor] = []
    weights: list[Tensor] = []
    lengths: list[list[Tensor]] = []
    for table in stream.tables:
        lengths.append([])
        for feature in table.features:
            by_position = feature in positions
            rows = positions[feature] if by_position else pack_rows(sparse.rows[feature])
            values.append(rows.values)
            lengths[-1].append(torch.ones_like(rows.values) if by_position else rows.length)
            if stream.weighted:
                ones = torch.ones_like(rows.values, dtype=torch.float32)
                weights.append(ones if rows.weights is None else rows.weights)
    counts = [sum(length.numel() for length in parts) for parts in lengths]
    stride = max(counts)
    padded = [  # tables whose buffers are shorter get empty bags
        part if n == stride else torch.nn.functional.pad(part, (0, stride - n))
        for n, part in zip(counts, map(torch.cat, lengths), strict=True)
    ]
    return KeyedJaggedTensor(
        keys=[module_name(table.name) for table in stream.tables],
        values=torch.cat(values),
        lengths=torch.cat(padded),
        weights=torch.cat(weights) if stream.weighted else None,
        stride=stride,
    )


def _read(
    stream: _Stream,
    tables: Mapping[str, FusedTable],
    sparse: InverseKeyedJaggedTensor,
    positions: Mapping[str, JaggedRows],
) -> Tensor:
    """Return what the collection would, [stride, T * D], read from this process's own tables."""
    bags = [
        _one_after_the_other([_one_each(positions[f]) if f in positions else sparse.rows[f] for f in table.features])
        for table in stream.tables
    ]
    names = [table.name for table in stream.tables]
    for name, rows in zip(names, bags, strict=True):
        for watcher in tables[module_name(name)].watchers:
            watcher.see(name, pack_rows(rows).values)
    means = [table.pooling == "mean" for table in stream.tables]
    chosen = [tables[module_name(name)] for name in names]
    output = own_lookup(chosen, bags, means, names)
    for cutter in {id(cutter): cutter for table in chosen for cutter in table.cutters}.values():
        cut = cutter(chosen[0].lookup, (), output)
        output = output if cut is None else cut
    return output


def _one_each(rows: JaggedRows) -> JaggedRows:
    """Return a bag for every position of the buffer."""
    return JaggedRows(
        values=rows.values,
        start=torch.arange(rows.values.numel(), dtype=torch.int64),
        length=torch.ones_like(rows.values),
    )


def _one_after_the_other(features: Sequence[JaggedRows]) -> JaggedRows:
    """Return the rows of all features as those of one; a table of one feature costs nothing."""
    if len(features) == 1:
        return features[0]
    shifts = [0, *accumulate(rows.values.numel() for rows in features)]
    return JaggedRows(
        values=torch.cat([rows.values for rows in features]),
        start=torch.cat([rows.start + shift for rows, shift in zip(features, shifts, strict=False)]),
        length=torch.cat([rows.length for rows in features]),
    )


def _split(
    stream: _Stream,
    found: Tensor,
    sparse: InverseKeyedJaggedTensor,
    positions: Mapping[str, JaggedRows],
    *,
    windowed: bool,
) -> dict[str, Tensor]:
    result: dict[str, Tensor] = {}
    columns = torch.split(found, [table.embedding_dim for table in stream.tables], dim=1)
    for table, values in zip(stream.tables, columns, strict=True):
        first = 0
        for feature in table.features:
            rows = positions.get(feature, sparse.rows[feature])
            count = rows.values.numel() if feature in positions else rows.num_rows
            part = values.narrow(0, first, count)
            result[feature] = pool_rows(part, [rows], means=[table.pooling == "mean"]) if windowed else part
            first += count
    return result


def module_name(table: str) -> str:
    """Return the name that a table has inside TorchRec: a table may be called `items`, a torch module may not."""
    return f"{_PREFIX}{table}"


def table_name(module: str) -> str:
    """Return the table whose name inside TorchRec is `module`."""
    return module.removeprefix(_PREFIX)


def _collection(stream: _Stream, device: torch.device) -> EmbeddingBagCollection:
    configs = [
        EmbeddingBagConfig(
            name=module_name(table.name),
            num_embeddings=table.num_embeddings,
            embedding_dim=table.embedding_dim,
            feature_names=[module_name(table.name)],
            pooling=_POOLING[table.pooling],
            init_fn=_leave_rows,
        )
        for table in stream.tables
    ]
    return EmbeddingBagCollection(tables=configs, is_weighted=stream.weighted, device=device)


def _leave_rows(weight: Tensor) -> None:
    """Leave the rows: the trainer fills them by seed, table and row, so that sharding does not show."""
    del weight
