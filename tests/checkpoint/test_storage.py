"""Any fsspec file system: in memory, a local URL, and an S3 server over real HTTP."""

import socket
import uuid

import boto3
import pytest
import torch
from moto.server import ThreadedMotoServer

from recoup.checkpoint import CheckpointError, CheckpointStore, NoCheckpointError, Storage, StoreConfig
from tests.checkpoint.builders import PLANS, SIZES, contents, make_views, request, same, step


@pytest.fixture(scope="module")
def s3():
    """Start an S3 server on a free loopback port with one bucket; yield fsspec's options for it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    address = f"http://127.0.0.1:{port}"
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
    boto3.client("s3", endpoint_url=address, **keys).create_bucket(Bucket="runs")
    yield {"key": "key", "secret": "secret", "client_kwargs": {"endpoint_url": address, "region_name": "us-east-1"}}
    server.stop()


@pytest.fixture(params=["memory", "file", "path", "s3"])
def storage(request, tmp_path):
    """Yield an empty storage of each kind."""
    if request.param == "s3":
        return Storage(f"s3://runs/{uuid.uuid4().hex}", **request.getfixturevalue("s3"))
    urls = {"memory": f"memory://{uuid.uuid4().hex}", "file": f"file://{tmp_path}/a b", "path": str(tmp_path / "c d")}
    return Storage(urls[request.param])


def test_save_restore_retention_on_every_file_system(storage):
    """Bases, deltas, compaction, retention and restore are the same wherever the files lie."""
    store = CheckpointStore(storage, "run", PLANS["hash"](SIZES, 2), config=StoreConfig(keep=2, max_chain=1))
    with pytest.raises(NoCheckpointError):
        store.restore(make_views())
    views = make_views()
    store.save(request(views, 1))
    rows = {"users": torch.arange(0, 97, 5)}
    for number in (2, 3, 4):
        step(views, number, rows)
        store.save(request(views, number, rows=rows))
    found = make_views(seed=9)
    assert store.restore(found).extra == {"at": 4}
    assert same(found, contents(views))
    assert [manifest.step for manifest in store.checkpoints()] == [4, 3, 2]
    assert len(storage.sizes("checkpoints")) == 3
    name = store.latest().dense.name
    storage.remove(name)
    storage.remove(name)  # once more: not an error
    assert store.restore(found).extra == {"at": 3}


def test_unknown_file_system_is_one_error():
    """A URL of no known file system is refused when the store is opened."""
    with pytest.raises(CheckpointError, match="a folder or a URL that fsspec knows, got 'nowhere://x'"):
        Storage("nowhere://x")


def test_unreachable_server_is_one_error(s3):
    """A missing bucket is a checkpoint error with its cause, whatever the file system raised."""
    store = CheckpointStore(Storage("s3://no-such-bucket/run", **s3), "run", PLANS["hash"](SIZES, 2))
    with pytest.raises(CheckpointError, match=r"writing '.*' failed") as caught:
        store.save(request(make_views(), 1))
    assert caught.value.__cause__ is not None
