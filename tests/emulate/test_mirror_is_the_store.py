"""The emulator's copy in memory is the checkpoint store: the same saves and losses give the same rows, bit for bit."""

import pytest
import torch

from recoup.checkpoint import CheckpointStore, SaveRequest, ShardPlan
from recoup.emulate import (
    CriteoLikeData,
    EmulatedTraining,
    RunPlan,
    Whole,
    load_dataset,
    make_policy,
    plain_batches,
    prepare_course,
    whole_view,
)
from tests.emulate.tiny import TinyLearner


@pytest.mark.parametrize("name", ["none", "scar", "mfu", "ssu", "adagrad_change", "stale_use"])
def test_emulated_recovery_equals_the_stores(tmp_path, name):
    """Saves by every policy, then lost shards: rows set back by the emulator equal those that the store restores."""
    data = load_dataset(CriteoLikeData(num_samples=800, scale=1e-4))
    sizes = dict(data.num_rows)
    learner = TinyLearner(sizes, 13)
    shards = ShardPlan.by_hash(sizes, 4)
    course = prepare_course(plain_batches(data.train, 16), learner, shards)
    fraction = 1.0 if name == "none" else 0.125
    workload = EmulatedTraining(
        plan=RunPlan(step_seconds=1.0, recovery="partial", fraction=fraction),
        course=course,
        learner=learner,
        start=Whole.of(learner, 0),
        policy=make_policy(name, learner.table_views(), fraction, seed=0),
    )
    views = {table: whole_view(table, rows) for table, rows in learner.table_views().items()}
    store = CheckpointStore(str(tmp_path), run_id="run", plan=shards)
    store.save(SaveRequest(step=0, views=views))
    for step in (4, 9, 15, 22):
        workload.train_to(float(step))
        workload.begin_save(float(step))
        copies = workload._pending.taken
        rows = {t: torch.arange(sizes[t]) if c.rows is None else c.rows for t, c in copies.items()}
        store.save(SaveRequest(step=step, views=views, rows=rows))
        workload.complete_save()
    workload.train_to(30.0)
    workload.recover_partial([(0,), (2, 3)], 30.0)
    emulated = Whole.of(learner, 30).rows
    store.restore(views, shards=[0, 2, 3])
    restored = Whole.of(learner, 30).rows
    for table, parts in emulated.rows.items():
        for part, tensor in parts.items():
            assert torch.equal(tensor, restored.rows[table][part]), (table, part)
