"""Weigh a table before it is built: encode and write a sample of the log, in memory, and count bytes by column."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from recoup.schema import DedupGroup, Schema
from recoup.table.build_config import BuildConfig
from recoup.table.encode import SessionEncoder, encode_sessions
from recoup.table.layout import row_schema
from recoup.table.stages import in_start_order, one_batch, sort_indices
from recoup.table.writer import TableWriter

_BATCH = 8192


def bytes_per_sample(
    samples: pa.RecordBatch, schema: Schema, build: BuildConfig, groups: Sequence[DedupGroup]
) -> dict[str, float]:
    """Return the compressed bytes a sample of each feature, group inverse and other column, were `groups` the groups.

    With no groups nothing is deduplicated. Cost: the sample is encoded and written to a temporary folder.
    """
    ungrouped = (DedupGroup(name="", features=tuple(_features(schema, build))),)
    encoder = SessionEncoder(schema, build.sessions, build.histories, build.means, groups or ungrouped)
    indices = sort_indices(samples, [name for name in (schema.key, schema.time, schema.event_id) if name])
    batches = (samples.take(indices.slice(first, _BATCH)) for first in range(0, samples.num_rows, _BATCH))
    target = row_schema(encoder.schema)
    rows = in_start_order(one_batch(list(encode_sessions(batches, encoder)), target))
    with tempfile.TemporaryDirectory() as folder:
        writer = TableWriter(Path(folder), target, build.writer)
        writer.write(rows)
        paths = [Path(folder) / "parts" / part.name for part in writer.close()]
        sizes = column_bytes(paths)
    return {name: size / max(1, encoder.num_samples) for name, size in sizes.items()}


def column_bytes(paths: Sequence[Path]) -> dict[str, int]:
    """Return the compressed bytes of each feature, group inverse and other column in some parts, largest first."""
    sizes: dict[str, int] = {}
    for path in paths:
        metadata = pq.read_metadata(path)
        for group in range(metadata.num_row_groups):
            for column in range(metadata.num_columns):
                chunk = metadata.row_group(group).column(column)
                name = chunk.path_in_schema.split(".")[0]
                feature = name.rpartition("__")[0] or name
                sizes[feature] = sizes.get(feature, 0) + int(chunk.total_compressed_size)
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def _features(schema: Schema, build: BuildConfig) -> list[str]:
    return [*schema.sparse_names, *(history.name for history in build.histories)]
