"""Processes that save: `python -m tests.checkpoint.saver MODE FOLDER`. Imports once, then forks every saver.

forever   a line on stdin starts a saver that saves for ever, all or some rows; it reports every commit; a second line
          has it killed (-9) here and now
slow      as `forever`, one save of all rows, then one that stops for good in the middle of its nth file
together  three ranks save step 1, and then step 2 with one rank failing in turn; they report what they got
"""

import json
import os
import resource
import signal
import sys
import time

import torch
from fsspec.implementations.local import LocalFileSystem
from fsspec.registry import register_implementation

from recoup.checkpoint import CheckpointError, FileGather, Storage, StoreConfig, save_together
from tests.checkpoint.builders import make_store, make_views, request, some_rows, step

WORLD = 3
KILLED_AFTER = 3.0


class SlowFiles(LocalFileSystem):
    """A file system on which the nth write stops half-way, and never ends."""

    protocol = "slow"
    stop_at = -1
    writes = 0

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        if SlowFiles.writes == SlowFiles.stop_at:
            super().pipe_file(path, value[: len(value) // 2])
            report("stopped")
            signal.pause()
        SlowFiles.writes += 1
        super().pipe_file(path, value)


def report(*words):
    """Write one line, whole."""
    os.write(1, (" ".join(str(word) for word in words) + "\n").encode())


def rows_of_step(views, number):
    """Set every row as step `number` leaves it: known from the number alone."""
    step(views, number)


def save_forever(folder):
    """Go on from the newest checkpoint, if any."""
    views = make_views()
    store = make_store(folder, kind="hash", config=StoreConfig(keep=2, max_chain=3))
    number = store.restore(views).extra["at"] if store.latest() else 0
    while True:
        number += 1
        rows_of_step(views, number)
        full = number % 4 == 1 or number == 1
        pending = store.start_save(request(views, number, rows=None if full else some_rows(number, share=1.0)))
        report("saved", pending.result().step)


def save_slowly(folder, stop_at):
    """Save step 1 whole, then stop in the middle of the nth file of step 2."""
    register_implementation("slow", SlowFiles, clobber=True)
    views = make_views()
    store = make_store(f"slow://{folder}", config=StoreConfig(keep=1))
    rows_of_step(views, 1)
    store.save(request(views, 1))
    SlowFiles.stop_at = SlowFiles.writes + stop_at
    rows_of_step(views, 2)
    store.save(request(views, 2))


def save_as_rank(folder, rank, failing, how):
    """Save step 1, then step 2 with rank `failing` out of disk, dead, or with NaN in its rows; report both outcomes."""
    views = make_views(part=(rank, WORLD))
    store = make_store(folder, shards=WORLD, run_id=f"fail{failing}{how}")
    token = f"{failing}-{how}"
    gather = FileGather(
        Storage(folder), token, rank=rank, world_size=WORLD, timeout_seconds=KILLED_AFTER if how == "killed" else 20
    )
    for number in (1, 2, 3):
        rows_of_step(views, number)
        if number == 2 and rank == failing:
            fail(how, views)
        outcome, began = {"case": token, "rank": rank, "step": number}, time.monotonic()
        try:
            full = None if number < 3 else {"users": torch.arange(0, 97, 3)}
            manifest = save_together(store, request(views, number, rows=full), rank=rank, shards=[rank], gather=gather)
            outcome["got"] = manifest.name
        except CheckpointError as err:
            outcome["error"] = str(err)
        report(json.dumps({**outcome, "seconds": time.monotonic() - began}))
        if how == "killed" and "error" in outcome:
            return
        mend(views)


def fail(how, views):
    """Make this rank fail in its next save."""
    if how in ("full", "fuller"):
        size = 700 if how == "full" else 100  # room for its report, or not even for that
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    elif how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "nan":
        views["users"].weight[3, 0] = float("nan")


def mend(views):
    """Let the next save of this rank succeed again."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    views["users"].weight.nan_to_num_()


def forked(work, *arguments):
    """Run `work` in a child; return its process id."""
    child = os.fork()
    if child:
        return child
    try:
        work(*arguments)
    finally:
        os._exit(0)


def main():
    """Serve the mode asked for."""
    mode, folder = sys.argv[1:]
    torch.set_num_threads(1)
    make_store(folder).snapshot(request(make_views(), 0, rows=some_rows(0)))  # kernels are loaded once, not a saver
    report("ready")
    if mode == "together":
        full = [(0, "full"), (1, "full"), (2, "full"), (0, "fuller"), (1, "fuller")]
        for failing, how in ((-1, "none"), *full, (1, "nan"), (2, "killed")):
            for child in [forked(save_as_rank, folder, rank, failing, how) for rank in range(WORLD)]:
                os.waitpid(child, 0)
        return
    for line in sys.stdin:
        work = save_forever if mode == "forever" else save_slowly
        child = forked(work, *([folder] if mode == "forever" else [f"{folder}/{line.strip()}", int(line)]))
        sys.stdin.readline()
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        report("dead", os.WTERMSIG(status))


if __name__ == "__main__":
    main()
