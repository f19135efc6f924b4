"""`recoup demo`: the whole line on a real log."""

from pathlib import Path
from typing import Annotated

import typer


def demo(
    folder: Annotated[Path, typer.Argument(help="Folder for the table, the runs and the summary.")] = Path("runs/demo"),
    num_epochs: Annotated[int, typer.Option("--epochs", min=1, help="Epochs of each training.")] = 4,
    seed: Annotated[int, typer.Option(help="Of the model's start and the order of samples.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite/--no-overwrite", help="Remove an earlier demo.")] = False,
    resume: Annotated[bool, typer.Option("--resume/--no-resume", help="Go on with an earlier demo.")] = False,
) -> None:
    """Train on MovieLens-100k with and without deduplication, lose a shard, and say what each of it cost.

    Example: recoup demo runs/demo --overwrite
    """
    import logging

    from rich.console import Console

    from recoup.cli.progress import progress_bars

    # torch 2.13 warns of an internal rename when torchrec is imported; nothing a user can act on.
    logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
    from recoup.demo import DemoConfig, run_demo

    config = DemoConfig(num_epochs=num_epochs, seed=seed)
    with progress_bars() as progress:
        summaries = run_demo(folder, config, overwrite=overwrite, resume=resume, progress=progress)
    console = Console()
    for summary in summaries:
        console.print(summary.rich())
    console.print(f"summary and plot: {folder / 'summary.html'}", soft_wrap=True)
