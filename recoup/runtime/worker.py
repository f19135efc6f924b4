"""The process of one rank: meet the others, recover if there was a failure, train, and meet again if a rank dies.

Started by a launcher (`python -m recoup.runtime.worker`), never by hand. A spare imports everything and waits.
Exit codes: 0 finished; 3 an error that no restart mends; 4 superseded; 5 orphaned; others: died.
"""

import argparse
import ctypes
import json
import logging
import os
import signal
import sys
import time
import traceback
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

from recoup.core import RecoupError, load_config, write_json_atomic

# torch 2.13 warns of an internal rename when torchrec is imported; nothing a user can act on.
logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from recoup.runtime import keys  # noqa: E402
from recoup.runtime.config import LAUNCH, LaunchConfig  # noqa: E402
from recoup.runtime.errors import JobError  # noqa: E402
from recoup.runtime.heartbeat import ERROR_EXIT, ORPHAN_EXIT, SUPERSEDED_EXIT, Heartbeat  # noqa: E402
from recoup.runtime.job import LiveJob  # noqa: E402
from recoup.runtime.reconfigure import reconfigure  # noqa: E402
from recoup.runtime.rendezvous import Place, Rendezvous, SupersededError, leave_group  # noqa: E402
from recoup.runtime.warm_up import warm_up  # noqa: E402
from recoup.train import Metrics, RunConfig  # noqa: E402
from recoup.train.run_folder import CONFIG, RESULT  # noqa: E402

_PDEATHSIG = 1  # prctl option: the signal a process gets when its parent ends (linux/prctl.h)


def main() -> int:
    """Run one rank; return its exit code."""
    parser = argparse.ArgumentParser(prog="recoup.runtime.worker")
    for name in ("--host", "--port", "--folder", "--launcher", "--rank", "--incarnation", "--spare"):
        parser.add_argument(name, default="")
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(args.launcher):  # it ended before the kernel was told to end this process with it
        return ORPHAN_EXIT
    torch.set_num_threads(1)
    folder, port = Path(args.folder), int(args.port)
    launch = load_config(LaunchConfig, folder / LAUNCH)
    config = load_config(RunConfig, folder / CONFIG)
    rank, incarnation = args.rank, args.incarnation
    if args.spare:
        warm_up(config)
        rank, incarnation = _wait_for_task(args.host, port, args.spare)
    heartbeat = Heartbeat(args.host, port, rank=int(rank), incarnation=incarnation, beat=launch.beat)
    store = keys.connect(args.host, port, limit=launch.join_limit)
    rendezvous = Rendezvous(
        store,
        Place(int(rank), launch.world_size, incarnation),
        join_limit=launch.join_limit,
        exchange_limit=launch.stall_limit + 2 * launch.silence_limit,  # the launcher has named a slow rank by then
    )
    worker = _Worker(config, launch, folder, rendezvous, heartbeat, resume=args.resume)
    try:
        metrics = worker.run()
    except SupersededError:
        return SUPERSEDED_EXIT
    except RecoupError as err:
        notes = "".join(f" ({note})" for note in getattr(err, "__notes__", ()))
        sys.stderr.write(f"error: {err}{notes}\n")
        return ERROR_EXIT
    if int(rank) == 0:
        write_json_atomic(folder / RESULT, {"metrics": metrics.to_dict(), "num_steps": worker.num_steps})
    heartbeat.enter("done", worker.num_steps)
    heartbeat.stop()
    return 0


class _Worker:
    def __init__(
        self,
        config: RunConfig,
        launch: LaunchConfig,
        folder: Path,
        rendezvous: Rendezvous,
        heartbeat: Heartbeat,
        *,
        resume: bool,
    ) -> None:
        self._config = config
        self._launch = launch
        self._folder = folder
        self._rendezvous = rendezvous
        self._heartbeat = heartbeat
        self._resume = resume
        self._job: LiveJob | None = None
        heartbeat.on_newer = self._called_off

    @property
    def num_steps(self) -> int:
        return self._job.trainer.num_steps if self._job is not None else 0

    def run(self) -> Metrics:
        """Train to the end through any number of generations."""
        while True:
            try:
                return self._generation()
            except RuntimeError as err:
                self._interrupted(err)

    def _called_off(self, newest: int) -> None:
        """Wake this rank from an exchange of a generation that is over."""
        if 0 <= self._rendezvous.generation < newest:
            self._rendezvous.leave()

    def _generation(self) -> Metrics:
        self._heartbeat.enter("meeting", self.num_steps)
        began = time.perf_counter()
        group = self._rendezvous.meet()
        met = time.perf_counter()
        self._heartbeat.enter("recovering", self.num_steps)
        if self._job is None:
            self._job = LiveJob(self._config, self._folder, group, self._heartbeat)
        else:
            self._job.trainer.regroup(group)
        job = self._job
        built = time.perf_counter()
        survivor = job.recovered >= 0
        how = reconfigure(
            job,
            generation=self._rendezvous.generation,
            guard=self._launch.guard,
            resume=self._resume,
            verify=self._launch.verify_survivors,
        )
        job.events.emit(
            "generation",
            generation=self._rendezvous.generation,
            how=how,
            survivor=survivor,
            step=job.trainer.num_steps,
            meet_seconds=met - began,
            build_seconds=built - met,
            recover_seconds=time.perf_counter() - built,
        )
        self._resume = True  # should all ranks be new one day, the run goes on from its checkpoint
        metrics = job.train()
        if group.rank() == 0:
            job.events.emit("run_finished", step=job.trainer.num_steps, pls=job.ledger.pls, **asdict(metrics))
        job.reader.close()
        job.saves.close()
        dist.barrier(group)
        return metrics

    def _interrupted(self, err: RuntimeError) -> None:
        step = self.num_steps
        if self._job is not None:
            first = str(err).splitlines()[0][:200]
            self._job.events.emit(
                "interrupted",
                generation=self._rendezvous.generation,
                step=step,
                phase=self._heartbeat.phase,
                error=first,
            )
        self._heartbeat.enter("meeting", step)
        self._rendezvous.leave()
        leave_group()
        try:
            self._rendezvous.wait_for_newer(self._launch.silence_limit + timedelta(seconds=10))
        except JobError as unexplained:
            traceback.print_exception(err)  # it may be the model's own error: the launcher's log shows where
            unexplained.add_note(f"the error was: {str(err).splitlines()[0]}")
            raise unexplained from err


def _wait_for_task(host: str, port: int, spare: str) -> tuple[str, str]:
    """Wait until a launcher gives this spare a rank."""
    store = keys.connect(host, port, limit=timedelta(seconds=60))
    launcher = os.getppid()
    key = keys.assign(spare)
    while not store.check([key]):
        if os.getppid() != launcher:
            sys.exit(ORPHAN_EXIT)
        time.sleep(0.01)
    task = json.loads(store.get(key))
    return str(task["rank"]), str(task["incarnation"])


if __name__ == "__main__":
    # The heartbeat thread must not keep a finished process; sockets of Gloo threads may be left.
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
