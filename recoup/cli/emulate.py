"""`recoup emulate`: every way to save and recover, on one failure trace, with real training."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recoup.core import ConfigError

if TYPE_CHECKING:
    from recoup.emulate import Comparison
    from recoup.report import Summary

EXAMPLE = "Example: recoup emulate recipes/emulate_synthetic.toml --out runs/emulate --set num_seeds=2"


def emulate(
    config: Annotated[Path, typer.Argument(help="TOML file: data, cluster, failures, strategies.")],
    out: Annotated[Path, typer.Option(help="Folder for results and figures.")] = Path("runs/emulate"),
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Override: key.path=value.")] = None,
    workers: Annotated[int, typer.Option(help="Processes; each takes whole seeds.")] = 1,
    overwrite: Annotated[bool, typer.Option("--overwrite/--no-overwrite", help="Drop earlier results.")] = False,
    resume: Annotated[bool, typer.Option("--resume/--no-resume", help="Run only what is missing.")] = False,
) -> None:
    """Compare recoveries by overhead and quality; write results.jsonl, figures and a page."""
    from rich.console import Console

    from recoup.cli.progress import progress_bars
    from recoup.core import load_config
    from recoup.emulate import EmulateConfig, compare, make_trainer
    from recoup.emulate import emulate as run

    if overwrite and resume:
        raise ConfigError("expected --resume or --overwrite, got both")
    settings = load_config(EmulateConfig, config, overrides or ())
    with progress_bars() as progress:
        records = run(
            settings,
            out,
            make_learner=make_trainer,
            workers=workers,
            existing="overwrite" if overwrite else "resume" if resume else "refuse",
            progress=progress,
        )
    table = quality_table(compare(records), records)
    Console().print(table.rich())
    typer.echo(f"results in {out / 'results.jsonl'}, page in {write_page(out, records, table)}")


emulate.__doc__ = f"{emulate.__doc__}\n\n{EXAMPLE}"


def quality_table(found: Sequence["Comparison"], records: Sequence[Mapping[str, Any]]) -> "Summary":
    """Return AUC drop, PLS and overhead by strategy and budget."""
    from recoup.report import summary_table

    columns = ["strategy", "budget", "AUC drop ± error", "PLS", "effective", "overhead", "formula"]
    rows = [
        [
            c.strategy,
            c.pls_budget or None,
            f"{c.auc_drop:.5f} ± {c.auc_drop_error:.5f}",
            f"{c.pls:.4f}",
            f"{c.effective_pls:.4f}",
            f"{100 * c.overhead:.2f} %",
            f"{100 * c.overhead_formula:.2f} %",
        ]
        for c in found
    ]
    seeds = max(c.num_seeds for c in found)
    runs = [record for record in records if record["kind"] == "run"]
    data = f"{runs[0]['dataset']}{' (synthetic data)' if runs[0]['synthetic'] else ''}"
    note = f"AUC drop against the failure-free run of the same seed and order; mean and standard error of {seeds} seeds"
    return summary_table(f"Recovery and quality on {data}", columns, rows, note=note)


def write_page(out: Path, records: Sequence[Mapping[str, Any]], table: "Summary") -> Path:
    """Draw every figure and write the page that holds them; return its path."""
    from recoup.emulate import compare
    from recoup.planner import Overhead
    from recoup.report import (
        PARTS,
        Section,
        plot_bars,
        plot_lines,
        plot_overhead_breakdown,
        plot_pls_against_auc_drop,
        write_html,
    )

    found = compare(records)
    figures: list[Section] = []
    middle = sorted({c.pls_budget for c in found})[-1:]
    shown = {c.strategy: c for c in found if c.pls_budget in (0.0, *middle)}
    runs = [record for record in records if record["kind"] == "run" and record["strategy"] in shown]
    overheads: dict[str, Overhead] = {}
    for name, comparison in shown.items():
        mine = [r for r in runs if r["strategy"] == name and r["pls_budget"] == comparison.pls_budget]
        means = {part: sum(r["overhead"][part] for r in mine) / len(mine) for part in PARTS}
        overheads[name] = Overhead(
            save=means["save"], load=means["load"], lost=means["lost"], reschedule=means["reschedule"]
        )
    figures.append(out / "overhead_breakdown.png")
    plot_overhead_breakdown(out / "overhead_breakdown.png", overheads)
    points: dict[str, list[tuple[float, float]]] = {}
    for comparison in found:
        points.setdefault(comparison.strategy, []).extend(comparison.pairs)
    figures.append(out / "pls_against_auc_drop.png")
    plot_pls_against_auc_drop(out / "pls_against_auc_drop.png", points)
    figures.append(out / "auc_drop_by_policy.png")
    drops = {f"{c.strategy}\n{c.pls_budget or ''}": (c.auc_drop, c.auc_drop_error) for c in found}
    plot_bars(out / "auc_drop_by_policy.png", drops, "AUC drop by policy and PLS budget", "AUC drop")
    figures.append(out / "auc_by_policy.png")
    quality = {f"{c.strategy}\n{c.pls_budget or ''}": (c.auc, c.auc_drop_error) for c in found}
    plot_bars(out / "auc_by_policy.png", quality, "AUC by policy (error: of the drop)", "AUC", from_zero=False)
    for axis, label in (("nodes", "number of shards"), ("mtbf_hours", "MTBF (hours)")):
        series = clock_series(records, axis)
        if series:
            path = out / f"overhead_against_{axis}.png"
            plot_lines(path, series, f"Overhead against {label}", x=label, y="overhead (% of training time)")
            figures.append(path)
    write_html(out / "index.html", "Recovery emulated", [table, *figures])
    return out / "index.html"


def clock_series(records: Sequence[Mapping[str, Any]], axis: str) -> dict[str, tuple[list[float], list[float]]]:
    """Return (values of the axis, overhead in per cent) by strategy, from the clock-only records."""
    series: dict[str, tuple[list[float], list[float]]] = {}
    for record in records:
        if record["kind"] == "clock" and record["axis"] == axis:
            xs, ys = series.setdefault(record["strategy"], ([], []))
            xs.append(record["value"])
            ys.append(100 * record["overhead"]["total"])
    return series
