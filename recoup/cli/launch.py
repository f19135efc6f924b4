"""`recoup launch`: train on several ranks, and go on when some of them die."""

from pathlib import Path
from typing import Annotated

import typer


def launch(
    config: Annotated[Path, typer.Argument(help="TOML file of the run, as for 'recoup train'.")],
    folder: Annotated[Path, typer.Argument(help="Folder of the run, on storage that every host reaches.")],
    nproc: Annotated[int, typer.Option(min=1, help="Ranks on this host.")] = 2,
    nnodes: Annotated[int, typer.Option(min=1, help="Hosts.")] = 1,
    node_rank: Annotated[int, typer.Option(min=0, help="This host, from 0; host 0 holds the store.")] = 0,
    store: Annotated[str, typer.Option(help="HOST:PORT of the store on host 0; needed with several hosts.")] = "",
    spares: Annotated[int, typer.Option(min=0, help="Idle, warm processes that replace dead ranks.")] = 0,
    pls_budget: Annotated[float, typer.Option(min=0, help="PLS above which recovery is full.")] = 0.1,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Override: key.path=value.")] = None,
    limits: Annotated[
        list[str] | None, typer.Option("--limit", help="A limit of the launch: key=value, such as join_limit=10m.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite/--no-overwrite", help="Remove an earlier run.")] = False,
    resume: Annotated[bool, typer.Option("--resume/--no-resume", help="Go on from the newest checkpoint.")] = False,
) -> None:
    """Train on several ranks; a rank that dies costs its own shard's rows since their last save, and seconds.

    Example: recoup launch recipes/run.toml runs/live --nproc 4 --spares 1 --limit silence_limit=5s
    """
    import json

    from recoup.core import apply_overrides, from_table, load_config, to_table
    from recoup.recovery import GuardConfig
    from recoup.runtime import LaunchConfig
    from recoup.runtime import launch as run
    from recoup.train import RunConfig

    settings = LaunchConfig(
        nproc=nproc,
        nnodes=nnodes,
        node_rank=node_rank,
        store=store,
        spares=spares,
        guard=GuardConfig(pls_budget=pls_budget),
    )
    settings = from_table(LaunchConfig, apply_overrides(to_table(settings), limits or ()), where="--limit")
    result = run(load_config(RunConfig, config, overrides or ()), folder, settings, resume=resume, overwrite=overwrite)
    typer.echo(json.dumps(result))
