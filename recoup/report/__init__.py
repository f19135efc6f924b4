"""Summaries and figures: tables for the terminal, Markdown and HTML pages, plots as files."""

from recoup.report.figures import (
    PARTS,
    drawn,
    plot_bars,
    plot_lines,
    plot_overhead_breakdown,
    plot_overhead_curves,
    plot_pls_against_auc_drop,
)
from recoup.report.fit import Line, fit_line
from recoup.report.summary import Cell, Section, Summary, format_cell, summary_table, write_html, write_markdown

__all__ = [
    "PARTS",
    "Cell",
    "Line",
    "Section",
    "Summary",
    "drawn",
    "fit_line",
    "format_cell",
    "plot_bars",
    "plot_lines",
    "plot_overhead_breakdown",
    "plot_overhead_curves",
    "plot_pls_against_auc_drop",
    "summary_table",
    "write_html",
    "write_markdown",
]
