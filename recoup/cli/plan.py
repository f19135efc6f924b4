"""`recoup plan`: which recovery, how often to save, what it costs."""

import json
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recoup.core import ConfigError, parse_duration

if TYPE_CHECKING:
    from recoup.planner import ClusterCosts, FailureTime, Recommendation

EXAMPLE = "Example: recoup plan --mtbf 14h --shards 8 --save 2m --load 5m --reschedule 10m --pls 0.02"


def plan(
    mtbf: Annotated[str, typer.Option(help="Mean time between failures of the whole job.")] = "",
    failures: Annotated[
        Path | None, typer.Option(help="CSV of observed failures (columns time, shards); estimates the MTBF.")
    ] = None,
    shards: Annotated[int, typer.Option(help="Shards of the embedding tables.")] = 8,
    save: Annotated[str, typer.Option(help="Time of one full save.")] = "2m",
    load: Annotated[str, typer.Option(help="Time to load all shards.")] = "5m",
    reschedule: Annotated[str, typer.Option(help="Time until a replacement is ready.")] = "10m",
    pls: Annotated[float, typer.Option(help="Budget: portion of lost samples.")] = 0.1,
    stall_fraction: Annotated[float, typer.Option(help="Part of a save that stops training; 1 = synchronous.")] = 1.0,
    plot: Annotated[Path | None, typer.Option(help="Write the curves to this PNG, SVG or PDF.")] = None,
    as_json: Annotated[bool, typer.Option("--json/--no-json", help="Print one JSON object instead.")] = False,
) -> None:
    """Recommend full or partial recovery and the save interval."""
    from recoup.planner import ClusterCosts, recommend

    if bool(mtbf) == (failures is not None):
        raise ConfigError("expected either --mtbf or --failures, got " + ("both" if mtbf else "neither"))
    observed = None if failures is None else observe(failures)
    if observed is not None and observed.num_failures == 0:
        raise ConfigError(f"expected failures in {failures}, got none: give --mtbf instead")
    costs = ClusterCosts(
        mtbf=parse_duration(mtbf) if observed is None else timedelta(seconds=observed.mtbf_seconds),
        num_shards=shards,
        save=parse_duration(save),
        load=parse_duration(load),
        reschedule=parse_duration(reschedule),
        save_stall_fraction=stall_fraction,
    )
    answer = recommend(costs, pls)
    if plot is not None:
        from recoup.report import plot_overhead_curves

        plot_overhead_curves(plot, costs, pls)
    if as_json:
        typer.echo(json.dumps(_plain(costs, answer, observed), indent=1))
    else:
        show(costs, answer, observed)


plan.__doc__ = f"{plan.__doc__}\n\n{EXAMPLE}"


def observe(path: Path) -> "FailureTime":
    """Estimate the MTBF from a recorded trace whose clock starts with the job."""
    from itertools import pairwise

    from recoup.failures import read_trace
    from recoup.planner import estimate_failure_time

    moments = sorted({0.0, *(failure.seconds for failure in read_trace(path))})
    return estimate_failure_time([after - before for before, after in pairwise(moments)], 1e-9)


def show(costs: "ClusterCosts", answer: "Recommendation", observed: "FailureTime | None") -> None:
    """Print the recommendation as tables."""
    from rich.console import Console

    from recoup.report import PARTS, summary_table

    partial_interval = answer.partial_save_interval_seconds
    ways = [("full", answer.full, answer.full_save_interval_seconds, 0.0)]
    if answer.partial is not None and partial_interval is not None:
        from recoup.planner import expected_pls

        ways.append(("partial", answer.partial, partial_interval, expected_pls(costs, partial_interval)))
    rows = [
        [name, _minutes(interval), *[_percent(getattr(o, part)) for part in PARTS], _percent(o.total), f"{lost:.3g}"]
        for name, o, interval, lost in ways
    ]
    columns = ["recovery", "every", "save", "load", "lost", "resched.", "total", "PLS"]
    console = Console()
    console.print(summary_table("Overhead over training time, to first order", columns, rows).rich())
    exact = _exact(costs, answer)
    if exact is not None:
        console.print(f"exact expectation under exponential failures: full {exact[0]}, partial {exact[1]}")
    if observed is not None:
        low, high = (f"{t / 3600:.3g} h" for t in observed.interval_seconds)
        console.print(f"MTBF {observed.mtbf_seconds / 3600:.3g} h, 90 % interval {low} to {high}: {observed.verdict}")
    console.print(
        f"[bold]use {answer.recovery} recovery, save every {_minutes(answer.save_interval_seconds)}[/bold]: "
        f"{answer.reason}"
    )
    console.print(f"full recovery becomes the cheaper one below a PLS budget of {answer.crossover_pls:.3g}")


def _exact(costs: "ClusterCosts", answer: "Recommendation") -> tuple[str, str] | None:
    from recoup.planner import full_overhead_exact, partial_overhead_exact

    if costs.background_seconds > 0:
        return None
    full = full_overhead_exact(costs, answer.full_save_interval_seconds)
    interval = answer.partial_save_interval_seconds
    return _percent(full), "-" if interval is None else _percent(partial_overhead_exact(costs, interval))


def _plain(costs: "ClusterCosts", answer: "Recommendation", observed: "FailureTime | None") -> dict[str, Any]:
    fields: dict[str, Any] = asdict(answer)
    fields["crossover_pls"] = answer.crossover_pls if answer.crossover_pls < float("inf") else None
    fields |= {"overhead_total": answer.overhead.total, "full_total": answer.full.total}
    fields["mtbf_seconds"] = costs.mtbf_seconds
    fields["observed"] = None if observed is None else asdict(observed)
    return fields


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.3g} %"


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.3g} min" if seconds < 6 * 3600 else f"{seconds / 3600:.3g} h"
