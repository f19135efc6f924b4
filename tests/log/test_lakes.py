"""Delta and Iceberg tables as logs: one version's rows, found by partition and field ID; the rest is refused."""

import pyarrow as pa
import pytest

from recoup.log import DeltaLog, IcebergLog, LogError, open_log
from recoup.schema import Schema, SparseFeature

SCHEMA = Schema(key="user", labels=("click",), sparse=(SparseFeature(name="items"), SparseFeature(name="city")))


def make_table(first, rows=4):
    numbers = range(first, first + rows)
    return pa.table(
        {
            "user": pa.array(numbers, pa.int64()),
            "time": pa.array([1000 * i for i in numbers], pa.int64()),
            "click": pa.array([float(i % 2) for i in numbers]),
            "items": pa.array([[i] * (i % 3) for i in numbers], pa.list_(pa.int64())),
            "city": pa.array([i % 2 for i in numbers], pa.int64()),
        }
    )


def read(config, **options):
    return [row for batch in open_log(config).batches(**options) for row in batch.to_pylist()]


def users(config):
    return sorted(row["user"] for row in read(config))


@pytest.fixture
def delta(tmp_path):
    library = pytest.importorskip("deltalake")
    for first in (0, 4):
        library.write_deltalake(tmp_path, make_table(first), partition_by=["city"], mode="append")
    return DeltaLog(path=str(tmp_path), schema=SCHEMA)


def test_a_delta_table_is_a_log(delta):
    """The newest version's rows come with their partition values; an older version is read as it was."""
    rows = sorted(read(delta), key=lambda row: row["user"])
    assert rows == [
        {"user": i, "time": 1000 * i, "click": float(i % 2), "items": [i] * (i % 3), "city": [i % 2]} for i in range(8)
    ]
    assert users(DeltaLog(path=delta.path, schema=SCHEMA, version=0)) == [0, 1, 2, 3]
    assert open_log(delta).describe()["version"] == 1
    assert read(delta, columns=["city"])[0].keys() == {"city"}


def test_removed_delta_files_are_not_read(delta):
    """After a delete the removed files are still on disk and not in the log."""
    import deltalake

    deltalake.DeltaTable(delta.path).delete("city = 1")
    assert users(delta) == [0, 2, 4, 6]


def test_absent_delta_tables_are_refused(delta, tmp_path):
    """No table and no such version are one line each."""
    for config in (
        DeltaLog(path=str(tmp_path / "no"), schema=SCHEMA),
        DeltaLog(path=delta.path, schema=SCHEMA, version=9),
    ):
        with pytest.raises(LogError, match="expected a Delta table, got: ") as caught:
            open_log(config)
        assert "\n" not in str(caught.value)


@pytest.fixture
def iceberg(tmp_path):
    sql = pytest.importorskip("pyiceberg.catalog.sql")
    catalog = sql.SqlCatalog("t", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("n")
    table = catalog.create_table("n.log", schema=make_table(0).schema)
    table.append(make_table(0))
    table.append(make_table(4))
    yield table, IcebergLog(path=f"{tmp_path}/warehouse/n/log", schema=SCHEMA)
    catalog.close()


def test_an_iceberg_table_is_a_log(iceberg):
    """The current snapshot's rows, or an older one's, by folder or by metadata file."""
    table, config = iceberg
    assert users(config) == list(range(8))
    assert users(IcebergLog(path=table.metadata_location, schema=SCHEMA)) == list(range(8))
    first = table.history()[0].snapshot_id
    assert users(IcebergLog(path=config.path, schema=SCHEMA, snapshot=first)) == [0, 1, 2, 3]
    assert open_log(config).describe()["snapshot"] == table.current_snapshot().snapshot_id
    with pytest.raises(LogError, match="expected a snapshot of the table, got 7"):
        open_log(IcebergLog(path=config.path, schema=SCHEMA, snapshot=7))


def test_renamed_iceberg_columns_are_found_by_id_F05(iceberg):
    """A column renamed after some files were written reads right from all files."""
    table, config = iceberg
    with table.update_schema() as update:
        update.rename_column("items", "goods")
    table.append(make_table(8).rename_columns(["user", "time", "click", "goods", "city"]))
    schema = Schema(key="user", labels=("click",), sparse=(SparseFeature(name="goods"),))
    rows = sorted(read(IcebergLog(path=config.path, schema=schema)), key=lambda row: row["user"])
    assert [row["goods"] for row in rows] == [[i] * (i % 3) for i in range(12)]
    with pytest.raises(LogError, match="expected this column"):
        read(config)


def test_absent_iceberg_tables_are_refused(tmp_path):
    """A folder without metadata is one line; so is a metadata file that is none."""
    with pytest.raises(LogError, match="expected an Iceberg table with metadata files, got none"):
        open_log(IcebergLog(path=str(tmp_path), schema=SCHEMA))
    pytest.importorskip("pyiceberg")
    (tmp_path / "x.metadata.json").write_text("{}")
    with pytest.raises(LogError, match="expected an Iceberg table, got: "):
        open_log(IcebergLog(path=str(tmp_path / "x.metadata.json"), schema=SCHEMA))
