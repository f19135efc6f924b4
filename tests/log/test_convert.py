"""Conversion to canonical Parquet: whole or not at all, resumable after a kill; and the `recoup log` command."""

import itertools
import json
import re
import signal
import subprocess
import sys
from typing import get_args, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recoup.core import to_table, to_toml
from recoup.log import (
    ConvertOptions,
    LogConfig,
    LogError,
    ParquetLog,
    SyntheticGroup,
    SyntheticLog,
    convert_log,
    open_log,
)
from recoup.table.recipe import TableRecipe

GROUP = SyntheticGroup(name="g", prefix="f", num_features=2, repeat=0.9, mean_length=6, max_length=12)


def make_config(**overrides):
    values = {"num_samples": 5000, "groups": (GROUP,), "num_item_features": 1, "num_dense": 1, "num_ids": 1000}
    return SyntheticLog(**{**values, **overrides})


def convert(config, target, **options):
    return convert_log(open_log(config), to_table(config), target, ConvertOptions(**options))


def samples(source):
    return pa.Table.from_batches(source.batches()).combine_chunks()


@pytest.mark.parametrize("part_samples", [1, 999, 1000, 5000, 10**6])
def test_a_converted_log_is_the_same_log(tmp_path, part_samples):
    """The folder, opened as a Parquet log, holds the samples of the source in their order, in parts of one size."""
    config = make_config(num_samples=50 if part_samples == 1 else 5000)
    done = convert(config, tmp_path / "out", part_samples=part_samples)
    source = open_log(config)
    back = open_log(ParquetLog(path=str(tmp_path / "out"), schema=source.schema))
    assert samples(back) == samples(source)
    assert done.num_samples == config.num_samples
    assert done.num_parts == -(-config.num_samples // part_samples)


def test_an_empty_log_converts_to_an_empty_file(tmp_path):
    """A log of no samples still says what its columns are."""
    done = convert(make_config(num_samples=0), tmp_path / "out")
    assert (done.num_samples, done.num_parts) == (0, 1)
    assert pq.read_table(tmp_path / "out" / "part-00000.parquet").num_rows == 0


def test_an_existing_folder_needs_a_word_U05(tmp_path):
    """Twice the same command is refused naming both options; resume leaves a complete folder alone; settings count."""
    convert(make_config(), tmp_path / "out")
    before = (tmp_path / "out" / "part-00000.parquet").stat().st_mtime_ns
    with pytest.raises(LogError, match="give --overwrite or --resume"):
        convert(make_config(), tmp_path / "out")
    assert convert(make_config(), tmp_path / "out", resume=True).num_samples == 5000
    assert (tmp_path / "out" / "part-00000.parquet").stat().st_mtime_ns == before
    with pytest.raises(LogError, match=r"seed = 0, got 4: give --overwrite, or --resume with the same"):
        convert(make_config(seed=4), tmp_path / "out", resume=True)
    convert(make_config(seed=4), tmp_path / "out", overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    (tmp_path / "other").mkdir()
    with pytest.raises(LogError, match=r"expected the settings of a conversion .*, got none: give --overwrite"):
        convert(make_config(), tmp_path / "other", resume=True)


def test_a_failed_source_leaves_the_old_folder_F12(tmp_path):
    """An overwrite whose source breaks off leaves the old folder whole."""
    config = make_config()
    convert(config, tmp_path / "out")
    pq.write_table(pa.table({"session_key": [1]}), tmp_path / "bad.parquet")
    broken = ParquetLog(path=str(tmp_path / "bad.parquet"), schema=open_log(config).schema)
    with pytest.raises(LogError, match="expected this column"):
        convert(broken, tmp_path / "out", overwrite=True)
    assert convert(config, tmp_path / "out", resume=True).num_samples == 5000


KILLED = """
import os, signal, sys
from pathlib import Path
from recoup.core import from_table, to_table
from recoup.log import ConvertOptions, SyntheticLog, convert_log, open_log
import json
config = from_table(SyntheticLog, json.loads(sys.argv[1]))
after = int(sys.argv[3])
def progress(task, done, total):
    if done > after:
        os.kill(os.getpid(), signal.SIGKILL)
convert_log(open_log(config), to_table(config), Path(sys.argv[2]), ConvertOptions(part_samples=9000), progress)
"""


def test_a_killed_conversion_resumes(tmp_path):
    """Kill -9 leaves no target; finished parts are kept and the resumed folder equals one made at once."""
    config = make_config(num_samples=40_000)
    command = [sys.executable, "-c", KILLED, json.dumps(to_table(config)), str(tmp_path / "out"), "30000"]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    parts = list((tmp_path / ".out.building").glob("part-*.parquet"))
    assert len(parts) == 2
    stamps = {path.name: path.stat().st_mtime_ns for path in parts}
    convert(config, tmp_path / "out", part_samples=9000, resume=True)
    assert all((tmp_path / "out" / name).stat().st_mtime_ns == stamp for name, stamp in stamps.items())
    back = open_log(ParquetLog(path=str(tmp_path / "out"), schema=open_log(config).schema))
    assert samples(back) == samples(open_log(config))
    assert not list(tmp_path.glob(".out*"))


def recoup(*arguments):
    return subprocess.run(
        [sys.executable, "-c", "from recoup.cli.main import main; main()", "log", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_lists_and_converts(tmp_path):
    """`list` names formats and a log's columns; `convert` writes the folder; an override changes the settings."""
    (tmp_path / "run.toml").write_text(to_toml(TableRecipe(log=make_config())))
    kinds = recoup("list").stdout
    assert all(kind in kinds for kind in ("recbole", "kuairand", "criteo", "synthetic"))
    listed = recoup("list", tmp_path / "run.toml").stdout
    assert "key      session_key (int64)" in listed
    assert "group g: f_0, f_1" in listed
    done = recoup("convert", tmp_path / "run.toml", tmp_path / "out", "--set", "log.num_samples=123")
    assert re.search(r"^123 samples, 1 parts", done.stdout, re.MULTILINE)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["convert", "{run}", "{out}", "--set", "log.nam=1"], "error: .*unknown key 'nam'"),
        (["convert", "{run}", "{out}", "--set", "log.kind=parquett"], "error: .*expected kind one of .*'parquett'"),
        (["convert", "{no}", "{out}"], "error: expected a TOML configuration file at"),
        (["convert", "{run}", "{out}", "--overwrit"], "No such option"),
        (["convert", "{run}", "{out}", "--resume", "False"], "unexpected extra argument"),
    ],
)
def test_the_command_refuses_mistakes_U03(tmp_path, arguments, message):
    """A misspelt key, kind or option, a missing file and a value for a flag end with an error and write nothing."""
    (tmp_path / "run.toml").write_text(to_toml(TableRecipe(log=make_config())))
    places = {"run": tmp_path / "run.toml", "out": tmp_path / "out", "no": tmp_path / "no.toml"}
    done = recoup(*(argument.format(**places) for argument in arguments))
    assert done.returncode != 0
    assert re.search(message, done.stderr)
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_the_command_names_a_damaged_file_F08(tmp_path):
    """A cut file ends the command with one line that names it and exit code 1."""
    config = make_config(num_samples=3000)
    convert(config, tmp_path / "log", part_samples=1000)
    victim = tmp_path / "log" / "part-00001.parquet"
    victim.write_bytes(victim.read_bytes()[:500])
    damaged = ParquetLog(path=str(tmp_path / "log"), schema=open_log(config).schema)
    (tmp_path / "run.toml").write_text(to_toml(TableRecipe(log=damaged)))
    done = recoup("convert", tmp_path / "run.toml", tmp_path / "out")
    assert done.returncode == 1
    assert "part-00001.parquet" in done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_the_command_knows_every_kind():
    """`recoup log list` names exactly the kinds of the configuration union."""
    kinds = {get_args(get_type_hints(config)["kind"])[0] for config in get_args(LogConfig)}
    assert {line.split()[0] for line in recoup("list").stdout.splitlines()} == kinds


def test_parts_are_cut_exactly():
    """Batches of any sizes are cut into parts of one size, rows in order."""
    from recoup.log.convert import _parts

    sizes = [3, 0, 5, 1, 7]
    numbers = itertools.count()
    batches = [
        pa.record_batch({"x": [next(numbers) for _ in range(size)]}, schema=pa.schema([("x", pa.int64())]))
        for size in sizes
    ]
    parts = [[row for batch in part for row in batch["x"].to_pylist()] for part in _parts(iter(batches), 4)]
    assert parts == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
