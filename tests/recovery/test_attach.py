"""Recovery attached to a TorchRec job of one's own: the tracker sees its look-ups, the example runs."""

import subprocess
import sys
from pathlib import Path

import torch

from recoup.checkpoint import CheckpointStore, ShardPlan
from recoup.checkpoint.policies import MFU
from recoup.recovery import attach
from tests.train import tiny

ROOT = Path(__file__).parents[2]


def test_the_policy_sees_every_training_look_up_and_no_other(tmp_path):
    """Counts of the attached tracker equal a count of the batches' IDs; evaluation is not counted."""
    trainer = tiny.trainer(tiny.model(sequences=()))
    num_rows = {table.name: table.num_embeddings for table in tiny.model().tables}
    policy = MFU(num_rows)
    store = CheckpointStore(str(tmp_path), "job", ShardPlan.by_table(num_rows, 2))
    job = attach(trainer.model, store, policy, total_samples=1000)
    counts = {table: torch.zeros(rows, dtype=torch.int64) for table, rows in num_rows.items()}
    for batch in tiny.batches()[:3]:
        trainer.step(batch)
        job.step_done(batch.num_samples)
        for table, ids in trainer.ids_by_table(batch).items():
            counts[table] += torch.bincount(ids, minlength=num_rows[table])
    trainer.evaluate(tiny.batches()[:2])
    for table, count in counts.items():
        most = policy.select(table, 5)
        assert sorted(count[most].tolist()) == sorted(count.sort(descending=True).values[:5].tolist())
    store.close()


def test_a_lost_shard_comes_back_and_the_others_are_untouched(tmp_path):
    """After priority saves a recovery sets back the failed shard's rows alone and counts its loss."""
    trainer = tiny.trainer()
    num_rows = {table.name: table.num_embeddings for table in tiny.model().tables}
    plan = ShardPlan.by_hash(num_rows, 4)
    job = attach(trainer.model, CheckpointStore(str(tmp_path), "job", plan), MFU(num_rows), total_samples=1000)
    job.save(trainer.dense_state())
    for batch in tiny.batches()[:3]:
        trainer.step(batch)
        job.step_done(batch.num_samples)
    job.save_first(trainer.dense_state(), fraction=0.5)
    before = {table: view.weight.clone() for table, view in job.views.items()}
    for table, view in job.views.items():
        view.weight[plan.rows_of(table, 1)] = 7.0
    done = job.recover([1])
    assert done.recovery == "partial"
    assert 0 < job.ledger.pls <= job.num_samples / 4000
    for table, view in job.views.items():
        lost = plan.rows_of(table, 1)
        kept = torch.ones(num_rows[table], dtype=torch.bool)
        kept[lost] = False
        assert torch.equal(view.weight[kept], before[table][kept])
        assert bool((view.weight[lost] < 7.0).all())
    job.store.close()


def test_the_example_runs_and_is_short():
    """`examples/attach.py` loses a shard, recovers it, finishes; it has at most 60 lines."""
    path = ROOT / "examples" / "attach.py"
    assert len(path.read_text().splitlines()) <= 60
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "partial recovery of" in done.stdout
    assert "finished 60 steps" in done.stdout
