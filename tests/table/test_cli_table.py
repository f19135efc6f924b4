"""`recoup table` from the shell: a build, what it says, its errors in one line, its exit codes."""

import json
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from recoup.cli.main import app
from recoup.core import RecoupError
from tests.table.oracles import multiset
from tests.table.test_files import SCHEMA, make_log

RECIPE = """
[log]
kind = "parquet"
path = "{folder}/log.parquet"

[log.schema]
key = "user"
event_id = "event"
labels = ["click"]
dense = [{{name = "age"}}]
sparse = [
  {{name = "likes", group = "profile"}},
  {{name = "history", group = "history", weighted = true}},
  {{name = "item"}},
]

[build.sessions]
gap = "30m"
"""


@pytest.fixture
def recipe(tmp_path):
    """Write a log and a recipe; return the recipe's path."""
    pq.write_table(pa.Table.from_batches([make_log()]), tmp_path / "log.parquet")
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE.format(folder=tmp_path))
    return path


def recoup(*arguments):
    """Run the command in this process; return its result."""
    return CliRunner().invoke(app, ["table", *map(str, arguments)])


def test_build_inspect_verify_export(tmp_path, recipe):
    """Each command does its work, says it in plain words, and exits with 0."""
    built = recoup("build", recipe, tmp_path / "table")
    assert built.exit_code == 0, built.output
    assert "400 samples in" in built.output
    assert "MB of disk beside the table" in built.output
    inspected = recoup("inspect", tmp_path / "table", "--json")
    assert json.loads(inspected.stdout)["samples"] == 400
    assert "profile" in recoup("inspect", tmp_path / "table").output
    verified = recoup("verify", tmp_path / "table")
    assert (verified.exit_code, "is intact: 400 samples" in verified.output) == (0, True)
    assert recoup("export", tmp_path / "table", tmp_path / "rows.parquet").exit_code == 0
    assert multiset(pq.read_table(tmp_path / "rows.parquet").to_batches(), SCHEMA) == multiset([make_log()], SCHEMA)


def test_suggest_writes_a_build_that_inspect_compares(tmp_path, recipe):
    """The proposal is a recipe that builds, and inspect shows what was foretold beside what came."""
    suggested = recoup("suggest", recipe, "--write", tmp_path / "groups.toml")
    assert suggested.exit_code == 0, suggested.output
    assert "a batch's lists" in suggested.output
    assert json.loads(recoup("suggest", recipe, "--json").stdout)["samples"] == 400
    assert recoup("build", tmp_path / "groups.toml", tmp_path / "table").exit_code == 0
    facts = json.loads(recoup("inspect", tmp_path / "table", "--json").stdout)
    assert facts["predictions"]
    assert "foretold" in recoup("inspect", tmp_path / "table").output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["build", "{recipe}", "{table}"], "use --overwrite to replace it or --resume to keep it"),
        (["build", "{recipe}", "{table}", "--set", "build.memory=3"], "memory"),
        (["build", "{recipe}", "{table}", "--engine", "hadoop"], "expected --engine embedded or spark, got 'hadoop'"),
        (["verify", "{folder}/nothing"], "got no manifest.json"),
        (["export", "{table}", "{folder}/log.parquet"], "use --overwrite, or another name"),
        (["suggest", "{recipe}", "--write", "{folder}/log.parquet"], "use --overwrite, or another name"),
    ],
)
def test_a_users_mistake_is_one_error_U05(tmp_path, recipe, arguments, message):
    """Each mistake is one RecoupError that says what to do; the table stays as it was."""
    table = tmp_path / "table"
    assert recoup("build", recipe, table).exit_code == 0
    before = (table / "manifest.json").read_bytes()
    result = recoup(*(text.format(recipe=recipe, table=table, folder=tmp_path) for text in arguments))
    assert isinstance(result.exception, RecoupError)
    assert message in str(result.exception)
    assert (table / "manifest.json").read_bytes() == before


@pytest.mark.parametrize("wrong", [["--overwrite=False"], ["--overwrit"], ["--overwrite", "no"]])
def test_booleans_are_real_and_misspelt_options_refused_U03(tmp_path, recipe, wrong):
    """`--flag False` and `--flg` are errors, never taken for True."""
    result = recoup("build", recipe, tmp_path / "table", *wrong)
    assert result.exit_code == 2
    assert not (tmp_path / "table").exists()


def test_damage_is_one_line_and_exit_code_1_F08(tmp_path, recipe):
    """From the shell: verify on a damaged table prints the part's path, no traceback, and exits with 1."""
    assert recoup("build", recipe, tmp_path / "table").exit_code == 0
    part = next((tmp_path / "table" / "parts").iterdir())
    part.write_bytes(part.read_bytes()[:-9])
    code = "import sys; from recoup.cli.main import main; sys.argv = ['recoup', *sys.argv[1:]]; main()"
    command = [sys.executable, "-c", code, "table", "export", str(tmp_path / "table"), str(tmp_path / "x.parquet")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert str(part) in done.stderr
    assert "Traceback" not in done.stderr
    assert recoup("verify", tmp_path / "table").exit_code == 1
