"""Damage, loss, foreign files, full disks and lost permissions: one clear error, and the older checkpoint is used."""

import logging
import os
import resource
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recoup.checkpoint import CheckpointError, CheckpointStore, DamagedError, NoCheckpointError, TableView
from recoup.checkpoint.manifest import checksum
from tests.checkpoint.builders import (
    SIZES,
    contents,
    make_store,
    make_views,
    request,
    same,
    some_rows,
    step,
)


def two_checkpoints(folder, **overrides):
    """Save steps 1 (all rows) and 2 (some); return store, copies of both, and the newest manifest."""
    store, views = make_store(folder, **overrides), make_views()
    store.save(request(views, 1))
    first = contents(views)
    rows = some_rows(1)
    step(views, 1, rows)
    newest = store.save(request(views, 2, rows=rows))
    return store, first, contents(views), newest


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Two checkpoints that every example of a property copies or puts back."""
    folder = tmp_path_factory.mktemp("damage")
    return folder, *two_checkpoints(folder)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_damaged_byte_is_refused(saved, data):
    """Flip any bit, cut or lengthen any file of a checkpoint: it is refused, no row changes, the older one is used."""
    folder, store, first, _, newest = saved
    older = {file.name for file in store.checkpoints()[1].files()}
    names = [newest.name, *(file.name for file in newest.files() if file.name not in older)]
    path = folder / data.draw(st.sampled_from(sorted(names)))
    whole = path.read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    how = data.draw(st.sampled_from(["flip", "cut", "longer", "empty"]))
    damaged = bytearray(whole)
    damaged[place] ^= 1 << data.draw(st.integers(0, 7))
    wrong = {"flip": bytes(damaged), "cut": whole[:place], "longer": whole + b" ", "empty": b""}[how]
    try:
        path.write_bytes(wrong)
        views = make_views(seed=7)
        before = contents(views)
        if path.suffix == ".safetensors":
            with pytest.raises(DamagedError, match=path.name):
                store.restore(views, manifest=newest)
            assert same(views, before)
        assert store.restore(views).manifest.step == 1
        assert same(views, first)
    finally:
        path.write_bytes(whole)


def test_removing_each_file_falls_back_and_says_so_C03(tmp_path, caplog):
    """Without any one file of the newest checkpoint, its base included, an older one is used, and the file is named."""
    store, views, states = make_store(tmp_path), make_views(), {}
    for number in range(1, 6):
        rows = None if number % 2 else some_rows(number)
        step(views, number, rows)
        store.save(request(views, number, rows=rows))
        states[number] = contents(views)
    store.save(request(views, 6, rows=some_rows(6)))
    newest, second, independent = store.checkpoints()
    assert (second.step, independent.step) == (5, 4)
    shared = {file.name for file in second.files()}
    for name in [file.name for file in newest.files()]:
        (tmp_path / name).rename(tmp_path / "away")
        caplog.clear()
        found = make_views(seed=7)
        with caplog.at_level(logging.WARNING):
            expected = 4 if name in shared else 5
            assert store.restore(found).extra == {"at": expected}
        assert same(found, states[expected])
        assert f"'{newest.name}' is skipped: expected '{name}'" in caplog.text
        (tmp_path / "away").rename(tmp_path / name)
    assert store.restore(views).extra == {"at": 6}


def test_leftovers_are_not_checkpoints_C03(tmp_path):
    """Data files without a manifest, temporary files and folders named like steps are passed over, block nothing."""
    store, _, second, _ = two_checkpoints(tmp_path)
    (tmp_path / "checkpoints/30").mkdir()
    (tmp_path / "30").mkdir()
    (tmp_path / "checkpoints/.run-g0000-n00000009-s000000000009.json.1.tmp").write_bytes(b"{")
    (tmp_path / "data/run-g0000-n00000009-s000000000009-shard0000-base.safetensors").write_bytes(b"x")
    views = make_views(seed=7)
    assert store.restore(views).extra == {"at": 2}
    assert same(views, second)
    for number in range(3, 13):
        store.save(request(views, number))
    assert len(list((tmp_path / "data").iterdir())) == 2 * 4
    assert {path.name for path in (tmp_path / "checkpoints").iterdir() if path.is_file()} == {
        manifest.name.rpartition("/")[2] for manifest in store.checkpoints()
    }


def test_nothing_to_restore_is_an_error_R14(tmp_path):
    """A missing folder, another run's folder, or only damaged checkpoints: an error, and nothing changes."""
    views = make_views()
    before = contents(views)
    with pytest.raises(NoCheckpointError, match=r"complete checkpoint of run 'run' in '.*nowhere', got none"):
        make_store(tmp_path / "nowhere").restore(views)
    assert not (tmp_path / "nowhere").exists()
    two_checkpoints(tmp_path, run_id="other")
    with pytest.raises(NoCheckpointError):
        make_store(tmp_path).restore(views)
    for path in (tmp_path / "data").iterdir():
        path.write_bytes(b"")
    with pytest.raises(NoCheckpointError):
        make_store(tmp_path, run_id="other").restore(views)
    assert same(views, before)


