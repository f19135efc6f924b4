"""What a save costs training, and what tracking costs a step.

    python -m benches.checkpoint [--quick] [--kills N]

State: two large tables and a small one, dim 64, with row-wise Adagrad's momentum, in 8 shards by hash, and a dense
part. Recoup's asynchronous priority save (r = 1/8 of the large tables by MFU, the small table and the dense part
whole) stalls training for the choice of rows, the copy, and the tracker's note of them; the rest is written behind.
Beside it the same in the emulator's own setting of Recoup (r = 1/32 by stale use): its stall over its share, in bytes,
of a whole synchronous save is `stall_fraction`, which `benches.emulate` reads.
The peer is torch's DCP of the same state: its synchronous save (the whole stalls), and beside it its `async_save`. All
saves are equal to the live state before anything is timed; both flush to disk; medians of alternating rounds.

Tracking: MFU and SSU see every step of a real DLRM (`recoup.train.Trainer`; 26 tables, cardinalities of Criteo Kaggle
scaled, MLPs and dim of DLRM's public Kaggle setting, batch 2048, synthetic data), on the tables that a policy tracks:
the fewest that hold 99 % of the rows. `tracker_overhead` is the worse of both, telling rows by table included, in
processor time on one thread, so that neighbours on the machine do not count; `observe_share_*` leaves the telling out.

`--kills N` kills (-9) N processes that save in a loop instead, and restores after each; then nothing is timed.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from rich.console import Console
from torch import Tensor

from benches.kills import kill_savers
from recoup.checkpoint import CheckpointStore, Manifest, PendingSave, SaveRequest, ShardPlan, StoreConfig, TableView
from recoup.checkpoint.policies import MFU, SAVE_FRACTION, SSU, RowPolicy, StaleUse, large_tables, priority_rows
from recoup.emulate.criteo_like import CriteoLikeData, criteo_like
from recoup.emulate.samples import plain_batches
from recoup.emulate.strategy import RECOUP_FRACTION
from recoup.jagged import Batch
from recoup.model import DLRMConfig, EmbeddingTable
from recoup.report import summary_table
from recoup.train import TrainConfig, Trainer

RESULTS = Path(__file__).parent / "results"
DIM = 64
SHARDS = 8
BATCH_SIZE = 2048


def main() -> None:
    """Check, measure, print, and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smaller state and fewer rounds, under 50 s")
    parser.add_argument("--kills", type=int, default=0, help="kill so many saving processes instead")
    options = parser.parse_args()
    if options.kills:
        print(json.dumps(kill_savers(options.kills)))
        return
    began = time.perf_counter()
    console = Console(width=140)
    found = measure_saves(400_000 if options.quick else 2_000_000, rounds=5 if options.quick else 9, console=console)
    found |= {"quick": options.quick, "torch": torch.__version__, "threads": torch.get_num_threads()}
    found |= measure_trackers(24 if options.quick else 120, console=console)
    found["seconds"] = time.perf_counter() - began
    line = json.dumps(found)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "checkpoint.json").write_text(line + "\n", encoding="utf-8")
    print(line)


# Saves


