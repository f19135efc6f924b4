"""Several ranks: the same curve, tables and metrics as one process, also when some have nothing."""

import dataclasses
import math

import pytest
import torch

from tests.train import tiny
from tests.train.ranks_job import SMOOTH, run_job, tables_of, take

BOUND = 2e-5
"""Relative difference of sums of float32 taken in another order, over the steps of these runs."""


@pytest.fixture(scope="module", params=[2, 3], ids=["two ranks", "three ranks"])
def job(request):
    return run_job(request.param)


def assert_same_model(reports, name, trainer):
    """Every table is on one rank and equals the one process's; dense parameters are equal on all ranks."""
    held = {}
    for report in reports:
        _, tables, dense = report[name]
        assert not set(held) & set(tables)
        held |= tables
        for key, value in trainer.dense_state().items():
            torch.testing.assert_close(dense[key], value, rtol=1e-4, atol=1e-6)
    expected = tables_of(trainer)
    assert set(held) == set(expected)
    for table, (weight, momentum) in expected.items():
        torch.testing.assert_close(held[table][0], weight, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(held[table][1], momentum, rtol=1e-4, atol=1e-9)


def test_ranks_give_the_loss_curve_of_one_process(job):
    """Ranks that share each batch have one process's losses and end with its model, within rounding."""
    trainer = tiny.trainer(**SMOOTH)
    losses = [trainer.step(batch).loss for batch in tiny.batches()]
    for report in job:
        assert report["curve"][0] == pytest.approx(losses, rel=BOUND)
    assert_same_model(job, "curve", trainer)


def test_a_rank_without_rows_takes_part_J02_R10(job):
    """Seven rows in batches of four over two or three ranks: it ends, and the model is one process's."""
    trainer = tiny.trainer(**SMOOTH)
    whole = take(tiny.batches()[0], 0, 7)
    loss = trainer.step(whole).loss  # both batches are one global step
    for report in job:
        assert report["short"][0] == pytest.approx([loss], rel=BOUND)
    assert_same_model(job, "short", trainer)


def test_a_rank_with_only_empty_lists_takes_part_J03(job):
    """A rank whose lists are all empty trains on beside one whose lists are not; both see one loss."""
    curves = [report["empty lists"] for report in job]
    assert all(curve == curves[0] for curve in curves)
    assert all(math.isfinite(loss) for loss in curves[0])


def test_metrics_of_ranks_equal_one_process_M06(job):
    """One to nine rows on two or three ranks: every figure is equal to one process's, to the bit."""
    trainer = tiny.trainer()
    whole = tiny.batches()[0]
    for num_rows in range(1, 10):
        expected = trainer.evaluate([take(whole, row, row + 1) for row in range(num_rows)])
        for report in job:
            assert repr(report["metrics"][num_rows - 1]) == repr(expected)
        assert expected.num_samples == num_rows


def test_a_problem_of_one_rank_stops_all_X08(job):
    """NaN on one rank raises the same error on all, and no table has changed."""
    for report in job:
        message, unchanged = report["problem"]
        assert "got nan (dense feature 'dense_1', sample 3 of the batch)" in message
        assert unchanged


def test_resume_together_gives_the_same_losses(job):
    """A run of several ranks, stopped and resumed, has the losses and metrics of the one that was not."""
    for report in job:
        whole, resumed = report["run"]
        assert resumed.losses == whole.losses
        assert dataclasses.asdict(resumed.metrics) == dataclasses.asdict(whole.metrics)
    assert job[0]["run"][0].losses


def test_attached_ranks_save_and_recover_together(job):
    """The lost rank's rows are those of the background save, the others' are untouched; a failed save fails for all."""
    for rank, report in enumerate(job):
        saved, after, found, difference, problem, first_again = report["attached"]
        expected = saved if rank == 1 else after
        assert found.keys() == expected.keys()
        assert all(torch.equal(a, b) for table in found for a, b in zip(found[table], expected[table], strict=True))
        assert difference == pytest.approx(0, abs=1e-6)
        assert "rank 1 of" in problem
        assert "NaN" in problem
        assert first_again
    assert job[1]["attached"][0]  # rank 1 holds a table, so that something was lost