def test_wrong_model_is_refused_R14(tmp_path):
    """A table of another size, dim, name or optimizer is refused with both sides; no row changes, no file changes."""
    store, *_ = two_checkpoints(tmp_path)
    files = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*.*"))}

    def view(**overrides):
        given = {"name": "users", "weight": torch.zeros(97, 4), "optimizer": {"momentum1": torch.zeros(97)}}
        return TableView(**{**given, "first_row": 0, "num_rows_total": 97, **overrides})

    for wrong, words in (
        (view(num_rows_total=98), "num_rows 97, the model 98"),
        (view(weight=torch.zeros(97, 8)), "dim 4, the model 8"),
        (view(optimizer={}), r"optimizer state \['momentum1'\], the model \[\]"),
        (view(optimizer={"momentum1": torch.zeros(97, 4)}), "optimizer rows of shape"),
    ):
        with pytest.raises(CheckpointError, match=words):
            store.restore({"users": wrong})
        assert wrong.weight.count_nonzero() == 0
    with pytest.raises(CheckpointError, match=r"table 'who': expected one of the .* \['items', 'tiny', 'users'\]"):
        store.restore({"who": view(name="who")})
    with pytest.raises(CheckpointError, match=r"expected shards in \[0, 3\), got \[3\]"):
        store.restore(make_views(), shards=[3])
    assert files == {path: path.read_bytes() for path in sorted(tmp_path.rglob("*.*"))}


def test_foreign_delta_is_refused(tmp_path):
    """An entry or a manifest of another run is refused by name, and a file put in the place of ours by its checksum."""
    mine, _, second, newest = two_checkpoints(tmp_path)
    other, *_, foreign = two_checkpoints(tmp_path, run_id="other")
    snapshot = mine.snapshot(request(make_views(), 3, rows={"users": torch.tensor([1])}))
    with pytest.raises(CheckpointError, match=r"expected an entry of run 'run', got 'data/other-.*another run's"):
        mine.commit(snapshot, [foreign.chain(0)[-1]], newest, mine.next_serial())
    path = tmp_path / newest.name
    whole = path.read_bytes()
    path.write_bytes((tmp_path / foreign.name).read_bytes())
    assert mine.latest().step == 1
    path.write_bytes(whole)
    shutil.copy(tmp_path / foreign.chain(0)[0].file.name, tmp_path / newest.chain(0)[0].file.name)
    with pytest.raises(DamagedError, match=r"expected .* bytes of checksum"):
        mine.restore(make_views(), manifest=newest)
    data = (tmp_path / foreign.chain(0)[0].file.name).read_bytes()
    (tmp_path / newest.chain(0)[0].file.name).write_bytes(data)
    lie = replace(newest.chain(0)[0], file=replace(newest.chain(0)[0].file, bytes=len(data), checksum=checksum(data)))
    forged = replace(newest, entries=(lie, *newest.entries[1:]))
    views = make_views(seed=7)
    before = contents(views)
    with pytest.raises(DamagedError, match=r"expected rows of .*'run_id': 'run'.*, got .*'run_id': 'other'"):
        mine.restore(views, manifest=forged)
    assert same(views, before)
    assert other.restore(views).extra == {"at": 2}
    assert same(views, second)


