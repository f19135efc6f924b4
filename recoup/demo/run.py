"""Run the demo's stages in a folder, resumable stage by stage, and summarise them."""

import json
import shutil
from pathlib import Path
from typing import Any

from recoup.core import Progress, no_progress, to_table, write_json_atomic
from recoup.demo.errors import DemoError
from recoup.demo.stages import STAGES, DemoConfig, check_losses
from recoup.report import Summary, plot_lines, summary_table, write_html, write_markdown

RESULTS = "demo.json"


def run_demo(
    folder: Path,
    config: DemoConfig,
    *,
    overwrite: bool = False,
    resume: bool = False,
    progress: Progress = no_progress,
) -> list[Summary]:
    """Run what is not done yet and return the summary's tables; the folder also gets `summary.html` and plots.

    Args:
        folder: of the demo; created.
        config: epochs and seed.
        overwrite: remove an earlier demo in the folder.
        resume: go on with one: finished stages are taken as they are.
        progress: of the stage under way.
    Raises:
        DemoError: the folder is taken, or another configuration is resumed, or the two loss curves disagree.
    """
    results = _open(folder, config, overwrite=overwrite, resume=resume)
    for stage in STAGES:
        if stage.name not in results["stages"]:
            results["stages"][stage.name] = stage.run(folder, config, progress)
            write_json_atomic(folder / RESULTS, results)
    done = results["stages"]
    difference = check_losses(done)
    summaries = [_sizes(done), _factors(done), _speed(done), _quality(done, difference), _failure(done)]
    steps = range(1, len(done["dedup"]["losses"]) + 1)
    curves = {name: (list(steps), done[key]["losses"]) for name, key in (("deduplicated", "dedup"), ("plain", "plain"))}
    plot_lines(folder / "losses.png", curves, "Loss of every step, the same batches", x="step", y="log loss")
    sections = [*summaries, folder / "losses.png"]
    write_html(folder / "summary.html", "recoup demo", sections)
    write_markdown(folder / "summary.md", "recoup demo", summaries)
    return summaries


def _open(folder: Path, config: DemoConfig, *, overwrite: bool, resume: bool) -> dict[str, Any]:
    path = folder / RESULTS
    if folder.exists() and any(folder.iterdir()):
        if not path.is_file():
            raise DemoError(f"expected an empty folder or an earlier demo in '{folder}', got other files")
        if resume and overwrite:
            raise DemoError("expected --resume or --overwrite, got both")
        if not resume and not overwrite:
            raise DemoError(f"'{folder}' holds a demo: use --resume to go on with it, or --overwrite to start anew")
        if resume:
            saved: dict[str, Any] = json.loads(path.read_bytes())
            if saved["config"] != to_table(config):
                raise DemoError(
                    f"the demo in '{folder}' ran with {saved['config']}, got {to_table(config)}: --overwrite"
                )
            return saved
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"config": to_table(config), "stages": {}}
    write_json_atomic(path, results)
    return results


def _sizes(done: dict[str, Any]) -> Summary:
    table = done["table"]
    rows = [
        ("row a sample, time order", table["row_bytes"], 1.0),
        ("row a sample, clustered by session", table["clustered_bytes"], table["row_bytes"] / table["clustered_bytes"]),
        ("session table", table["table_bytes"], table["row_bytes"] / table["table_bytes"]),
    ]
    counts = table["counts"]
    note = f"{counts['samples']} samples of MovieLens-100k in {counts['sessions']} sessions; zstd Parquet throughout"
    return summary_table("The same samples on disk", ("layout", "bytes", "times smaller"), rows, note)


def _factors(done: dict[str, Any]) -> Summary:
    batch = done["readers"]["batch_factors"]
    rows = [
        (g["name"], ", ".join(g["features"]), g["predicted_factor"], g["measured_factor"], batch.get(g["name"]))
        for g in done["table"]["groups"]
    ]
    note = "samples a unique row; in a batch the IID guard allows at most 8 samples a session"
    return summary_table("Dedup factor by group", ("group", "features", "formula", "table", "batch"), rows, note)


def _speed(done: dict[str, Any]) -> Summary:
    rate, ids = done["readers"]["samples_per_second"], done["readers"]["ids_per_batch"]
    steps = {name: done[key]["step_seconds"] * 1000 for name, key in (("deduplicated", "dedup"), ("plain", "plain"))}
    rows = [
        ("reader, samples/s", rate["deduplicated"], rate["plain"], rate["deduplicated"] / rate["plain"]),
        ("IDs a batch", ids["deduplicated"], ids["plain"], ids["plain"] / ids["deduplicated"]),
        ("training step, ms", steps["deduplicated"], steps["plain"], steps["plain"] / steps["deduplicated"]),
    ]
    note = (
        "plain reader: row-per-sample Parquet to KJT by vectorised pyarrow, in file order; ours shuffles sessions. "
        "A model this small spends its step on overhead, not on look-ups: see the benches for sizes that matter"
    )
    return summary_table("Speed", ("", "deduplicated", "plain", "ratio"), rows, note)


def _quality(done: dict[str, Any], difference: float) -> Summary:
    base = done["table"]["baselines"]
    rows = [
        ("film's mean label", base["film_mean"], None, None),
        ("film's and user's mean label", base["film_and_user_mean"], None, None),
        *(
            (name, m["auc"], m["normalized_entropy"], m["calibration"])
            for name, m in (("DLRM, deduplicated", done["dedup"]["metrics"]), ("DLRM, plain", done["plain"]["metrics"]))
        ),
    ]
    steps = done["dedup"]["num_steps"]
    note = f"last 20 % by time; losses of all {steps} steps differ by at most {difference:.2g}"
    return summary_table("Quality on the test part", ("model", "AUC", "norm. entropy", "calibration"), rows, note)


def _failure(done: dict[str, Any]) -> Summary:
    failure, plain = done["failure"], done["dedup"]["metrics"]
    rows = [
        ("shard lost after step", failure["step"]),
        ("recovery", failure["decision"]),
        ("because", failure["reason"]),
        ("rows lost", failure["rows_lost"]),
        ("restored from the checkpoint of step", failure["checkpoint_step"]),
        ("survivors' rows changed", failure["survivors_changed"]),
        ("portion of lost samples (PLS)", failure["pls"]),
        ("AUC at the end", failure["metrics"]["auc"]),
        ("AUC without the failure", plain["auc"]),
        ("AUC that it cost", plain["auc"] - failure["metrics"]["auc"]),
    ]
    note = "1 of 8 emulated embedding shards; a negative cost is chance: one run, one seed"
    return summary_table("One shard lost in mid-training", ("", "value"), rows, note)
