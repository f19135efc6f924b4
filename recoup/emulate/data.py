"""The data sets that emulations run on: any log, or the synthetic Criteo-like set.

Of a log: repeats of one event are removed; samples are put in time order; the last part is the test set. IDs become
row numbers by the log's own vocabulary where a table has room for every ID, and by a modulus where it has not. Dense
values x become sign(x) log(1 + |x|), so negative counts and zeros stay finite. Everything is held in memory: set
`num_samples` for a log that is larger.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from recoup.core import ConfigError, Progress, no_progress
from recoup.emulate.criteo_like import CriteoLikeData, criteo_like
from recoup.emulate.errors import EmulationError
from recoup.emulate.samples import Dataset, Samples, plain_schema, split_by_time
from recoup.log import LogConfig, LogSource, open_log
from recoup.schema import Schema


@dataclass(frozen=True, kw_only=True, slots=True)
class LogData:
    """A log given by the user."""

    log: LogConfig
    name: str = ""
    """Shown in results; "" = the log's kind."""
    label: str = ""
    """Which label to learn; "" = the schema's first."""
    features: tuple[str, ...] = ()
    """Sparse features to use; () = all."""
    max_rows: int = 1_000_000
    """Largest table: a feature with more distinct IDs takes them modulo this."""
    num_samples: int | None = None
    """Only the first so many samples of the log; None = all."""
    test_fraction: float = 0.2
    kind: Literal["log"] = "log"

    def __post_init__(self) -> None:
        """Check the values."""
        if self.max_rows < 1 or not 0 < self.test_fraction < 1:
            raise ConfigError(f"expected max_rows >= 1 and test_fraction in (0, 1), got {self}")


DataConfig: TypeAlias = CriteoLikeData | LogData


def load_dataset(config: DataConfig, progress: Progress = no_progress) -> Dataset:
    """Return the data set that `config` describes.

    Raises:
        LogError: the log is damaged or absent.
        EmulationError: it has no sample, not both classes, or not the features asked for.
    """
    if isinstance(config, CriteoLikeData):
        return criteo_like(config)
    source = open_log(config.log)
    schema = source.schema
    label, features = config.label or schema.labels[0], config.features or schema.sparse_names
    unknown = sorted({label, *features} - {*schema.labels, *schema.sparse_names})
    if unknown:
        raise EmulationError(f"expected a label or sparse feature of the log, got {unknown[0]!r}")
    table = _read(source, config.num_samples, [*features, label], progress)
    samples, num_rows = samples_of(table, schema, label=label, features=features, max_rows=config.max_rows)
    train, test = split_by_time(samples, config.test_fraction)
    return Dataset(
        name=config.name or config.log.kind,
        synthetic=config.log.kind == "synthetic",
        schema=plain_schema(schema.dense_names, features, label),
        num_rows=num_rows,
        train=train,
        test=test,
    )


def samples_of(
    table: pa.Table, schema: Schema, *, label: str, features: tuple[str, ...], max_rows: int
) -> tuple[Samples, dict[str, int]]:
    """Return a log's samples in time order with IDs as row numbers, and the rows of each feature's table.

    Args:
        table: in the canonical form of `schema`, any order.
        schema: of the log.
        label: which label to learn.
        features: sparse features to use.
        max_rows: largest table.
    """
    if schema.event_id:
        _, first = np.unique(table.column(schema.event_id).to_numpy(zero_copy_only=False), return_index=True)
        table = table.take(np.sort(first))
    table = table.take(np.argsort(table.column(schema.time).to_numpy(), kind="stable"))
    values: dict[str, NDArray[np.int64]] = {}
    offsets: dict[str, NDArray[np.int64]] = {}
    num_rows: dict[str, int] = {}
    for key in features:
        lists = pa.concat_arrays(table.column(key).chunks)
        ends = lists.offsets.to_numpy().astype(np.int64)
        ids = lists.values.to_numpy()[ends[0] : ends[-1]]
        known = np.unique(ids)
        num_rows[key] = max(1, min(known.size, max_rows))
        values[key] = np.searchsorted(known, ids) if known.size <= max_rows else ids % max_rows
        offsets[key] = ends - ends[0]
    dense = [table.column(name).to_numpy() for name in schema.dense_names]
    raw = np.stack(dense, axis=1) if dense else np.zeros((table.num_rows, 0), np.float32)
    samples = Samples(
        dense=(np.sign(raw) * np.log1p(np.abs(raw))).astype(np.float32),
        label=table.column(label).to_numpy().astype(np.float32),
        values=values,
        offsets=offsets,
        time=table.column(schema.time).to_numpy(),
    )
    return samples, num_rows


def _read(source: LogSource, limit: int | None, wanted: list[str], progress: Progress) -> pa.Table:
    schema = source.schema
    columns = [*wanted, schema.time, *schema.dense_names, *([schema.event_id] if schema.event_id else [])]
    batches: list[pa.RecordBatch] = []
    count = 0
    for batch in source.batches(columns, progress=progress):
        taken = batch if limit is None else batch.slice(0, limit - count)
        batches.append(taken)
        count += taken.num_rows
        if limit is not None and count >= limit:
            break
    if not count:
        raise EmulationError(f"expected samples in the log, got none: {source.describe()}")
    return pa.Table.from_batches(batches)
