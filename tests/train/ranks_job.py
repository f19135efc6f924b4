"""A job of real processes on Gloo: `run_job(n)` starts n ranks, each does every scenario, and returns their reports."""

import multiprocessing
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

SMOOTH = {"dense_optimizer": "sgd"}
"""Adam divides gradients by their size: it turns rounding into steps where a gradient is nearly zero."""


def run_job(world_size, seconds=90):
    """Return what each rank reports, or fail if the job does not end in time."""
    folder = Path(tempfile.mkdtemp(prefix="recoup-job-"))
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_rank, args=(rank, world_size, str(folder))) for rank in range(world_size)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(seconds)
    late = [process.pid for process in processes if process.is_alive()]
    for process in processes:
        process.kill()
    assert not late, f"ranks {late} did not end within {seconds} s"
    assert [process.exitcode for process in processes] == [0] * world_size
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(world_size)]


def take(batch, low, high):
    """Return samples low .. high - 1 of a batch, with all unique rows of its groups."""
    sparse = batch.sparse
    rows = dict(sparse.rows)
    for group in sparse.groups:
        if group.name not in sparse.inverse:
            for key in group.features:
                r = rows[key]
                rows[key] = replace(r, start=r.start[low:high], length=r.length[low:high])
    inverse = {name: tensor[low:high] for name, tensor in sparse.inverse.items()}
    return replace(
        batch,
        dense=batch.dense[low:high],
        labels=batch.labels[low:high],
        time=batch.time[low:high],
        session=batch.session[low:high],
        sparse=replace(sparse, rows=rows, inverse=inverse, num_samples=max(0, min(high, batch.num_samples) - low)),
    )


def share(batch, rank, world_size):
    """Return this rank's part of a batch: near equal, the last ones may be empty."""
    size = -(-batch.num_samples // world_size)
    return take(batch, min(rank * size, batch.num_samples), min((rank + 1) * size, batch.num_samples))


def without_ids(batch):
    """Return the batch with every list empty."""
    rows = {
        key: replace(r, values=r.values[:0], start=torch.zeros_like(r.start), length=torch.zeros_like(r.length))
        for key, r in batch.sparse.rows.items()
    }
    return replace(batch, sparse=replace(batch.sparse, rows=rows))


def tables_of(trainer):
    """Return copies of the rows this rank holds, by table."""
    return {
        name: (view.weight.clone(), view.optimizer["momentum1"].clone()) for name, view in trainer.table_views().items()
    }


def _rank(rank, world_size, folder):
    import warnings

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    import torch.distributed as dist

    from tests.train import tiny

    dist.init_process_group(
        "gloo", store=dist.FileStore(f"{folder}/store", world_size), rank=rank, world_size=world_size
    )
    report = {
        "curve": _curve(rank, world_size, tiny),
        "short": _short(rank, world_size, tiny),
        "empty lists": _empty_lists(rank, tiny),
        "metrics": _metrics(rank, world_size, tiny),
        "problem": _problem(rank, tiny),
        "run": _run(folder, tiny),
        "attached": _attached(rank, world_size, folder, tiny),
    }
    torch.save(report, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def _curve(rank, world_size, tiny):
    """Train the same global batches as one process does."""
    trainer = tiny.trainer(**SMOOTH)
    losses = [trainer.step(share(batch, rank, world_size)).loss for batch in tiny.batches()]
    return losses, tables_of(trainer), trainer.dense_state()


def _short(rank, world_size, tiny):
    """Train a reader's batches of 4 over 7 rows: the last steps leave ranks without rows."""
    trainer = tiny.trainer(**SMOOTH)
    whole = take(tiny.batches()[0], 0, 7)
    steps = [take(whole, low, min(low + 4, 7)) for low in range(0, 7, 4)]
    mine = [batch for i, batch in enumerate(steps) if i % world_size == rank]
    empty = take(whole, 0, 0)
    losses = [trainer.step(batch).loss for batch in trainer.ranks.in_step(mine, empty)]
    return losses, tables_of(trainer), trainer.dense_state()


def _empty_lists(rank, tiny):
    """Train batches in which only the first rank has IDs."""
    trainer = tiny.trainer()
    return [trainer.step(batch if rank == 0 else without_ids(batch)).loss for batch in tiny.batches()[:3]]


def _metrics(rank, world_size, tiny):
    """Evaluate 1 to 9 rows, dealt to ranks one by one: unequal, some ranks have none."""
    trainer = tiny.trainer()
    whole = tiny.batches()[0]
    return [
        trainer.evaluate([take(whole, row, row + 1) for row in range(num_rows) if row % world_size == rank])
        for num_rows in range(1, 10)
    ]


def _problem(rank, tiny):
    """Give the last rank a NaN: every rank gets the same error."""
    from recoup.model import ModelError

    trainer = tiny.trainer()
    batch = tiny.batches()[0]
    if rank == 1:
        batch.dense[3, 1] = float("nan")
    before = tables_of(trainer)
    try:
        trainer.step(batch)
    except ModelError as err:
        same = all(torch.equal(before[name][0], rows[0]) for name, rows in tables_of(trainer).items())
        return str(err), same
    return "no error", False


def _run(folder, tiny):
    """Train a whole run together: stop, resume, and train it whole."""
    from recoup.train import train

    config = tiny.run_config()
    stopped = replace(config, train=replace(config.train, max_steps=4))
    whole = train(config, Path(folder) / "whole")
    train(stopped, Path(folder) / "stopped")
    resumed = train(config, Path(folder) / "stopped", resume=True)
    return whole, resumed


def _attached(rank, world_size, folder, tiny):
    """Attach recovery, save all rows, save used ones, train on, and lose rank 1's shard; then a save that fails."""
    from recoup.checkpoint import CheckpointError, CheckpointStore
    from recoup.checkpoint.policies import MFU
    from recoup.recovery import attach
    from recoup.train import shard_plan

    trainer = tiny.trainer()
    plan = shard_plan(trainer.model_config, trainer.ranks)
    store = CheckpointStore(f"{folder}/attached", "job", plan)
    policy = MFU({name: view.num_rows_total for name, view in trainer.table_views().items()})
    job = attach(trainer.model, store, policy, total_samples=10_000)
    job.save(trainer.dense_state())
    for batch in tiny.batches()[:2]:
        trainer.step(share(batch, rank, world_size))
        job.step_done(batch.num_samples)
    job.save_first(trainer.dense_state(), fraction=1.0)
    saved = tables_of(trainer)
    trainer.step(share(tiny.batches()[2], rank, world_size))
    job.step_done(tiny.batches()[2].num_samples)
    after = tables_of(trainer)
    job.recover([1])
    found = tables_of(trainer), job.ledger.pls * world_size * 10_000 - job.num_samples
    if rank == 1:
        for view in trainer.table_views().values():
            view.weight[:] = float("nan")
    used = {table: policy.select(table, 10_000).tolist() for table in trainer.table_views()}
    job.save_first(trainer.dense_state(), fraction=1.0)
    try:
        job.save_first(trainer.dense_state())
        problem = "no error"
    except CheckpointError as err:
        problem = str(err)
    again = {table: policy.select(table, 10_000).tolist() for table in trainer.table_views()}
    store.close()
    return saved, after, *found, problem, used == again


if __name__ == "__main__":
    print(run_job(int(sys.argv[1])))
