"""`recoup plan` prints the planner's answer, as a table and as JSON, and refuses what cannot be."""

import json

import pytest
from typer.testing import CliRunner

from recoup.cli.main import app
from recoup.core import ConfigError

EXAMPLE = "plan --mtbf 14h --shards 8 --save 2m --load 5m --reschedule 10m --pls 0.02"


def run(command):
    return CliRunner().invoke(app, command.split(), catch_exceptions=True)


def test_example_recommends_partial_recovery(tmp_path):
    """The example of the help text recommends partial recovery, says why, and draws the curves."""
    result = run(f"{EXAMPLE} --plot {tmp_path / 'curves.png'}")
    assert result.exit_code == 0
    text = " ".join(result.output.split())
    assert "use partial recovery, save every 269 min" in text
    assert "costs 2.01 %, full recovery at best 8.69 %" in text
    assert (tmp_path / "curves.png").stat().st_size > 1000


def test_json_is_one_object():
    """`--json` prints the same numbers as one object."""
    answer = json.loads(run(f"{EXAMPLE} --json").output)
    assert answer["recovery"] == "partial"
    assert answer["save_interval_seconds"] == pytest.approx(268.8 * 60)
    assert answer["overhead_total"] == pytest.approx(0.02009, abs=1e-5)


def test_mtbf_from_observed_failures(tmp_path):
    """Observed failures give the MTBF, with an interval and a word on how few they are."""
    path = tmp_path / "failures.csv"
    path.write_text("time,shards\n10h,0\n30h,3\n42h,1\n")
    result = run(f"plan --failures {path}")
    assert result.exit_code == 0
    assert "only 3 failures seen" in " ".join(result.output.split())
    assert json.loads(run(f"plan --failures {path} --json").output)["mtbf_seconds"] == pytest.approx(14 * 3600)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("plan", "expected either --mtbf or --failures, got neither"),
        ("plan --mtbf soon", "a duration is a number and a unit"),
        ("plan --mtbf 14h --pls 0", "a PLS budget lies above 0"),
        ("plan --mtbf 14h --shards 0", "num_shards must be at least 1"),
    ],
)
def test_mistakes_are_refused(command, message):
    """A user's mistake is a `ConfigError` that says what was expected (the CLI prints it and exits with 1)."""
    result = run(command)
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)
