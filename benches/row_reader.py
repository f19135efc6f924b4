"""The peer of `recoup.reader`: ordinary row-per-sample Parquet to TorchRec KJT batches by vectorised pyarrow and NumPy.

As strong as a peer would write it: zstd Parquet in row groups of 32,768 rows without dictionary on ID lists, columns
projected, list columns as flattened NumPy views (no object arrays, no Python loop over samples), transforms on whole
columns, one KJT a batch. `kernels=True` hands it Recoup's own transform kernels, which no peer has: what is left of the
ratio then is deduplication alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from benches.reader_work import Work
from recoup.reader import gather
from recoup.reader.transforms import dense_kernels, id_kernels

ROW_GROUP_ROWS = 32_768


@dataclass(frozen=True)
class RowBatch:
    sparse: KeyedJaggedTensor
    dense: torch.Tensor
    labels: torch.Tensor
    time: torch.Tensor


def read_rows(path: Path, work: Work, batch_size: int, *, kernels: bool) -> Iterator[RowBatch]:
    """Yield the file's rows in batches of `batch_size`, the same transforms done."""
    columns = [*work.sparse, *work.dense, work.label, "time"]
    with pq.ParquetFile(path) as file:
        for rows in file.iter_batches(batch_size=batch_size, columns=columns, use_threads=False):
            values, lengths = (_lists_by_kernels if kernels else _lists_by_numpy)(rows, work)
            yield RowBatch(
                sparse=KeyedJaggedTensor(keys=list(work.sparse), values=values, lengths=lengths),
                dense=_dense(rows, work, kernels=kernels),
                labels=torch.from_numpy(rows.column(work.label).to_numpy().copy()).unsqueeze(1),
                time=torch.from_numpy(rows.column("time").to_numpy().copy()),
            )


def _lists_by_numpy(rows: pa.RecordBatch, work: Work) -> tuple[torch.Tensor, torch.Tensor]:
    all_values, all_lengths = [], []
    for name in work.sparse:
        column = rows.column(name)
        offsets = column.offsets.to_numpy()
        values = column.values.to_numpy()[offsets[0] : offsets[-1]]
        lengths = np.diff(offsets)
        if name in work.modulo:
            values, lengths = _last(values, lengths, work.last)
            values = np.remainder(values, work.modulo_size)
        else:
            values = _hash(values, work.hash_size)
        all_values.append(values)
        all_lengths.append(lengths)
    return torch.from_numpy(np.concatenate(all_values)), torch.from_numpy(np.concatenate(all_lengths))


def _last(values: np.ndarray, lengths: np.ndarray, last: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the lists cut to their last `last` IDs: an index of what is kept, then one take."""
    kept = np.minimum(lengths, last)
    if (kept == lengths).all():
        return values, lengths
    skipped = np.cumsum(lengths - kept)
    return values[np.arange(kept.sum()) + np.repeat(skipped, kept)], kept


def _hash(values: np.ndarray, size: int) -> np.ndarray:
    """Return splitmix64 of the IDs reduced to 0 .. size-1, pass by pass over the whole column, in place."""
    x = values.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x ^= x >> np.uint64(shift)
        x *= np.uint64(factor)
    x ^= x >> np.uint64(31)
    x >>= np.uint64(32)
    x *= np.uint64(size)
    x >>= np.uint64(32)
    return x.view(np.int64)


def _lists_by_kernels(rows: pa.RecordBatch, work: Work) -> tuple[torch.Tensor, torch.Tensor]:
    lists = []
    for name in work.sparse:
        column = rows.column(name)
        offsets = column.offsets.to_numpy()
        start, length = offsets[:-1].astype(np.int64), np.diff(offsets).astype(np.int64)
        if name in work.modulo:
            start += np.maximum(length - work.last, 0)
            length = np.minimum(length, work.last)
        lists.append((column.values.to_numpy(), start, length))
    ends = np.cumsum([length.sum() for _, _, length in lists])
    out = np.empty(ends[-1], dtype=np.int64)
    first = 0
    for (values, start, length), end in zip(lists, ends, strict=True):
        gather.expand_lists(values, start, length, out[first:end])
        first = end
    split = ends[len(work.modulo) - 1]
    id_kernels.modulo_in_place(out[:split], work.modulo_size)
    id_kernels.hash_in_place(out[split:], work.hash_size, 0)
    return torch.from_numpy(out), torch.from_numpy(np.concatenate([length for _, _, length in lists]))


def _dense(rows: pa.RecordBatch, work: Work, *, kernels: bool) -> torch.Tensor:
    dense_FB = np.stack([rows.column(name).to_numpy() for name in work.dense])
    if kernels:
        flat = dense_FB.reshape(-1)
        dense_kernels.clamp_in_place(flat, np.float32(work.low), np.float32(work.high))
        dense_kernels.log1p_in_place(flat, False)
    else:
        np.clip(dense_FB, work.low, work.high, out=dense_FB)
        np.log1p(dense_FB, out=dense_FB)
    return torch.from_numpy(dense_FB).t().contiguous()