def test_run_ids_that_look_alike_are_apart(tmp_path):
    """A run called like the beginning of another's file names never touches that other."""
    for name in ("run", "run-g0000", "run-g0000-n00000000-s000000000000"):
        store, *_ = two_checkpoints(tmp_path, run_id=name)
        for number in (3, 4, 5):
            store.save(request(make_views(), number))
    for name in ("run", "run-g0000", "run-g0000-n00000000-s000000000000"):
        assert [m.step for m in make_store(tmp_path, run_id=name).checkpoints()] == [5, 4]
    for name in ("", "a/b", ".hidden", "a b"):
        with pytest.raises(CheckpointError, match="a run id is a plain name"):
            make_store(tmp_path, run_id=name)


@contextmanager
def file_size_limit(size):
    """Let no file of this process grow beyond `size` bytes: the real error of a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def permission_lost(folder):
    """Take the permission to write in a folder from this process, root or not."""
    mode = folder.stat().st_mode
    folder.chmod(0o500)
    if os.geteuid() == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
        folder.chmod(mode)


@pytest.fixture
def open_folder():
    """Yield a folder that every user may read."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.parametrize("trouble", ["full disk", "permission lost"])
def test_save_that_cannot_be_written_leaves_the_older_one(open_folder, trouble):
    """A full disk or a lost permission is one error, once; the older checkpoint's files are as before; saves go on."""
    store, _, second, _ = two_checkpoints(open_folder)
    files = {path: path.read_bytes() for path in sorted(open_folder.rglob("*.*"))}
    views = make_views(seed=3)
    broken = file_size_limit(300) if trouble == "full disk" else permission_lost(open_folder / "data")
    with broken:
        pending = store.start_save(request(views, 3))
        with pytest.raises(
            CheckpointError, match=r"writing '.*' failed: .*: older checkpoints are untouched"
        ) as caught:
            pending.result()
    assert isinstance(caught.value.__cause__, OSError)
    assert files == {path: path.read_bytes() for path in sorted(open_folder.rglob("*.*"))}
    found = make_views(seed=7)
    assert store.restore(found).extra == {"at": 2}
    assert same(found, second)
    assert store.save(request(views, 3)).step == 3


def test_unseen_failure_is_raised_by_the_next_save_once(tmp_path):
    """A background failure nobody asked for is raised by the next save, and only by that one."""
    store, *_ = two_checkpoints(tmp_path)
    with file_size_limit(300):
        pending = store.start_save(request(make_views(), 3))
        store._writer.submit(lambda: None).result()
        assert pending.done
    with pytest.raises(CheckpointError, match="File too large"):
        store.start_save(request(make_views(), 4))
    assert store.save(request(make_views(), 4)).step == 4


def test_what_cannot_be_saved_is_refused(tmp_path):
    """NaN in rows or dense tensors, rows out of range or not in memory, odd state: refused, nothing is committed."""
    store, _, second, _ = two_checkpoints(tmp_path)
    bad = make_views()
    bad["items"].optimizer["momentum1"][5] = float("inf")
    half = make_views(part=(0, 2))
    for wrong, words in (
        (request(bad, 3), r"NaN or infinity in optimizer.momentum1 of table 'items', row 5: nothing was saved"),
        (
            request(make_views(), 3, dense={"w": torch.tensor([0.0, float("nan")])}),
            "NaN or infinity in dense tensor 'w'",
        ),
        (request(make_views(), 3, rows={"users": torch.tensor([0, 97])}), r"rows in \[0, 97\), got 97"),
        (request(make_views(), 3, rows={"users": torch.tensor([-1])}), r"rows in \[0, 97\), got -1"),
        (request(make_views(), 3, rows={"who": torch.tensor([1])}), "got table 'who'"),
        (request(half, 3), r"holds rows 33 to 64 of table 'users', this process \[0, 49\)"),
        (request(half, 3, rows={"users": torch.tensor([50])}), r"holds rows 50 to 50 of table 'users'"),
        (request(make_views(), 3, extra={"at": object()}), "plain JSON types"),
        (request(make_views(), 3, extra={"at": float("nan")}), "plain JSON types"),
    ):
        with pytest.raises(CheckpointError, match=words):
            store.save(wrong)
    views = make_views(seed=7)
    assert store.restore(views).extra == {"at": 2}
    assert same(views, second)


