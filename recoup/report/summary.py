"""Tables of a summary, and pages that hold them: rich for the terminal, Markdown and HTML for files.

A page is one self-contained file: figures are embedded, nothing is loaded from elsewhere.
"""

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from rich.table import Table
from rich.text import Text

from recoup.core import write_atomic

Cell: TypeAlias = str | int | float | bool | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """One table: a title, column names, rows of cells, and a note below."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def rich(self) -> Table:
        """Return the table for a rich console; numbers are right-aligned."""
        table = Table(title=self.title, caption=self.note or None, title_justify="left", caption_justify="left")
        for i, column in enumerate(self.columns):
            table.add_column(column, justify="left" if i == 0 else "right")
        for row in self.rows:
            table.add_row(*map(Text, row))
        return table

    def markdown(self) -> str:
        """Return the table as Markdown."""
        lines = [f"### {self.title}", "", _line(self.columns), _line(["---", *["---:"] * (len(self.columns) - 1)])]
        lines += [_line([cell.replace("|", r"\|") for cell in row]) for row in self.rows]
        return "\n".join([*lines, "", *([self.note, ""] if self.note else [])])

    def html(self) -> str:
        """Return the table as an HTML fragment; every text is escaped."""
        head = "".join(f"<th>{html.escape(column)}</th>" for column in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>\n" for row in self.rows
        )
        note = f"<p>{html.escape(self.note)}</p>\n" if self.note else ""
        return f"<h2>{html.escape(self.title)}</h2>\n<table>\n<tr>{head}</tr>\n{body}</table>\n{note}"


def summary_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]], note: str = "") -> Summary:
    """Return a table of formatted cells.

    Args:
        title: heading.
        columns: names, one a column.
        rows: cells; a float is shown with four significant digits, None as a dash, a bool as yes or no.
        note: shown below; say here that data are synthetic, or how few seeds there were.
    """
    for row in rows:
        assert len(row) == len(columns), (title, row)
    cells = tuple(tuple(format_cell(cell) for cell in row) for row in rows)
    return Summary(title=title, columns=tuple(columns), rows=cells, note=note)


def format_cell(cell: Cell) -> str:
    """Return a cell's text."""
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, float):
        return "undefined" if cell != cell else f"{cell:,.4g}"
    return cell


Section: TypeAlias = Summary | Path | str
"""A table, a figure (PNG or SVG file) or a paragraph."""

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse}td,th{padding:.2em .8em;border-bottom:1px solid #ccc;text-align:right}"
    "td:first-child,th:first-child{text-align:left}img{max-width:100%}"
)


def write_html(path: Path, title: str, sections: Sequence[Section]) -> None:
    """Write one self-contained HTML page; figures are embedded."""
    parts = [_html_section(section) for section in sections]
    head = f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
    page = (
        f"{head}<style>{_STYLE}</style></head>\n<body><h1>{html.escape(title)}</h1>\n{''.join(parts)}</body></html>\n"
    )
    write_atomic(path, page.encode())


def write_markdown(path: Path, title: str, sections: Sequence[Section]) -> None:
    """Write one Markdown page; figures are linked by their path relative to the page."""
    parts = [f"# {title}", ""]
    for section in sections:
        if isinstance(section, Summary):
            parts.append(section.markdown())
        elif isinstance(section, Path):
            link = section.relative_to(path.parent) if section.is_relative_to(path.parent) else section
            parts += [f"![{section.stem.replace('_', ' ')}]({link})", ""]
        else:
            parts += [section, ""]
    write_atomic(path, ("\n".join(parts).rstrip() + "\n").encode())


def _html_section(section: Section) -> str:
    if isinstance(section, Summary):
        return section.html()
    if isinstance(section, Path):
        kind = "svg+xml" if section.suffix == ".svg" else "png"
        data = base64.b64encode(section.read_bytes()).decode()
        return f'<p><img alt="{html.escape(section.stem)}" src="data:image/{kind};base64,{data}"></p>\n'
    return f"<p>{html.escape(section)}</p>\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
