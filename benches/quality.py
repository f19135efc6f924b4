"""Quality under failures: AUC drops of every strategy, paired with the failure-free run of the same seed and order."""

import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from recoup.emulate import (
    NO_FAILURES,
    ClusterConfig,
    CriteoLikeData,
    EmulateConfig,
    LogData,
    RunKey,
    load_dataset,
    make_trainer,
    mean_and_error,
    prepare,
    run_one,
    split_work,
    wanted_runs,
)
from recoup.log import KuaiRandLog

KUAIRAND = Path(__file__).parents[2] / "shared" / "data" / "kuairand"
KUAIRAND_FEATURES = (
    *("user_id", "video_id", "author_id", "music_id", "tag", "tab", "music_type", "video_type", "upload_type"),
    *("user_active_degree", "onehot_feat1", "onehot_feat2", "onehot_feat3", "onehot_feat7", "onehot_feat8"),
)
QUICK = ("cpr_vanilla", "cpr_scar", "cpr_mfu", "cpr_ssu", "adagrad_change", "stale_use", "recoup")
FULL = ("full", "naive_partial", *QUICK)

Record = dict[str, Any]


def configurations(*, quick: bool, stall: float, restart: float | None) -> dict[str, EmulateConfig]:
    """Return what is run on each data set that is here; KuaiRand is left out where its folder is absent."""
    spare = None if restart is None else timedelta(seconds=restart)
    cluster = ClusterConfig(save_stall_fraction=stall, spare=spare)
    names = QUICK if quick else FULL
    base = EmulateConfig(
        data=CriteoLikeData(num_samples=60_000 if quick else 120_000),
        cluster=cluster,
        strategies=names if restart is None else (*names, "recoup_spare"),
        pls=(0.1,) if quick else (0.02, 0.1, 0.3),
        num_seeds=3 if quick else 12,  # one seed's drop scatters by 0.0003 whatever is lost
        batch_size=512 if quick else 256,
    )
    found = {"criteo_like": base}
    if KUAIRAND.exists():
        log = LogData(
            log=KuaiRandLog(path=str(KUAIRAND)),
            features=KUAIRAND_FEATURES,
            num_samples=60_000 if quick else None,
        )
        found["kuairand"] = replace(base, data=log, batch_size=512)
    return found


def run_all(configs: dict[str, EmulateConfig], workers: int) -> dict[str, list[Record]]:
    """Run every configuration in one process pool; return records by data set."""
    pieces = [(name, piece) for name, config in configs.items() for piece in split_work(wanted_runs(config), 1)]
    records: dict[str, list[Record]] = {name: [] for name in configs}
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        futures = [(name, pool.submit(run_piece, configs[name], piece)) for name, piece in pieces]
        for name, future in futures:
            records[name] += future.result()
    return records


def run_piece(config: EmulateConfig, keys: Sequence[RunKey]) -> list[Record]:
    """Run keys of one seed in this process; check first that a run repeated gives the same bits."""
    import torch

    torch.set_num_threads(1)
    bench = prepare(config, load_dataset(config.data), keys[0].seed, make_trainer)
    records = [run_one(bench, key) for key in keys]
    by_name = {record["strategy"]: record for record in records}
    if "full" in by_name:
        assert by_name["full"]["auc"] == by_name[NO_FAILURES]["auc"], "full recovery must lose nothing"
    return records


def gains_over_vanilla(records: Sequence[Record]) -> dict[tuple[str, float], tuple[float, float]]:
    """Return, by strategy and budget, AUC above CPR-vanilla at the same budget: paired mean and standard error."""
    vanilla = {(r["seed"], r["pls_budget"]): r["auc"] for r in records if r["strategy"] == "cpr_vanilla"}
    gains: dict[tuple[str, float], list[float]] = {}
    for record in records:
        at = (record["seed"], record["pls_budget"])
        if record["strategy"] not in (NO_FAILURES, "cpr_vanilla") and at in vanilla:
            gains.setdefault((record["strategy"], record["pls_budget"]), []).append(record["auc"] - vanilla[at])
    return {key: mean_and_error(values) for key, values in gains.items()}


T_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26, 11: 2.23, 12: 2.20}
"""Student's t at 95 %, two-sided, by number of seeds."""


def verdict(gain: float, error: float, seeds: int) -> str:
    """Return what a paired gain over vanilla says; `clearly` only beyond the 95 % interval of so few seeds."""
    if math.isnan(error) or abs(gain) <= error:
        return "no different"
    strength = "clearly " if abs(gain) > T_95.get(seeds, 2.0) * error else ""
    return f"{strength}{'better' if gain > 0 else 'worse'}"
