"""Tables on object storage: an S3 server over real HTTP; built, read, appended to, verified, damaged."""

import socket

import boto3
import fsspec
import pytest
from moto.server import ThreadedMotoServer
from typer.testing import CliRunner

from recoup.cli.main import app
from recoup.core import no_progress
from recoup.reader import ReaderConfig, SessionReader
from recoup.table import (
    BuildConfig,
    TableError,
    WriterConfig,
    append_table,
    build_table,
    mirror_of,
    open_table,
    push_table,
    worked_on,
)
from recoup.table.verify import verify_table
from tests.table.oracles import MemoryLog, multiset
from tests.table.test_append import days
from tests.table.test_build import SCHEMA

CONFIG = BuildConfig(writer=WriterConfig(partition_by="day"))


@pytest.fixture
def bucket(monkeypatch, tmp_path):
    """Start an S3 server with one bucket, found as any S3 is: by the environment; yield the client."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    facts = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    for name, value in facts.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    client.create_bucket(Bucket="tables")
    yield client
    server.stop()
    fsspec.get_filesystem_class("s3").clear_instance_cache()


def keys(client):
    """Return the objects in the bucket."""
    return {entry["Key"] for entry in client.list_objects_v2(Bucket="tables").get("Contents", [])}


def open_local(url):
    """Return the table in the mirror as it is, without a pull."""
    return open_table(mirror_of(url))


def forget(url):
    """Remove the mirror's files, as on another machine."""
    for path in sorted(mirror_of(url).rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


def test_a_table_on_s3_is_built_appended_to_read_and_verified(bucket):
    """From another machine: the same samples, by reader workers too; the manifest comes last, strays go."""
    url, logs = "s3://tables/log", days(3)
    with worked_on(url, no_progress) as local:
        build_table(MemoryLog(logs[0], SCHEMA), local, CONFIG)
        assert keys(bucket) == set()
    bucket.put_object(Bucket="tables", Key="log/parts/day=1970-01-01/part-9999.parquet", Body=b"stray")
    forget(url)
    for log in logs[1:]:
        with worked_on(url, no_progress) as local:
            append_table(MemoryLog(log, SCHEMA), local, CONFIG)
    forget(url)
    table = open_table(url)
    assert len(table.manifest.parts) == 3
    assert keys(bucket) == {"log/manifest.json", *(f"log/parts/{part.name}" for part in table.manifest.parts)}
    assert multiset(table.iter_samples(), SCHEMA) == multiset(logs, SCHEMA)
    assert verify_table(table) == []
    reader = SessionReader(table, ReaderConfig(batch_size=32, num_workers=1))
    try:
        assert sum(batch.num_samples for batch in reader) == table.num_samples
    finally:
        reader.close()
    done = CliRunner().invoke(app, ["table", "verify", url])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(app, ["table", "compact", url])
    assert "3 parts are now 3" in done.output


def test_the_second_of_two_writers_is_refused_and_a_leftover_of_equal_size_is_replaced(bucket, monkeypatch, tmp_path):
    """Two machines append at once: the first one's table stays whole; a part is told by its checksum, not its size."""
    url, logs = "s3://tables/two", days(3)
    with worked_on(url, no_progress) as local:
        build_table(MemoryLog(logs[0], SCHEMA), local, CONFIG)
    append_table(MemoryLog(logs[1], SCHEMA), mirror_of(url), CONFIG)
    with monkeypatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
        with worked_on(url, no_progress) as other:
            append_table(MemoryLog(logs[2], SCHEMA), other, CONFIG)
    with pytest.raises(TableError, match=r"below 1 under 's3://tables/two', got 1, of another writer"):
        push_table(url)
    assert multiset(open_table(url).iter_samples(), SCHEMA) == multiset([logs[0], logs[2]], SCHEMA)
    assert verify_table(open_table(url)) == []

    url = "s3://tables/leftover"
    with worked_on(url, no_progress) as local:
        (part,) = build_table(MemoryLog(logs[0], SCHEMA), local, CONFIG).parts
        bucket.put_object(Bucket="tables", Key=f"leftover/parts/{part.name}", Body=bytes(part.bytes))
    forget(url)
    assert multiset(open_table(url).iter_samples(), SCHEMA) == multiset(logs[:1], SCHEMA)


def test_locations_that_are_not_s3(tmp_path):
    """`file://` is the local disk and is not mirrored; `memory://` is any other file system."""
    log = days(1)[0]
    for url in (f"file://{tmp_path}/table", "memory://recoup-test/table"):
        with worked_on(url, no_progress) as local:
            build_table(MemoryLog(log, SCHEMA), local, CONFIG)
        assert multiset(open_table(url).iter_samples(), SCHEMA) == multiset([log], SCHEMA)
    assert (tmp_path / "table" / "manifest.json").is_file()


def test_damage_and_absence_are_one_error_and_a_failed_push_leaves_the_older_table(bucket):
    """A changed byte is refused by checksum; no table and no bucket are said; the commit is the manifest alone."""
    url, logs = "s3://tables/damaged", days(2)
    with pytest.raises(TableError, match="expected a session table under"):
        open_table(url)
    with worked_on(url, no_progress) as local:
        build_table(MemoryLog(logs[0], SCHEMA), local, CONFIG)
    before = bucket.get_object(Bucket="tables", Key="damaged/manifest.json")["Body"].read()

    append_table(MemoryLog(logs[1], SCHEMA), mirror_of(url), CONFIG)
    (mirror_of(url) / "parts" / open_local(url).manifest.parts[1].name).unlink()
    with pytest.raises(TableError, match=r"push table: 's3://tables/damaged' failed: .*: the older table is whole"):
        push_table(url)
    assert bucket.get_object(Bucket="tables", Key="damaged/manifest.json")["Body"].read() == before
    forget(url)
    assert multiset(open_table(url).iter_samples(), SCHEMA) == multiset(logs[:1], SCHEMA)

    (part,) = open_table(url).manifest.parts
    key = f"damaged/parts/{part.name}"
    data = bytearray(bucket.get_object(Bucket="tables", Key=key)["Body"].read())
    data[len(data) // 2] ^= 1
    bucket.put_object(Bucket="tables", Key=key, Body=bytes(data))
    forget(url)
    with pytest.raises(TableError, match="expected checksum"):
        open_table(url)