def make_state(num_rows: int) -> tuple[dict[str, TableView], dict[str, Tensor]]:
    """Return tables of `num_rows`, half and a hundredth of that, and dense tensors of 2 MB."""
    generator = torch.Generator().manual_seed(0)
    sizes = {"large": num_rows, "medium": num_rows // 2, "small": num_rows // 100}
    views = {
        name: TableView(
            name=name,
            weight=torch.randn(rows, DIM, generator=generator),
            optimizer={"momentum1": torch.rand(rows, generator=generator)},
            first_row=0,
            num_rows_total=rows,
        )
        for name, rows in sizes.items()
    }
    return views, {f"mlp.{i}": torch.randn(256, 512, generator=generator) for i in range(4)}


class Ours:
    """Recoup's store and tracker on the state."""

    def __init__(self, folder: Path, views: Mapping[str, TableView], dense: Mapping[str, Tensor]) -> None:
        self.views, self.dense = views, dense
        self.sizes = {name: view.num_rows_total for name, view in views.items()}
        large = {name: self.sizes[name] for name in large_tables(self.sizes)}
        self.policies: dict[float, RowPolicy] = {SAVE_FRACTION: MFU(large), RECOUP_FRACTION: StaleUse(large)}
        self.store = CheckpointStore(str(folder), "bench", ShardPlan.by_hash(self.sizes, SHARDS), config=StoreConfig())
        self.generator = torch.Generator().manual_seed(1)
        self.step = 0
        self.stall = 0.0

    def train(self) -> None:
        """Touch a quarter of the rows, unevenly."""
        self.step += 1
        for name, view in self.views.items():
            rows = view.num_rows_total
            skewed = (torch.rand(rows // 2, generator=self.generator) ** 3 * rows).long()
            for policy in self.policies.values():
                policy.observe(name, skewed)
            view.weight[skewed.unique()] += 0.01

    def save_whole(self) -> Manifest:
        return self.store.save(SaveRequest(step=self.step, views=self.views, dense=self.dense))

    def start_priority(self, fraction: float = SAVE_FRACTION) -> PendingSave:
        """Start a priority save of r = `fraction`; `stall` is how long training stood still."""
        policy = self.policies[fraction]
        began = time.perf_counter()
        rows = priority_rows(policy, self.views, fraction=fraction)
        pending = self.store.start_save(SaveRequest(step=self.step, views=self.views, dense=self.dense, rows=rows))
        for name, chosen in rows.items():
            policy.saved(name, chosen)
        self.stall = time.perf_counter() - began
        self.rows = rows
        return pending


def measure_saves(num_rows: int, *, rounds: int, console: Console) -> dict[str, Any]:
    """Measure stalls and bytes of saves against DCP's."""
    views, dense = make_state(num_rows)
    state = {f"{n}.{part}": rows for n, view in views.items() for part, rows in view.parts().items()} | dense
    keys = ("ours", "behind", "own", "own_behind", "whole", "dcp", "dcp_async", "dcp_behind")
    times: dict[str, list[float]] = {key: [] for key in keys}
    with tempfile.TemporaryDirectory(prefix="recoup-bench-checkpoint-") as name:
        folder = Path(name)
        ours = Ours(folder / "recoup", views, dense)
        check_equal(ours, folder, state)
        sizes: dict[str, list[int]] = {"delta": [], "own": [], "whole": []}
        for number in range(rounds):
            ours.train()
            times["whole"].append(timed(lambda: sizes["whole"].append(written(ours.save_whole(), ours.step))))
            ours.train()
            began = time.perf_counter()
            pending = ours.start_priority()
            times["ours"].append(ours.stall)
            sizes["delta"].append(written(pending.result(), ours.step))
            times["behind"].append(time.perf_counter() - began - ours.stall)
            ours.train()
            began = time.perf_counter()
            pending = ours.start_priority(RECOUP_FRACTION)
            times["own"].append(ours.stall)
            sizes["own"].append(written(pending.result(), ours.step))
            times["own_behind"].append(time.perf_counter() - began - ours.stall)
            target = folder / f"dcp{number}"
            times["dcp"].append(timed(lambda target=target: dcp.save(state, checkpoint_id=target, no_dist=True)))
            stall, whole = dcp_async(state, folder / f"dcp{number}-async")
            times["dcp_async"].append(stall)
            times["dcp_behind"].append(whole - stall)
            remove(target)
            remove(folder / f"dcp{number}-async")
        ours.store.close()
    mid = {key: statistics.median(values) for key, values in times.items()}
    ratios = [peer / own for peer, own in zip(times["dcp"], times["ours"], strict=True)]
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    whole = statistics.median(sizes["whole"])
    share, own_share = statistics.median(sizes["delta"]) / whole, statistics.median(sizes["own"]) / whole
    rows = [
        ["Recoup, asynchronous, MFU, r = 1/8", mid["ours"], mid["behind"], statistics.median(sizes["delta"]) / 1e6],
        [
            "Recoup, asynchronous, stale use, r = 1/32",
            mid["own"],
            mid["own_behind"],
            statistics.median(sizes["own"]) / 1e6,
        ],
        ["Recoup, whole save, synchronous", mid["whole"], 0.0, statistics.median(sizes["whole"]) / 1e6],
        ["torch DCP, save, synchronous", mid["dcp"], 0.0, num_bytes / 1e6],
        ["torch DCP, async_save", mid["dcp_async"], mid["dcp_behind"], num_bytes / 1e6],
    ]
    note = f"{num_bytes / 1e6:.0f} MB of state, {rounds} rounds, medians; DCP's bytes are those of the state"
    columns = ["save", "training stalls, s", "written behind, s", "MB"]
    console.print(summary_table("Stall of one save", columns, rows, note=note).rich())
    return {
        "stall_ratio_vs_dcp": mid["dcp"] / mid["ours"],
        "stall_ratio_vs_dcp_least": min(ratios),
        "stall_ratio_vs_dcp_async": mid["dcp_async"] / mid["ours"],
        "bytes_ratio_vs_full": share,
        "bytes_ratio_vs_full_own": own_share,
        # As benches.emulate uses it: the stall over the save's share, in bytes, of a whole synchronous save.
        "stall_fraction": mid["own"] / (own_share * mid["whole"]),
        "stall_fraction_mfu": mid["ours"] / (share * mid["whole"]),
        "stall_fraction_of_dcp": mid["own"] / (own_share * mid["dcp"]),  # the same, over DCP's whole save
        "stall_over_full_save": mid["ours"] / mid["whole"],
        "stall_seconds": mid["ours"],
        "background_seconds": mid["behind"],
        "full_save_seconds": mid["whole"],
        "dcp_save_seconds": mid["dcp"],
        "dcp_async_stall_seconds": mid["dcp_async"],
        "state_bytes": num_bytes,
        "save_fraction": SAVE_FRACTION,
    }


def check_equal(ours: Ours, folder: Path, state: Mapping[str, Tensor]) -> None:
    """Assert that a restore of ours, delta included, and of DCP's gives the live state."""
    ours.train()
    ours.save_whole()
    expected = {key: tensor.clone() for key, tensor in state.items()}
    ours.train()
    ours.start_priority().result()
    for name, chosen in ours.rows.items():
        for part, live in ours.views[name].parts().items():
            expected[f"{name}.{part}"][chosen] = live[chosen]
    blank = {
        name: TableView(
            name=name,
            weight=torch.zeros_like(view.weight),
            optimizer={"momentum1": torch.zeros_like(view.optimizer["momentum1"])},
            first_row=0,
            num_rows_total=view.num_rows_total,
        )
        for name, view in ours.views.items()
    }
    found = ours.store.restore(blank)
    got = {f"{n}.{part}": rows for n, view in blank.items() for part, rows in view.parts().items()} | found.dense
    assert got.keys() == expected.keys()
    assert all(torch.equal(got[key], expected[key]) for key in expected)
    dcp.save(dict(state), checkpoint_id=folder / "check", no_dist=True)
    loaded = {key: torch.zeros_like(tensor) for key, tensor in state.items()}
    dcp.load(loaded, checkpoint_id=folder / "check", no_dist=True)
    assert all(torch.equal(loaded[key], state[key]) for key in state)
    dcp_async(state, folder / "check-async")  # warms its threads
    remove(folder / "check")
    remove(folder / "check-async")


def dcp_async(state: Mapping[str, Tensor], target: Path) -> tuple[float, float]:
    """Return the stall of DCP's asynchronous save and the time until it is written."""
    began = time.perf_counter()
    future: Any = dcp.async_save(dict(state), checkpoint_id=target, no_dist=True)
    stall = time.perf_counter() - began
    future.result()
    return stall, time.perf_counter() - began


def written(manifest: Manifest, step: int) -> int:
    """Return the bytes of the files that the save of `step` wrote."""
    return sum(entry.file.bytes for entry in manifest.entries if entry.step == step) + manifest.dense.bytes


def timed(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds of a call."""
    began = clock()
    work()
    return clock() - began


def remove(folder: Path) -> None:
    """Remove a flat folder."""
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


# Trackers


def make_training(steps: int) -> tuple[Trainer, list[Batch]]:
    """Return a trainer of DLRM's public Kaggle shape on the synthetic Criteo-like set, and its batches."""
    data = criteo_like(CriteoLikeData(num_samples=round(steps * BATCH_SIZE / 0.8) + BATCH_SIZE, scale=0.03))
    tables = tuple(
        EmbeddingTable(name=name, num_embeddings=rows, embedding_dim=16, features=(name,))
        for name, rows in data.num_rows.items()
    )
    model = DLRMConfig(tables=tables, bottom_mlp=(512, 256, 64, 16), top_mlp=(512, 256, 1), interaction="dot_concat")
    return Trainer(model, TrainConfig(seed=0), data.schema), plain_batches(data.train, BATCH_SIZE)[:steps]


def measure_trackers(steps: int, *, console: Console) -> dict[str, Any]:
    """Measure a step, and what MFU and SSU add to it, alternating step by step."""
    torch.set_num_threads(1)
    trainer, batches = make_training(steps + 6)
    sizes = {name: view.num_rows_total for name, view in trainer.table_views().items()}
    tracked = {name: sizes[name] for name in large_tables(sizes)}
    trackers: dict[str, RowPolicy] = {"mfu": MFU(tracked), "ssu": SSU(tracked)}
    times: dict[str, list[float]] = {key: [] for key in ("step", "ids", *trackers)}
    counted = {name: torch.zeros(rows, dtype=torch.int64) for name, rows in tracked.items()}
    for batch in batches:
        times["step"].append(timed(lambda batch=batch: trainer.step(batch), time.process_time))
        began = time.process_time()
        ids = trainer.ids_by_table(batch)
        times["ids"].append(time.process_time() - began)
        for key, tracker in trackers.items():
            times[key].append(timed(lambda tracker=tracker, ids=ids: observe(tracker, ids), time.process_time))
        for name, counts in counted.items():
            counts += torch.bincount(ids[name], minlength=counts.numel())
    for name, counts in counted.items():  # the tracker that was timed counted right
        assert torch.equal(trackers["mfu"].state_tensors()[f"MFU/{name}"].long(), counts)
    mid = {key: statistics.fmean(values[6:]) for key, values in times.items()}  # SSU looks at every other step: means
    shares = {key: (mid["ids"] + mid[key]) / mid["step"] for key in trackers}
    rows = [
        ["a step", mid["step"] * 1e3, None],
        ["rows by table", mid["ids"] * 1e3, mid["ids"] / mid["step"]],
        *([key.upper(), mid[key] * 1e3, mid[key] / mid["step"]] for key in trackers),
    ]
    note = f"26 tables of {sum(sizes.values())} rows, {len(tracked)} tracked, batch {BATCH_SIZE}, synthetic data"
    console.print(summary_table("Trackers", ["what", "ms a step", "of a step"], rows, note=note).rich())
    return {
        "tracker_overhead": max(shares.values()),
        "tracker_overhead_mfu": shares["mfu"],
        "tracker_overhead_ssu": shares["ssu"],
        "observe_share_mfu": mid["mfu"] / mid["step"],
        "observe_share_ssu": mid["ssu"] / mid["step"],
        "step_ms": mid["step"] * 1e3,
        "tracker_bytes_mfu": trackers["mfu"].num_bytes,
        "tracker_bytes_ssu": trackers["ssu"].num_bytes,
        "tracked_table_bytes": sum(rows * 17 * 4 for rows in tracked.values()),
    }


def observe(tracker: RowPolicy, ids: Mapping[str, Tensor]) -> None:
    """Show a step's rows to a tracker."""
    for name, rows in ids.items():
        tracker.observe(name, rows)


if __name__ == "__main__":
    main()
