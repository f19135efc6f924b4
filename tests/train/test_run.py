"""Whole runs: resume at any step, refuse what does not fit, keep what is there."""

from dataclasses import replace

import pytest
import torch

from recoup.checkpoint import CheckpointError
from recoup.core import ConfigError, read_events
from recoup.reader import ReaderError
from recoup.train import CheckpointConfig, Run, RunConfig, TrainConfig, TrainError, evaluate, read_losses, train
from tests.train.tiny import model, run_config


def stopped_at(config: RunConfig, step: int) -> RunConfig:
    return replace(config, train=replace(config.train, max_steps=step))


def test_resume_at_every_step_gives_the_same_losses(tmp_path):
    """A run stopped at any step and resumed has the losses of the run that was not, bit for bit, and its metrics."""
    config = run_config()
    whole = train(config, tmp_path / "whole")
    assert whole.num_steps > 10
    for step in range(1, whole.num_steps, 5):
        folder = tmp_path / f"stopped-{step}"
        train(stopped_at(config, step), folder)
        assert read_losses(folder) == list(whole.losses[:step])
        resumed = train(config, folder, resume=True)
        assert resumed.losses == whole.losses
        assert resumed.metrics == whole.metrics


def test_resume_from_an_older_checkpoint_retrains_the_lost_steps(tmp_path):
    """A run whose newest checkpoint is damaged goes on from the one before, to the same losses."""
    config = run_config()
    whole = train(config, tmp_path / "whole")
    train(stopped_at(config, 8), tmp_path / "run")
    newest = max((tmp_path / "run/checkpoints/data").iterdir())
    newest.write_bytes(newest.read_bytes()[:-7])
    assert train(config, tmp_path / "run", resume=True).losses == whole.losses
    resumed = [e["step"] for e in read_events(tmp_path / "run/events.jsonl") if e["event"] == "run_resumed"]
    assert resumed == [6]


