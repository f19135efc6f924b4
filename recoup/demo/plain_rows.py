"""The baseline reader: ordinary row-per-sample Parquet to KJT batches, vectorised, as a careful engineer writes it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor


@dataclass(frozen=True, slots=True)
class PlainRows:
    """One batch of B samples."""

    dense: torch.Tensor
    """float32 [B, Fd]."""
    labels: torch.Tensor
    """float32 [B]."""
    sparse: KeyedJaggedTensor


def read_plain_rows(
    path: Path, features: Sequence[str], dense: Sequence[str], label: str, batch_size: int
) -> Iterator[PlainRows]:
    """Yield the file's samples in file order; the last batch may be smaller."""
    with pq.ParquetFile(path, pre_buffer=False) as file:
        for batch in file.iter_batches(batch_size=batch_size, columns=[*features, *dense, label]):
            yield _to_batch(batch, features, dense, label)


def _to_batch(batch: pa.RecordBatch, features: Sequence[str], dense: Sequence[str], label: str) -> PlainRows:
    values: list[np.ndarray[Any, Any]] = []
    lengths: list[np.ndarray[Any, Any]] = []
    for feature in features:
        column = batch.column(feature)
        values.append(column.flatten().to_numpy(zero_copy_only=False))
        lengths.append(np.diff(column.offsets.to_numpy(zero_copy_only=False)).astype(np.int64))
    kjt = KeyedJaggedTensor(
        keys=list(features),
        values=torch.from_numpy(np.concatenate(values)),
        lengths=torch.from_numpy(np.concatenate(lengths)),
        stride=batch.num_rows,
    )
    columns = [batch.column(name).to_numpy(zero_copy_only=False) for name in dense]
    return PlainRows(
        dense=torch.from_numpy(np.stack(columns, axis=1)),
        labels=torch.from_numpy(batch.column(label).to_numpy(zero_copy_only=False).copy()),
        sparse=kjt,
    )
