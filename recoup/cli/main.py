"""The `recoup` command: one sub-command a file of this folder, errors in one line, exit code 1."""

import sys

import typer

from recoup.cli.demo import demo
from recoup.cli.emulate import emulate
from recoup.cli.launch import launch
from recoup.cli.log import log
from recoup.cli.plan import plan
from recoup.cli.table import table
from recoup.cli.train import evaluate, train
from recoup.core import RecoupError

app = typer.Typer(
    name="recoup",
    help="Train recommendation models from impression logs: each repeat once, each failure cheap.\n\n"
    "Example: recoup demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root() -> None:
    """Keep sub-commands under one name."""


app.add_typer(log, name="log")
app.add_typer(table, name="table")
app.command("plan")(plan)
app.command("demo")(demo)
app.command("launch")(launch)
app.command("emulate")(emulate)
app.command("train")(train)
app.command("eval")(evaluate)


def main() -> None:
    """Run the command line; a user's mistake is one line on stderr and exit code 1."""
    try:
        app()
    except RecoupError as err:
        notes = "".join(f" ({note})" for note in getattr(err, "__notes__", ()))
        typer.echo(f"error: {err}{notes}", err=True)
        sys.exit(1)
