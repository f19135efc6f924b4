"""Law 6 on the real store: partial recovery changes only the failed shards; full recovery sets everything."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recoup.checkpoint import CheckpointStore, SaveRequest, ShardPlan, TableView
from recoup.core import EventLog, read_events
from recoup.recovery import (
    FailureNotice,
    GuardConfig,
    Ledger,
    RecoveryError,
    recover,
    recover_full,
    recover_partial,
)

SIZES = {"users": 50, "items": 17, "tiny": 2}
SHARDS = 4


def make_views(seed=0):
    rng = torch.Generator().manual_seed(seed)
    return {
        name: TableView(
            name=name,
            weight=torch.randn(rows, 3, generator=rng),
            optimizer={"momentum1": torch.rand(rows, generator=rng)},
            first_row=0,
            num_rows_total=rows,
        )
        for name, rows in SIZES.items()
    }


def train(views, seed):
    """Change every row and optimizer row."""
    rng = torch.Generator().manual_seed(seed)
    for view in views.values():
        view.weight.add_(torch.randn(view.weight.shape, generator=rng))
        view.optimizer["momentum1"].add_(torch.rand(view.weight.shape[0], generator=rng))


def copy(views):
    return {name: {part: rows.clone() for part, rows in view.parts().items()} for name, view in views.items()}


def save(store, views, position, rows=None):
    request = SaveRequest(
        step=position // 10,
        views=views,
        rows=rows,
        dense={"w": torch.full((2,), float(position))},
        extra={"num_samples": position},
    )
    return store.save(request)


def make_store(folder, kind="hash"):
    plan = {"hash": ShardPlan.by_hash, "range": ShardPlan.by_range, "table": ShardPlan.by_table}[kind](SIZES, SHARDS)
    return CheckpointStore(str(folder), run_id="run", plan=plan)


def notice(shards, position, **overrides):
    return FailureNotice(
        **{"shards": shards, "position": position, "staleness_seconds": 1.0, "num_dense_replicas": 1, **overrides}
    )


@given(
    st.sets(st.integers(0, SHARDS - 1), min_size=1),
    st.sampled_from(["hash", "range", "table"]),
    st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_partial_recovery_changes_failed_shards_only(tmp_path_factory, failed, kind, with_delta):
    """Survivors' rows and optimizer rows stay bit-equal; failed rows are those of their last save, delta included."""
    store, views = make_store(tmp_path_factory.mktemp("store"), kind), make_views()
    save(store, views, 100)
    saved = copy(views)
    if with_delta:
        train(views, 1)
        some = {"users": torch.arange(0, 50, 3), "tiny": torch.tensor([1])}
        save(store, views, 200, rows=some)
        for table, rows in some.items():
            for part, now in views[table].parts().items():
                saved[table][part][rows] = now[rows]
    train(views, 2)
    before = copy(views)
    ledger = Ledger(SHARDS, 1000)
    ledger.saved(100)
    done = recover_partial(store, views, notice(tuple(sorted(failed)), 300), ledger)
    for table, view in views.items():
        lost = torch.isin(store.plan.shard_of(table, torch.arange(SIZES[table])), torch.tensor(sorted(failed)))
        for part, now in view.parts().items():
            assert torch.equal(now[~lost], before[table][part][~lost])
            assert torch.equal(now[lost], saved[table][part][lost])
    assert done.dense is None
    assert ledger.pls == pytest.approx(len(failed) * 200 / (1000 * SHARDS))


def test_full_recovery_sets_everything(tmp_path):
    """Every row is the checkpoint's; dense tensors and plain state come back; later losses are taken back."""
    store, views = make_store(tmp_path), make_views()
    save(store, views, 100)
    saved = copy(views)
    train(views, 1)
    ledger = Ledger(SHARDS, 1000)
    ledger.saved(100)
    ledger.lost([1], 150)
    done = recover_full(store, views, ledger)
    for table, view in views.items():
        for part, now in view.parts().items():
            assert torch.equal(now, saved[table][part])
    assert done.dense["w"].tolist() == [100.0, 100.0]
    assert done.extra == {"num_samples": 100}
    assert ledger.pls == 0


def test_guard_decides_and_everything_is_logged(tmp_path):
    """Within the budget partial, beyond it full; decision and result stand in the events."""
    store, views = make_store(tmp_path / "store"), make_views()
    save(store, views, 100)
    ledger = Ledger(SHARDS, 1000)
    ledger.saved(100)
    events = EventLog(tmp_path / "events.jsonl")
    config = GuardConfig(pls_budget=0.03)
    assert recover(store, views, notice((2,), 200), ledger, config, events).recovery == "partial"
    done = recover(store, views, notice((2,), 210), ledger, config, events)
    assert done.recovery == "full"
    assert "PLS would rise from 0.025 to 0.0525" in done.decision.reason
    names = [(event["event"], event["recovery"]) for event in read_events(tmp_path / "events.jsonl")]
    assert names == [
        ("recovery_decided", "partial"),
        ("recovery_finished", "partial"),
        ("recovery_decided", "full"),
        ("recovery_finished", "full"),
    ]
    assert ledger.pls == 0


def test_damaged_checkpoint_is_passed_over_and_counted_from_the_older(tmp_path):
    """If a shard's newest file is damaged the one before is used, and the ledger counts the longer loss."""
    store, views = make_store(tmp_path), make_views()
    save(store, views, 100)
    older = copy(views)
    train(views, 1)
    newest = save(store, views, 200)
    (entry,) = [entry for entry in newest.chain(3)]
    path = tmp_path / entry.file.name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    train(views, 2)
    ledger = Ledger(SHARDS, 1000)
    ledger.saved(200)
    (loss,) = recover_partial(store, views, notice((3,), 300), ledger).losses
    assert (loss.since, loss.until) == (100, 300)
    rows = store.plan.rows_of("users", 3)
    assert torch.equal(views["users"].weight[rows], older["users"]["weight"][rows])


def test_nothing_to_recover_from_is_an_error_R14(tmp_path):
    """Without a complete checkpoint recovery is an error and no row changes."""
    store, views = make_store(tmp_path), make_views()
    before = copy(views)
    with pytest.raises(RecoveryError, match=r"no way to recover shards \[0\]: no complete checkpoint of shards \[0\]"):
        recover(store, views, notice((0,), 10), Ledger(SHARDS, 100), GuardConfig())
    assert all(torch.equal(views[t].weight, before[t]["weight"]) for t in SIZES)


def test_checkpoint_without_position_is_refused(tmp_path):
    """The ledger cannot count from a checkpoint that does not say its position."""
    store, views = make_store(tmp_path), make_views()
    store.save(SaveRequest(step=1, views=views))
    with pytest.raises(RecoveryError, match="expected 'num_samples' in its plain state, got None"):
        recover(store, views, notice((0,), 10), Ledger(SHARDS, 100), GuardConfig())
