"""`recoup emulate` writes results, figures and a page; a second run needs --resume or --overwrite."""

import json

from typer.testing import CliRunner

from recoup.cli.main import app
from recoup.core import ConfigError
from recoup.emulate import EmulationError

CONFIG = """
strategies = ["full", "cpr_vanilla", "cpr_mfu"]
pls = [0.1, 0.3]
num_seeds = 2
batch_size = 128
nodes = [8]
mtbf_hours = [14.0]

[data]
kind = "criteo_like"
num_samples = 2000
scale = 1e-4

[learner]
embedding_dim = 4
bottom = [8]
top = [8]
"""


def run(*arguments):
    return CliRunner().invoke(app, ["emulate", *map(str, arguments)])


def test_results_figures_and_page(tmp_path):
    """One line a run, every figure, a page that shows the table; the data are called synthetic."""
    (tmp_path / "config.toml").write_text(CONFIG)
    out = tmp_path / "out"
    result = run(tmp_path / "config.toml", "--out", out)
    assert result.exit_code == 0, result.output
    assert "synthetic data" in result.output
    runs = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert sum(record["kind"] == "run" for record in runs) == 2 * (1 + 1 + 2 * 2)
    figures = {path.stem for path in out.glob("*.png")}
    assert figures == {
        "auc_by_policy",
        "auc_drop_by_policy",
        "overhead_against_mtbf_hours",
        "overhead_against_nodes",
        "overhead_breakdown",
        "pls_against_auc_drop",
    }
    assert "synthetic data" in (out / "index.html").read_text()
    again = run(tmp_path / "config.toml", "--out", out)
    assert isinstance(again.exception, EmulationError)
    assert "--resume or drop it with --overwrite" in str(again.exception)
    resumed = run(tmp_path / "config.toml", "--out", out, "--resume")
    assert resumed.exit_code == 0
    assert len((out / "results.jsonl").read_text().splitlines()) == len(runs)
    both = run(tmp_path / "config.toml", "--out", out, "--resume", "--overwrite")
    assert isinstance(both.exception, ConfigError)
