"""`recoup train` and `recoup eval`: real booleans, refused keys, the page's example."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from recoup.cli.main import app
from recoup.core import ConfigError, from_table, to_toml
from recoup.train import RunConfig, TrainError, read_losses
from tests.train.tiny import run_config

PAGE = Path(__file__).parents[2] / "docs" / "train.md"


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(to_toml(run_config()))
    return path


def test_train_then_evaluate(tmp_path, config):
    """A run from TOML with an override trains, saves and evaluates; the plain reader gives the same losses."""
    first = run("train", config, tmp_path / "a", "--set", "train.max_steps=3")
    assert first.exit_code == 0, first.output
    assert "3 steps" in first.output
    plain = run("train", config, tmp_path / "b", "--set", "train.max_steps=3", "--no-dedup")
    assert plain.exit_code == 0
    assert read_losses(tmp_path / "a") == pytest.approx(read_losses(tmp_path / "b"), rel=2e-5)
    assert "dedup = false" in (tmp_path / "b" / "config.toml").read_text()
    found = run("eval", tmp_path / "a", "--json")
    assert json.loads(found.stdout.strip().splitlines()[-1])["num_samples"] > 0
    again = run("train", config, tmp_path / "a")
    assert isinstance(again.exception, TrainError)
    assert "--resume" in str(again.exception)
    assert "--overwrite" in str(again.exception)


@pytest.mark.parametrize("word", ["False", "0", "no"])
def test_booleans_are_real_U03(tmp_path, config, word):
    """A value after a boolean option is an error, never read as true; --no-... takes effect (above)."""
    for option in ("--dedup", "--resume", "--overwrite"):
        result = run("train", config, tmp_path / "run", option, word)
        assert result.exit_code != 0
        assert not (tmp_path / "run").exists()


def test_misspelt_options_and_keys_are_refused_U03(tmp_path, config):
    """A misspelt option or key is an error."""
    assert run("train", config, tmp_path / "run", "--ovewrite").exit_code == 2
    wrong = run("train", config, tmp_path / "run", "--set", "train.learning_rat=1")
    assert isinstance(wrong.exception, ConfigError)
    assert "learning_rat" in str(wrong.exception)
    assert not (tmp_path / "run").exists()


def test_eval_without_a_run(tmp_path):
    """A folder without a run is an error that names it."""
    assert "got no config.toml" in str(run("eval", tmp_path).exception)


def test_the_page_shows_a_configuration_that_loads():
    """The TOML of docs/train.md is a run's configuration."""
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert from_table(RunConfig, tomllib.loads(text)).model.sequences[0].feature == "history"


@pytest.mark.parametrize("command", ["train", "eval"])
def test_help_has_an_example(command):
    """Every command's help shows one."""
    assert f"recoup {command} " in run(command, "--help").output
