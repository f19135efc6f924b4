"""The baseline of benches.recovery: the same run under torchrun, every rank restarted from the last checkpoint."""

import logging
import sys
from datetime import timedelta
from pathlib import Path

logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)

import torch.distributed as dist  # noqa: E402

from recoup.core import load_config  # noqa: E402
from recoup.train import RunConfig, train  # noqa: E402

if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    folder = Path(sys.argv[2])
    resume = any((folder / "checkpoints" / "checkpoints").glob("*.json"))
    train(load_config(RunConfig, Path(sys.argv[1])), folder, resume=resume, overwrite=not resume and folder.exists())
