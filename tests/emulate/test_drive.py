"""A whole emulation: resumable at every line, the same records whatever the workers, honest comparisons."""

import json
import math
import shutil
from datetime import timedelta

import pytest

from recoup.core import ConfigError, from_table, to_table
from recoup.emulate import (
    NO_FAILURES,
    ClusterConfig,
    CriteoLikeData,
    EmulateConfig,
    EmulationError,
    FailureConfig,
    compare,
    emulate,
    read_records,
    split_work,
    wanted_runs,
)
from recoup.failures import GammaTrace
from tests.emulate.tiny import make_tiny

STRATEGIES = ("full", "naive_partial", "cpr_vanilla", "cpr_mfu", "cpr_ssu", "cpr_scar", "adagrad_change", "recoup")


def config(**overrides):
    base = {
        "data": CriteoLikeData(num_samples=800, scale=1e-4),
        "strategies": ("full", "cpr_vanilla", "cpr_mfu"),
        "pls": (0.1, 0.3),
        "num_seeds": 2,
        "batch_size": 16,
        "nodes": (8,),
        "mtbf_hours": (),
    }
    return EmulateConfig(**{**base, **overrides})


def facts(records):
    """Records without wall times, in a fixed order."""
    lines = [{k: v for k, v in record.items() if k != "seconds"} for record in records]
    return sorted(lines, key=lambda record: json.dumps(record, sort_keys=True))


def test_every_strategy_runs_and_full_recovery_costs_no_quality(tmp_path):
    """One record a run; full recovery's AUC equals the failure-free one to the bit; PLS is counted where it is lost."""
    settings = config(strategies=STRATEGIES, pls=(0.3,), num_seeds=1)
    records = emulate(settings, tmp_path / "run", make_learner=make_tiny)
    runs = {record["strategy"]: record for record in records if record["kind"] == "run"}
    assert set(runs) == {NO_FAILURES, *STRATEGIES}
    assert runs["full"]["auc"] == runs[NO_FAILURES]["auc"]
    assert runs["full"]["pls"] == 0
    for name in STRATEGIES[2:]:
        assert runs[name]["num_failures"] == runs[name]["num_partial"] > 0
        assert runs[name]["pls"] > 0
    assert runs["cpr_mfu"]["effective_pls"] < runs["cpr_vanilla"]["effective_pls"]
    assert runs["full"]["overhead"]["lost"] > 0 == runs["cpr_mfu"]["overhead"]["lost"]
    clock = [record for record in records if record["kind"] == "clock"]
    assert len(clock) == len(STRATEGIES)


def test_resumed_emulation_equals_an_uninterrupted_one(tmp_path):
    """Cut after any line (or within one), resuming gives the records of an uninterrupted emulation."""
    whole = emulate(config(), tmp_path / "whole", make_learner=make_tiny)
    lines = (tmp_path / "whole" / "results.jsonl").read_text().splitlines(keepends=True)
    for kept in (0, 7):
        folder = tmp_path / f"cut{kept}"
        shutil.copytree(tmp_path / "whole", folder)
        (folder / "results.jsonl").write_text("".join(lines[:kept]) + lines[kept][:20])
        resumed = emulate(config(), folder, make_learner=make_tiny, existing="resume")
        assert facts(resumed) == facts(whole)


def test_workers_give_the_same_records(tmp_path):
    """Two processes give the records that one gives."""
    settings = config(num_seeds=2, pls=(0.3,), strategies=("cpr_mfu",))
    one = emulate(settings, tmp_path / "one", make_learner=make_tiny)
    two = emulate(settings, tmp_path / "two", make_learner=make_tiny, workers=2)
    assert facts(two) == facts(one)


