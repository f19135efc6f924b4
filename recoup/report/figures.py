"""Figures as files (PNG, SVG or PDF by the name's ending); no window, no global state of matplotlib is touched."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from recoup.planner import (
    ClusterCosts,
    Overhead,
    full_overhead,
    optimal_save_interval,
    partial_overhead,
    save_interval_for_pls,
)
from recoup.report.fit import fit_line

PARTS = ("save", "load", "lost", "reschedule")
"""Parts of the overhead, in drawing order."""


@contextmanager
def drawn(path: Path, title: str, x: str, y: str, *, width: float = 7.0) -> Generator[Axes]:
    """Yield axes with title and labels, and write the figure to `path` afterwards."""
    figure = Figure(figsize=(width, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(visible=True, alpha=0.3)
    yield axes
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def plot_overhead_curves(path: Path, costs: ClusterCosts, pls_budget: float) -> None:
    """Draw first-order overhead of both recoveries against the save interval; mark optimum and PLS budget."""
    best, budget = optimal_save_interval(costs), save_interval_for_pls(costs, pls_budget)
    intervals = np.geomspace(min(best, budget) / 5, max(best, budget) * 5, 300)
    with drawn(
        path, "Overhead against save interval", "save interval (hours)", "overhead (% of training time)"
    ) as axes:
        for name, overhead, mark in (("full", full_overhead, best), ("partial", partial_overhead, budget)):
            values = [100 * overhead(costs, float(t)).total for t in intervals]
            (line,) = axes.plot(intervals / 3600, values, label=f"{name} recovery")
            axes.plot([mark / 3600], [100 * overhead(costs, mark).total], "o", color=line.get_color())
        axes.axvline(budget / 3600, linestyle=":", color="grey", label=f"PLS budget {pls_budget:g}")
        axes.set_xscale("log")
        axes.set_ylim(bottom=0, top=3 * 100 * full_overhead(costs, best).total)
        axes.legend()


def plot_overhead_breakdown(path: Path, overheads: Mapping[str, Overhead], title: str = "Where the time goes") -> None:
    """Draw one stacked bar a strategy: save, load, lost computation, reschedule."""
    names = list(overheads)
    with drawn(path, title, "", "overhead (% of training time)", width=max(7.0, 0.9 * len(names))) as axes:
        below = np.zeros(len(names))
        for part in PARTS:
            heights = np.array([100 * getattr(overheads[name], part) for name in names])
            axes.bar(names, heights, bottom=below, label="lost computation" if part == "lost" else part)
            below += heights
        for i, total in enumerate(below):
            axes.annotate(f"{total:.2f}", (i, float(total)), ha="center", va="bottom", fontsize=8)
        axes.tick_params(axis="x", rotation=30)
        axes.legend()


def plot_pls_against_auc_drop(
    path: Path, points: Mapping[str, Sequence[tuple[float, float]]], title: str = "PLS against AUC drop"
) -> None:
    """Draw (PLS, AUC drop) of each run by policy, each policy's least-squares line and its error.

    Args:
        path: the figure's file.
        points: by policy, one (PLS, drop) a run, the drop against the failure-free run of the same seed.
        title: heading.
    """
    with drawn(path, title, "portion of lost samples (PLS)", "AUC drop") as axes:
        for name, pairs in points.items():
            x, y = [p for p, _ in pairs], [d for _, d in pairs]
            line = fit_line(x, y)
            label = name if line is None else f"{name}: {line.words()}"
            (dots,) = axes.plot(x, y, "o", markersize=4, alpha=0.7, label=label)
            if line is not None:
                ends = np.array([0.0, max(x)])
                axes.plot(ends, line.slope * ends + line.intercept, color=dots.get_color(), linewidth=1)
        axes.axhline(0, color="grey", linewidth=0.8)
        axes.legend(fontsize=7)


def plot_bars(
    path: Path, values: Mapping[str, tuple[float, float]], title: str, y: str, *, from_zero: bool = True
) -> None:
    """Draw one bar a name with its standard error; `from_zero=False` zooms on the differences and says so."""
    names = list(values)
    with drawn(path, title, "", y if from_zero else f"{y} (axis cut)", width=max(7.0, 0.9 * len(names))) as axes:
        means, errors = [values[n][0] for n in names], [values[n][1] for n in names]
        axes.bar(names, means, yerr=np.nan_to_num(errors), capsize=4, color="C0", alpha=0.8)
        axes.tick_params(axis="x", rotation=30)
        if not from_zero and means:
            low, high = min(means) - max(errors), max(means) + max(errors)
            margin = 0.2 * (high - low) or 1e-3
            axes.set_ylim(low - margin, high + margin)


def plot_lines(
    path: Path, series: Mapping[str, tuple[Sequence[float], Sequence[float]]], title: str, *, x: str, y: str
) -> None:
    """Draw one line a name through its (xs, ys): loss curves, overhead against nodes or MTBF."""
    with drawn(path, title, x, y) as axes:
        for name, (xs, ys) in series.items():
            axes.plot(xs, ys, marker="o" if len(xs) <= 20 else "", markersize=4, linewidth=1.2, label=name)
        axes.legend()
