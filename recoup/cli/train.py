"""`recoup train` and `recoup eval`: a whole run from one TOML file, and its quality."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recoup.core import load_config

if TYPE_CHECKING:
    from recoup.train import Metrics

TRAIN_EXAMPLE = "Example: recoup train run.toml runs/first --set train.num_epochs=2"
EVAL_EXAMPLE = "Example: recoup eval runs/first --set evaluation.batch_size=8192"

Set = Annotated[list[str] | None, typer.Option("--set", help="Override one key: key.path=value. May be repeated.")]
Device = Annotated[str, typer.Option(help="Where to compute: cpu, cuda, cuda:0, ...")]


def train(
    config: Annotated[Path, typer.Argument(help="TOML file of the run.")],
    folder: Annotated[Path, typer.Argument(help="Folder of the run: checkpoints, events, result.")],
    overrides: Set = None,
    dedup: Annotated[
        bool | None, typer.Option("--dedup/--no-dedup", help="Read unique rows (default), or every repeat.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume/--no-resume", help="Go on with the run in FOLDER.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite/--no-overwrite", help="Replace the run in FOLDER.")] = False,
    device: Device = "cpu",
) -> None:
    """Train a model from a session table; saved on the way, resumable at any step."""
    from recoup.cli.progress import progress_bars
    from recoup.train import RunConfig
    from recoup.train import train as run

    changes = [*(overrides or []), *([] if dedup is None else [f"reader.dedup={str(dedup).lower()}"])]
    loaded = load_config(RunConfig, config, changes)
    with progress_bars() as progress:
        result = run(loaded, folder, resume=resume, overwrite=overwrite, device=device, progress=progress)
    typer.echo(f"{result.num_steps} steps, {1000 * result.step_seconds:.1f} ms a step; run in {folder}")
    _show(result.metrics)


train.__doc__ = f"{train.__doc__}\n\n{TRAIN_EXAMPLE}"


def evaluate(
    folder: Annotated[Path, typer.Argument(help="Folder of a run.")],
    overrides: Set = None,
    as_json: Annotated[bool, typer.Option("--json/--no-json", help="Print one JSON object instead.")] = False,
    device: Device = "cpu",
) -> None:
    """Evaluate a run's newest checkpoint on its held-out samples."""
    import json

    from recoup.cli.progress import progress_bars
    from recoup.train import RunConfig, TrainError
    from recoup.train import evaluate as run

    if not (folder / "config.toml").is_file():
        raise TrainError(f"expected a run in '{folder}', got no config.toml: check the path")
    loaded = load_config(RunConfig, folder / "config.toml", overrides or [])
    with progress_bars() as progress:
        metrics = run(loaded, folder, device=device, progress=progress)
    if as_json:
        typer.echo(json.dumps(metrics.to_dict()))
    else:
        _show(metrics)


evaluate.__doc__ = f"{evaluate.__doc__}\n\n{EVAL_EXAMPLE}"


def _show(metrics: "Metrics") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("metric", "value")
    for name, value in metrics.to_dict().items():
        if name != "note":
            table.add_row(name.replace("_", " "), "undefined" if value is None else f"{value:.6g}")
    console = Console()
    console.print(table)
    if metrics.note:
        console.print(metrics.note)
