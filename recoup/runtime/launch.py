"""Launch a run on this host: check its folder, write what the ranks read, and supervise them to the end."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recoup.core import EventLog, to_toml, write_atomic
from recoup.runtime.config import LAUNCH, LaunchConfig
from recoup.runtime.errors import JobError
from recoup.runtime.launcher import Launcher
from recoup.train import RunConfig
from recoup.train.run_folder import EVENTS, RESULT, check_folder, start_folder


def launch(
    config: RunConfig,
    folder: Path,
    settings: LaunchConfig,
    *,
    resume: bool = False,
    overwrite: bool = False,
    on_poll: Callable[[Launcher], None] | None = None,
) -> dict[str, Any]:
    """Run `config` on this host's ranks, through any number of failures, and return the result (host 0's).

    Args:
        config: the run; every host passes the same.
        folder: of the run, on storage that all hosts reach.
        settings: ranks, spares, limits.
        resume: go on from the newest checkpoint.
        overwrite: remove the run in `folder` first.
        on_poll: called a hundred times a second with the launcher; tests inject failures with it.
    Raises:
        JobError: the job cannot go on.
        TrainError: the folder cannot be used as asked.
    """
    if settings.node_rank == 0:
        check_folder(folder, config, resume=resume, overwrite=overwrite)
        if not resume:
            start_folder(folder, config)
    elif not folder.is_dir():
        raise JobError(f"expected the run's folder '{folder}' on shared storage, got none: start host 0 first")
    write_atomic(folder / LAUNCH, to_toml(settings).encode())
    events = EventLog(folder / EVENTS, node=settings.node_rank)
    Launcher(folder, settings, resume=resume, events=events).run(on_poll)
    result: dict[str, Any] = json.loads((folder / RESULT).read_bytes()) if (folder / RESULT).exists() else {}
    return result
