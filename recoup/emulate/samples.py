"""Samples of a log in memory, in time order, cut into plain batches: the same batches for every emulated run.

Data in: a log source, or the synthetic generator. Data out: training and test batches, the test set being the last part
by time. Plain batches (one row a sample) are used on purpose: the emulator compares recoveries, not readers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recoup.emulate.errors import EmulationError
from recoup.jagged import Batch, InverseKeyedJaggedTensor, JaggedRows
from recoup.schema import DedupGroup, DenseFeature, Schema, SparseFeature


@dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """S samples in time order."""

    dense: NDArray[np.float32]
    """[S, Fd]."""
    label: NDArray[np.float32]
    """[S], 0 or 1."""
    values: Mapping[str, NDArray[np.int64]]
    """IDs of all samples, by feature."""
    offsets: Mapping[str, NDArray[np.int64]]
    """[S + 1], by feature."""
    time: NDArray[np.int64]
    """[S], milliseconds."""

    @property
    def num_samples(self) -> int:
        """S."""
        return self.label.shape[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """What one emulation trains and tests on."""

    name: str
    synthetic: bool
    schema: Schema
    """Plain: every sparse feature in the group ""."""
    num_rows: Mapping[str, int]
    """Rows of the table of each sparse feature."""
    train: Samples
    test: Samples

    def __post_init__(self) -> None:
        """Refuse a data set that AUC cannot be measured on."""
        if len(np.unique(self.test.label)) < 2 or not self.train.num_samples:
            raise EmulationError(f"data set {self.name!r}: expected both classes in the test set, got one or none")


def split_by_time(samples: Samples, test_fraction: float) -> tuple[Samples, Samples]:
    """Return the samples before the last `test_fraction`, and those of it."""
    cut = round(samples.num_samples * (1 - test_fraction))
    return slice_samples(samples, 0, cut), slice_samples(samples, cut, samples.num_samples)


def slice_samples(samples: Samples, start: int, stop: int) -> Samples:
    """Return samples `start` to `stop`; the IDs are views."""
    bounds = {key: (offsets[start], offsets[stop]) for key, offsets in samples.offsets.items()}
    return Samples(
        dense=samples.dense[start:stop],
        label=samples.label[start:stop],
        values={key: values[slice(*bounds[key])] for key, values in samples.values.items()},
        offsets={key: offsets[start : stop + 1] - bounds[key][0] for key, offsets in samples.offsets.items()},
        time=samples.time[start:stop],
    )


def plain_batches(samples: Samples, batch_size: int) -> list[Batch]:
    """Cut the samples into batches of `batch_size`, in order; the last may be smaller."""
    starts = range(0, samples.num_samples, batch_size)
    return [_plain_batch(slice_samples(samples, s, min(s + batch_size, samples.num_samples))) for s in starts]


def shuffled(samples: Samples, rng: np.random.Generator) -> Samples:
    """Return the samples in an order drawn from `rng`: the data order of one seed."""
    order = rng.permutation(samples.num_samples)
    values: dict[str, NDArray[np.int64]] = {}
    offsets: dict[str, NDArray[np.int64]] = {}
    for key in samples.values:
        lengths = np.diff(samples.offsets[key])[order]
        offsets[key] = np.concatenate([[0], np.cumsum(lengths)])
        within = np.arange(offsets[key][-1]) - np.repeat(offsets[key][:-1], lengths)
        values[key] = samples.values[key][np.repeat(samples.offsets[key][:-1][order], lengths) + within]
    return Samples(
        dense=samples.dense[order],
        label=samples.label[order],
        values=values,
        offsets=offsets,
        time=samples.time[order],
    )


def plain_schema(dense: Sequence[str], sparse: Sequence[str], label: str) -> Schema:
    """Return the schema of plain batches: no dedup group."""
    return Schema(
        key="session",
        labels=(label,),
        dense=tuple(DenseFeature(name=name) for name in dense),
        sparse=tuple(SparseFeature(name=name) for name in sparse),
    )


def _plain_batch(samples: Samples) -> Batch:
    keys = tuple(samples.values)
    rows = {key: _rows(samples.values[key], samples.offsets[key]) for key in keys}
    sparse = InverseKeyedJaggedTensor(
        groups=(DedupGroup(name="", features=keys),), rows=rows, inverse={}, num_samples=samples.num_samples
    )
    return Batch(
        dense=torch.from_numpy(np.ascontiguousarray(samples.dense)),
        labels=torch.from_numpy(samples.label.reshape(-1, 1).copy()),
        sparse=sparse,
        time=torch.from_numpy(samples.time.copy()),
        session=torch.arange(samples.num_samples),
    )


def _rows(values: NDArray[np.int64], offsets: NDArray[np.int64]) -> JaggedRows:
    start: Tensor = torch.from_numpy(offsets[:-1].copy())
    return JaggedRows(
        values=torch.from_numpy(values.copy()), start=start, length=torch.from_numpy(np.diff(offsets).copy())
    )
