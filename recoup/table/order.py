"""Sort streams of Arrow batches larger than memory, by DuckDB: it spills to a folder that is removed afterwards."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa

from recoup.table.errors import TableError


def sort_stream(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    order_by: Sequence[str],
    *,
    memory_bytes: int,
    spill: Path,
    batch_rows: int,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `batches` in the order of `order_by`, as batches of `schema` of at most `batch_rows` rows.

    Args:
        batches: a stream, read once.
        schema: of the batches.
        order_by: columns, ascending.
        memory_bytes: DuckDB's own memory limit; what does not fit goes to `spill`.
        spill: folder for temporary files; must not be shared.
        batch_rows: rows in a batch that is yielded.
    Raises:
        TableError: the spill folder is full or not writable, or the memory limit is too small.
    """
    spill.mkdir(parents=True, exist_ok=True)
    connection = duckdb.connect()
    try:
        connection.execute(f"SET memory_limit = '{memory_bytes // 1_000_000}MB'")
        connection.execute(f"SET temp_directory = '{_quoted(spill)}'")
        connection.execute("SET preserve_insertion_order = false")
        connection.execute("SET threads = 2")
        stream = pa.RecordBatchReader.from_batches(schema, iter(batches))
        connection.register("stream", stream)
        columns = ", ".join(f'"{name}"' for name in order_by)
        relation = connection.sql(f"SELECT * FROM stream ORDER BY {columns}")
        for batch in relation.to_arrow_reader(batch_rows):
            yield as_declared(batch, schema)
    except duckdb.Error as err:
        raise TableError(f"the sort by {list(order_by)} failed (spill folder '{spill}'): {err}") from err
    finally:
        connection.close()


def as_declared(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return `batch`, whose types differ from `schema` in names and nullability only, with exactly `schema`.

    Cost: no copy of buffers, but of lists whose offsets are of another width.
    """
    arrays = [_as(batch.column(field.name), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _as(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if not pa.types.is_list(kind):
        return array if array.type == kind else array.cast(kind)
    if array.type == kind:
        return array
    if not pa.types.is_list(array.type):
        return array.cast(kind)
    return pa.ListArray.from_arrays(array.offsets, _as(array.values, kind.value_type), type=kind)


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")
