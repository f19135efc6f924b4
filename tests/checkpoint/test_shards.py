"""Shards: n -> m on load, one shard alone, partial saves in proportion, dtypes, plans."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recoup.checkpoint import CheckpointError, ShardPlan, TableView
from tests.checkpoint.builders import PLANS, SIZES, contents, make_store, make_views, request, same, some_rows, step

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def numbered(rank, world, plan=None):
    """Return views of a rank in which row i holds i, and its momentum i + 0.5."""
    views = {}
    for name, total in SIZES.items():
        first, last = (-(-total * k // world) for k in (rank, rank + 1))
        if plan is not None and plan.kind == "table":
            first, last = (0, total) if plan.owners[name] == rank else (0, 0)
        if last == first:
            continue
        rows = torch.arange(first, last).float()
        views[name] = TableView(
            name=name,
            weight=rows[:, None].repeat(1, 3),
            optimizer={"momentum1": rows + 0.5},
            first_row=first,
            num_rows_total=total,
        )
    return views


@pytest.mark.parametrize("kind", ["range", "table"])
@pytest.mark.parametrize("before", [1, 2, 3, 4])
def test_every_row_comes_back_to_its_index_C14_C17(tmp_path, kind, before):
    """Saved by n ranks, loaded by m, for all n, m <= 4: row i holds i again, and its Adagrad sum i + 0.5."""
    plan = PLANS[kind](SIZES, before)
    store = make_store(tmp_path, kind=kind, shards=before)
    snapshots = [store.snapshot(request(numbered(k, before, plan), 1), [k]) for k in range(before)]
    entries = [store.write_entry(snapshot, k, 0, base=True) for k, snapshot in enumerate(snapshots)]
    facts = {name: table for snapshot in snapshots for name, table in snapshot.tables.items()}
    manifest = store.commit(replace(snapshots[0], tables=facts), entries, None, 0)
    assert {entry.num_rows for entry in manifest.entries} == {plan.num_rows_of(k) for k in range(before)}
    for after in (1, 2, 3, 4):
        for rank in range(after):
            expected = numbered(rank, after)
            views = numbered(rank, after)
            for view in views.values():
                for part in view.parts().values():
                    part.fill_(-1)
            make_store(tmp_path, shards=after).restore(views)
            assert same(views, contents(expected))


def test_commit_needs_the_facts_of_all_tables(tmp_path):
    """A manifest that would not know a table held by another rank only is refused at the commit."""
    plan = PLANS["table"](SIZES, 2)
    store = make_store(tmp_path, kind="table", shards=2)
    snapshots = [store.snapshot(request(numbered(k, 2, plan), 1), [k]) for k in range(2)]
    entries = [store.write_entry(snapshot, k, 0, base=True) for k, snapshot in enumerate(snapshots)]
    with pytest.raises(CheckpointError, match="facts of every table of the plan, got none of"):
        store.commit(snapshots[0], entries, None, 0)
    assert store.latest() is None


def test_base_without_all_rows_is_refused(tmp_path):
    """An entry called a base that lacks rows of its shard cannot be committed."""
    store = make_store(tmp_path, shards=1)
    snapshot = store.snapshot(request(make_views(), 1, rows=some_rows(1)))
    entry = store.write_entry(snapshot, 0, 0, base=True)
    with pytest.raises(CheckpointError, match="expected all 140 rows of shard 0, got 27"):
        store.commit(snapshot, [entry], None, 0)


@pytest.mark.parametrize("kind", ["range", "hash", "table"])
def test_one_shard_reads_only_its_own_files(tmp_path, kind):
    """With every other shard's files gone, one shard restores: its rows are as saved, no other row changes."""
    store, views = make_store(tmp_path, kind=kind), make_views()
    store.save(request(views, 1))
    rows = some_rows(3)
    step(views, 3, rows)
    manifest = store.save(request(views, 2, rows=rows))
    saved = contents(views)
    for shard in range(3):
        (tmp_path / "away").mkdir()
        others = [entry.file.name for entry in manifest.entries if entry.shard != shard]
        for name in others:
            (tmp_path / name).rename(tmp_path / "away" / Path(name).name)
        found = make_views(seed=8)
        before = contents(found)
        store.restore(found, manifest=manifest, shards=[shard])
        for table, view in found.items():
            mine = torch.zeros(SIZES[table], dtype=torch.bool)
            mine[store.plan.rows_of(table, shard)] = True
            for part, live in view.parts().items():
                assert torch.equal(live[mine], saved[table][part][mine])
                assert torch.equal(live[~mine], before[table][part][~mine])
        for name in others:
            (tmp_path / "away" / Path(name).name).rename(tmp_path / name)
        (tmp_path / "away").rmdir()