def test_delta_needs_a_base_of_the_same_plan(tmp_path):
    """A delta without a base, or on a base of another plan or dtype, is refused; a save of all rows mends it."""
    rows = {"users": torch.tensor([1])}
    with pytest.raises(NoCheckpointError, match="save everything once"):
        make_store(tmp_path).save(request(make_views(), 1, rows=rows))
    make_store(tmp_path, shards=3).save(request(make_views(), 1))
    other = make_store(tmp_path, shards=2)
    with pytest.raises(CheckpointError, match=r"\(range, 3 shards\), got another \(range, 2 shards\)"):
        other.save(request(make_views(), 2, rows=rows))
    with pytest.raises(CheckpointError, match=r"the delta TableFacts.*float16.*save everything once"):
        make_store(tmp_path).save(request(make_views(dtype=torch.float16), 2, rows=rows))
    views = make_views(seed=4)
    other.save(request(views, 2))
    other.save(request(views, 3, rows=rows))
    assert other.restore(make_views()).extra == {"at": 3}


def test_deltas_go_on_what_was_restored(tmp_path):
    """After a fall-back, of all rows or of one shard, deltas go on the chain that was used, not on the damaged one."""
    for shards in (None, [1]):
        folder = tmp_path / str(shards)
        store, first, second, newest = two_checkpoints(folder)
        path = folder / newest.chain(1)[-1].file.name
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(bytes(data))
        views = make_views(seed=7)
        store.restore(views, manifest=newest, shards=[0, 2])
        restored = store.restore(views, shards=shards)
        assert restored.manifest.step == 1
        rows = {"items": torch.tensor([0, 20, 39])}
        step(views, 5, rows)
        store.save(request(views, 3, rows=rows))
        found = make_views(seed=8)
        assert store.restore(found).extra == {"at": 3}
        assert same(found, contents(views))
        for name in SIZES:
            lost = store.plan.shard_of(name, torch.arange(SIZES[name])) == 1
            older = first if shards is None else second
            kept = torch.isin(torch.arange(SIZES[name]), rows.get(name, torch.zeros(0)), invert=True)
            for part, live in found[name].parts().items():
                assert torch.equal(live[lost & kept], first[name][part][lost & kept])
                assert torch.equal(live[~lost & kept], older[name][part][~lost & kept])


def test_delta_on_a_base_that_has_gone_is_refused(tmp_path):
    """When files of the chain have vanished a delta is refused by name, and a save of all rows mends it."""
    store, _, _, newest = two_checkpoints(tmp_path)
    (tmp_path / newest.chain(2)[0].file.name).unlink()
    rows = {"items": torch.tensor([1])}
    with pytest.raises(
        CheckpointError, match=r"expected 'data/.*shard0002-base.*' of .* to go on, got none: save ever"
    ):
        store.save(request(make_views(), 3, rows=rows))
    store.save(request(make_views(), 3))
    store.save(request(make_views(), 4, rows=rows))
    assert store.latest().step == 4


def test_older_generation_cannot_commit(tmp_path):
    """A process left over from before a recovery is refused, and could not come in front if it were not."""
    old, new = (CheckpointStore(str(tmp_path), "run", make_store(tmp_path).plan, generation=g) for g in (1, 2))
    views = make_views()
    old.save(request(views, 1))
    new.save(request(views, 2))
    with pytest.raises(CheckpointError, match="generation 1 of run 'run' is over: generation 2 has committed"):
        old.save(request(views, 9))
    assert new.latest().step == 2
    new.save(request(views, 3))
    assert [manifest.generation for manifest in new.checkpoints()] == [2, 2]
    assert len(SIZES) == 3