def test_resume_without_a_run_is_an_error_R14(tmp_path):
    """A resume that cannot be done is an error; nothing is trained and nothing is made."""
    with pytest.raises(TrainError, match=r"expected a run to resume in .*, got nothing"):
        train(run_config(), tmp_path / "missing", resume=True)
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (lambda c: replace(c, reader=replace(c.reader, batch_size=32)), TrainError, "reader.batch_size = 64, got 32"),
        (lambda c: replace(c, train=replace(c.train, dense_optimizer="sgd")), TrainError, "dense_optimizer = adam"),
        (lambda c: replace(c, model=replace(c.model, top_mlp=(4,))), TrainError, r"model.top_mlp = \[16\], got \[4\]"),
    ],
)
def test_resume_with_other_settings_is_an_error_R14(tmp_path, change, error, match):
    """A resume under other settings names the setting and both values; the old files stay as they are."""
    config = stopped_at(run_config(), 3)
    train(config, tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(error, match=match):
        train(change(config), tmp_path / "run", resume=True)
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


def test_resume_without_a_readable_checkpoint_is_an_error_R14(tmp_path):
    """With every checkpoint damaged a resume is an error, not a fresh start."""
    config = stopped_at(run_config(), 4)
    train(config, tmp_path / "run")
    for path in (tmp_path / "run/checkpoints/data").iterdir():
        path.write_bytes(b"")
    with pytest.raises(CheckpointError, match="expected a complete checkpoint"):
        train(replace(config, train=replace(config.train, max_steps=9)), tmp_path / "run", resume=True)
    assert len(read_losses(tmp_path / "run")) == 4


def test_same_command_twice_names_both_ways_U05(tmp_path):
    """A second run into the same folder is refused with both ways out; overwriting gives the same losses again."""
    config = stopped_at(run_config(), 3)
    first = train(config, tmp_path / "run")
    with pytest.raises(TrainError, match=r"--resume .* or --overwrite"):
        train(config, tmp_path / "run")
    assert train(config, tmp_path / "run", overwrite=True).losses == first.losses


def test_overwrite_removes_runs_only_U05(tmp_path):
    """A folder that holds something else is not removed."""
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(TrainError, match="something other than a run"):
        train(run_config(), tmp_path, overwrite=True)
    assert (tmp_path / "thesis.tex").exists()


def test_overwrite_with_a_broken_configuration_keeps_the_old_run_U05(tmp_path):
    """The old run is removed only once the new one is known to fit its table."""
    config = stopped_at(run_config(), 3)
    train(config, tmp_path / "run")
    wrong = replace(config, model=replace(model(), sequences=(), tables=(replace(model().tables[0], features=("x",)),)))
    with pytest.raises(ReaderError, match="'x'"):
        train(wrong, tmp_path / "run", overwrite=True)
    assert len(read_losses(tmp_path / "run")) == 3


def test_evaluate_equals_the_end_of_the_run(tmp_path):
    """The newest checkpoint evaluates to the metrics that the run ended with."""
    result = train(run_config(), tmp_path / "run")
    assert evaluate(run_config(), tmp_path / "run") == result.metrics


def test_nan_never_reaches_a_checkpoint_M10(tmp_path):
    """A learning rate that blows the model up stops the run; every saved tensor is finite."""
    from safetensors.torch import load_file

    config = run_config(train=TrainConfig(num_epochs=3, table_lr=1e30, dense_lr=1e30, dense_optimizer="sgd"))
    with pytest.raises(TrainError, match=r"expected (a finite loss|finite)"):
        train(config, tmp_path / "run")
    for path in (tmp_path / "run/checkpoints").rglob("*.safetensors"):
        for name, tensor in load_file(path).items():
            assert torch.isfinite(tensor.double()).all(), (path, name)


@pytest.mark.parametrize("policy", ["mfu", "ssu", "scar", "adagrad_change", "stale_use", "dirty_rows"])
def test_rows_are_saved_by_priority_in_the_background_and_training_is_the_same(tmp_path, policy):
    """Everything at the start and at the end, rows in between; the same losses as without; a resume goes on exactly."""
    config = replace(run_config(), checkpoint=CheckpointConfig(every_steps=8, policy=policy, fraction=0.25))
    whole = train(run_config(), tmp_path / "whole")
    assert train(config, tmp_path / "run").losses == whole.losses
    saves = [e for e in read_events(tmp_path / "run/events.jsonl") if e["event"] == "checkpoint_committed"]
    assert [save["step"] for save in saves] == [0, *range(2, whole.num_steps + 1, 2), whole.num_steps]
    assert [save["full"] for save in saves] == [True, *[False] * (len(saves) - 2), True]
    assert all(0 < save["rows"] < saves[0]["rows"] for save in saves[1:-1])
    train(stopped_at(config, 7), tmp_path / "stopped")
    assert train(config, tmp_path / "stopped", resume=True).losses == whole.losses


def test_a_policy_needs_an_interval_and_a_fraction_in_range():
    """A policy without every_steps, or with no fraction, is refused with both values."""
    with pytest.raises(ConfigError, match="expected every_steps with the policy 'mfu', got none"):
        CheckpointConfig(policy="mfu")
    with pytest.raises(ConfigError, match=r"expected a fraction in \(0, 1\], got 0.0"):
        CheckpointConfig(every_steps=4, policy="mfu", fraction=0.0)


def test_a_priority_save_that_fails_stops_the_run_and_keeps_the_older_checkpoint(tmp_path):
    """A row that is not finite is found while it is written: the run ends, the checkpoint before it is intact."""
    config = replace(run_config(), checkpoint=CheckpointConfig(every_steps=8, policy="dirty_rows", fraction=0.25))
    run = Run(config, tmp_path)
    run.saves.regroup()
    run.save()
    batch = next(iter(run.reader))
    run.trainer.step(batch)
    next(iter(run.trainer.table_views().values())).weight[:] = float("nan")
    run.saves.save_rows({"run": {}})
    with pytest.raises(CheckpointError, match="expected finite numbers, got NaN"):
        run.saves.settle()
    assert run.saves.store.latest().step == 0
    run.saves.settle()  # once told, it is over
    run.reader.close()
    run.saves.store.close()