def test_partial_save_costs_its_rows_C23(tmp_path):
    """A save of 1 % of the rows copies and writes less than 2 % of what a full save does, in any plan."""
    total = 40_000
    view = TableView(
        name="t", weight=torch.randn(total, 32), optimizer={"m": torch.rand(total)}, first_row=0, num_rows_total=total
    )
    for kind in PLANS:
        store = make_store(tmp_path, run_id=kind)
        store.plan = PLANS[kind]({"t": total}, 2)
        full = store.save(request({"t": view}, 1))
        rows = {"t": torch.randperm(total)[: total // 100]}
        snapshot = store.snapshot(request({"t": view}, 2, rows=rows))
        held = {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
            for copies in snapshot.shards.values()
            for copy in copies.values()
            for tensor in (copy.rows, *copy.parts.values())
        }  # whole storages: a view would keep the table alive
        part = store.save(request({"t": view}, 2, rows=rows))
        whole = sum(entry.file.bytes for entry in full.entries)
        written = sum(e.file.bytes for shard in range(2) for e in part.chain(shard) if e.kind == "delta")
        assert 0 < written < 0.02 * whole
        assert sum(held.values()) < 0.02 * whole


@pytest.mark.parametrize("live", DTYPES)
@pytest.mark.parametrize("saved", DTYPES)
@pytest.mark.parametrize("which", ["weight", "optimizer"])
def test_other_dtype_is_refused_unless_a_cast_is_asked_C12(tmp_path, saved, live, which):
    """Another dtype of weights or optimizer is refused and changes nothing; with `cast` it is converted by rounding."""

    def views_of(dtype, seed):
        return make_views(seed=seed, **{"dtype" if which == "weight" else "optimizer_dtype": dtype})

    store = make_store(tmp_path, shards=1)
    source, target = views_of(saved, 0), views_of(live, 5)
    store.save(request(source, 1))
    before = contents(target)
    if saved != live:
        with pytest.raises(CheckpointError, match=r"has dtypes .*, the model .*: ask for a cast to convert"):
            store.restore(target)
        assert same(target, before)
    store.restore(target, cast=True)
    for name, view in target.items():
        for part, rows in view.parts().items():
            assert torch.equal(rows, source[name].parts()[part].to(rows.dtype))


@given(st.sampled_from(sorted(PLANS)), st.integers(1, 6), st.lists(st.integers(0, 300), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_plan_gives_every_row_to_one_shard(kind, num_shards, sizes):
    """The rows of all shards are all rows, each once; `shard_of` agrees with `rows_of`, and the counts add up."""
    num_rows = {f"t{i}": total for i, total in enumerate(sizes)}
    plan = PLANS[kind](num_rows, num_shards)
    for table, total in num_rows.items():
        shards = [plan.rows_of(table, shard) for shard in range(num_shards)]
        assert sorted(row for rows in shards for row in rows.tolist()) == list(range(total))
        for shard, rows in enumerate(shards):
            assert (plan.shard_of(table, rows) == shard).all()
            assert (rows[1:] > rows[:-1]).all()
    assert sum(plan.num_rows_of(shard) for shard in range(num_shards)) == sum(sizes)


def test_plan_refuses_what_it_cannot_assign():
    """No shards, an owner out of range or missing, an unknown table or shard."""
    with pytest.raises(CheckpointError, match="at least one shard, got 0"):
        ShardPlan.by_hash({"t": 1}, 0)
    with pytest.raises(CheckpointError, match=r"expected a shard in \[0, 2\), got 2"):
        ShardPlan.by_table({"t": 1}, 2, {"t": 2})
    with pytest.raises(CheckpointError, match=r"an owner of each table \['t', 'u'\], got \['t'\]"):
        ShardPlan.by_table({"t": 1, "u": 1}, 2, {"t": 1})
    plan = ShardPlan.by_range({"t": 5}, 2)
    with pytest.raises(CheckpointError, match=r"a table of the plan \['t'\], got 'u'"):
        plan.rows_of("u", 0)
    with pytest.raises(CheckpointError, match=r"a shard in \[0, 2\), got 2"):
        plan.rows_of("t", 2)


def test_hash_spreads_rows_evenly():
    """No shard of a hashed table holds 5 % more than its share, neighbours included."""
    plan = ShardPlan.by_hash({"t": 80_000}, 8)
    counts = [plan.rows_of("t", shard).numel() for shard in range(8)]
    assert max(counts) < 1.05 * 10_000
    assert min(counts) > 0.95 * 10_000