def test_existing_folder_is_refused_and_both_ways_are_named_U05(tmp_path):
    """A folder with results is refused; the message names --resume and --overwrite; another configuration too."""
    small = config(num_seeds=1, pls=(0.3,), strategies=("cpr_mfu",))
    emulate(small, tmp_path, make_learner=make_tiny)
    with pytest.raises(EmulationError, match="--resume or drop it with --overwrite"):
        emulate(small, tmp_path, make_learner=make_tiny)
    other = config(num_seeds=1, pls=(0.2,), strategies=("cpr_mfu",))
    with pytest.raises(EmulationError, match="another configuration: use --overwrite"):
        emulate(other, tmp_path, make_learner=make_tiny, existing="resume")
    records = emulate(other, tmp_path, make_learner=make_tiny, existing="overwrite")
    assert {record["pls_budget"] for record in records} == {0.0, 0.2}


def test_comparison_is_paired_by_seed():
    """The drop is the mean of differences to the failure-free run of the same seed, with its standard error."""
    rows = [(0, NO_FAILURES, 0.8), (1, NO_FAILURES, 0.6), (0, "cpr_mfu", 0.79), (1, "cpr_mfu", 0.57)]
    common = {"kind": "run", "log_loss": 0.5, "pls": 0.1, "effective_pls": 0.01, "overhead_formula": 0.1}
    records = [
        common | {"seed": s, "strategy": n, "pls_budget": 0.0, "auc": a, "overhead": {"total": 0.2}} for s, n, a in rows
    ]
    (found,) = compare(records)
    assert found.auc_drop == pytest.approx(0.02)
    assert found.auc_drop_error == pytest.approx(0.01)
    assert not found.within_one_error
    assert math.isnan(compare(records[:1] + records[2:3])[0].auc_drop_error)


def test_work_is_split_by_seed():
    """Every run is in exactly one piece, a piece has one seed, and there is a piece for each worker."""
    keys = wanted_runs(config())
    for workers in (1, 2, 3, 5):
        pieces = split_work(keys, workers)
        assert sorted(key for piece in pieces for key in piece) == sorted(keys)
        assert all(len({key.seed for key in piece}) == 1 for piece in pieces)
        assert len(pieces) >= min(workers, 2)


def test_configuration_survives_toml_and_refuses_nonsense(tmp_path):
    """from_table(to_table(c)) equals c; unknown strategies and impossible values are refused."""
    settings = config(cluster=ClusterConfig(mtbf=timedelta(hours=3)))
    assert from_table(EmulateConfig, to_table(settings)) == settings
    for wrong, message in (
        ({"strategies": ("cpr",)}, "expected strategies of"),
        ({"pls": (0.0,)}, "expected budgets above 0"),
        ({"strategies": ("recoup_spare",)}, "needs cluster.spare"),
    ):
        with pytest.raises(ConfigError, match=message):
            config(**wrong)
    assert isinstance(FailureConfig(distribution="gamma", shape=0.5).trace(timedelta(hours=1)), GammaTrace)
    with pytest.raises(ConfigError, match=r"needs failures\.recording"):
        FailureConfig(distribution="recorded").trace(timedelta(hours=1))
    assert read_records(tmp_path / "none.jsonl") == []


def test_recorded_trace_is_followed(tmp_path):
    """A recording's failures, several shards at once, are what the run meets, and what its ledger counts."""
    (tmp_path / "trace.csv").write_text("time,shards\n20h,0;1;2\n90h,5\n")
    failures = FailureConfig(distribution="recorded", recording=tmp_path / "trace.csv")
    settings = config(strategies=("cpr_vanilla",), pls=(0.1,), num_seeds=1, failures=failures)
    records = emulate(settings, tmp_path / "run", make_learner=make_tiny)
    (run,) = (record for record in records if record["strategy"] == "cpr_vanilla")
    assert (run["num_failures"], run["num_partial"]) == (2, 2)
    interval = run["save_interval_seconds"] / 3600
    expected = (3 * (20 % interval) + (90 - 0.1) % interval) / (140 * 8)
    assert run["pls"] == pytest.approx(expected, abs=0.02)
    assert not any(record["kind"] == "clock" for record in records)
