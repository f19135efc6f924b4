"""Summaries say what they were given, in every form; figures are real files; the fitted line is the true one."""

from datetime import timedelta

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from recoup.planner import ClusterCosts, Overhead
from recoup.report import (
    fit_line,
    plot_bars,
    plot_lines,
    plot_overhead_breakdown,
    plot_overhead_curves,
    plot_pls_against_auc_drop,
    summary_table,
    write_html,
    write_markdown,
)


def table():
    rows = [["AUC <b>[0]", 0.71234567, True], ["bytes", 1234567, None], ["one class", float("nan"), False]]
    return summary_table("Main | job", ["what", "value", "ok"], rows, note="synthetic data")


def test_every_form_holds_every_cell():
    """Terminal, Markdown and HTML show the same cells, escaped where needed."""
    console = Console(width=100)
    with console.capture() as terminal:
        console.print(table().rich())
    for text in (terminal.get(), table().markdown()):
        for cell in ("AUC <b>[0]", "0.7123", "1,234,567", "undefined", "yes", "no", "synthetic data"):
            assert cell in text
    assert "AUC &lt;b&gt;[0]" in table().html()


def test_pages_hold_tables_and_figures(tmp_path):
    """An HTML page embeds its figures; a Markdown page links them."""
    figure = tmp_path / "bars.png"
    plot_bars(figure, {"mfu": (0.1, 0.01), "ssu": (0.2, float("nan"))}, "drops", "AUC drop", from_zero=False)
    write_html(tmp_path / "page.html", "Run", [table(), figure, "a < b"])
    write_markdown(tmp_path / "page.md", "Run", [table(), figure, "words"])
    page = (tmp_path / "page.html").read_text()
    assert "data:image/png;base64," in page
    assert "a &lt; b" in page
    assert "![bars](bars.png)" in (tmp_path / "page.md").read_text()


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_figures_are_files_of_their_kind(tmp_path, suffix):
    """Each figure is written in the format that its name says."""
    minutes = timedelta(minutes=1)
    costs = ClusterCosts(mtbf=840 * minutes, num_shards=8, save=2 * minutes, load=minutes, reschedule=3 * minutes)
    part = Overhead(save=0.01, load=0.02, lost=0.03, reschedule=0.04)
    paths = [tmp_path / f"{name}.{suffix}" for name in ("curves", "parts", "drop", "lines")]
    plot_overhead_curves(paths[0], costs, 0.1)
    plot_overhead_breakdown(paths[1], {"full": part, "mfu": part})
    plot_pls_against_auc_drop(paths[2], {"mfu": [(0.1, 0.001), (0.2, 0.002), (0.3, 0.004)], "one": [(0.1, 0.0)]})
    plot_lines(paths[3], {"loss": ([1, 2, 3], [0.7, 0.6, 0.5])}, "loss", x="step", y="loss")
    for path in paths:
        assert path.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml")


def test_line_equals_scipy():
    """Slope, intercept and their errors are those of ordinary least squares."""
    rng = np.random.default_rng(7)
    x = rng.random(30)
    y = 2 * x + 0.1 + 0.05 * rng.standard_normal(30)
    ours, theirs = fit_line(x.tolist(), y.tolist()), stats.linregress(x, y)
    assert ours.slope == pytest.approx(theirs.slope)
    assert ours.slope_error == pytest.approx(theirs.stderr)
    assert ours.intercept_error == pytest.approx(theirs.intercept_stderr)
    assert fit_line([0.1, 0.1], [1, 2]) is None
