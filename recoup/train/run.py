"""A whole run: read, train, save, evaluate; resume at any step with the same losses, bit for bit."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from recoup.core import Progress, RecoupError, check_state, no_progress, write_json_atomic
from recoup.jagged import Batch
from recoup.reader import SessionReader
from recoup.table import SessionTable, open_table
from recoup.train.metrics import Metrics
from recoup.train.ranks import Ranks
from recoup.train.run_config import RunConfig, batch_schema, evaluation_reader, training_reader
from recoup.train.run_folder import CHECKPOINTS, RESULT, check_folder, event_log, read_losses, start_folder
from recoup.train.saves import RunSaves
from recoup.train.trainer import StepResult, Trainer


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """What a run came to."""

    num_steps: int
    num_epochs: int
    losses: tuple[float, ...]
    """Of every step."""
    metrics: Metrics
    """On the held-out samples, at the end."""
    step_seconds: float
    """Median time of a step in this process, reading not included; 0 if none was left to train."""
    read_seconds: float
    """Median time waited for a batch."""


class Run:
    """One run in this process: trainer, reader, saves."""

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        *,
        device: torch.device | str = "cpu",
        process_group: dist.ProcessGroup | None = None,
        progress: Progress = no_progress,
    ) -> None:
        """Open the table, build the trainer; the folder has been opened (`start_folder`).

        Raises:
            TableError, ReaderError, ConfigError: table, reader and model do not fit together.
        """
        self.config = config
        self.folder = folder
        self.table: SessionTable = open_table(config.table)
        reader = training_reader(config, self.table.schema)
        schema = batch_schema(self.table.schema, reader)
        config.model.check_schema(schema)
        self.trainer = Trainer(config.model, config.train, schema, device=device, process_group=process_group)
        ranks = self.trainer.ranks
        self.reader = SessionReader(self.table, reader, rank=ranks.rank, world_size=ranks.world_size)
        self.events = event_log(folder, ranks.rank)
        self.saves = RunSaves(str(folder / CHECKPOINTS), self.trainer, config.checkpoint, events=self.events)
        self._progress = progress
        self._step_seconds: list[float] = []
        self._read_seconds: list[float] = []

    def resume(self) -> None:
        """Go on from the newest checkpoint.

        Raises:
            CheckpointError: there is none, or it does not fit.
            ReaderError, StateError: the position is of another table or order.
        """
        extra = self.saves.restore()
        run = extra["run"]
        check_state(run, version=1, keys={"reader"}, owner="run")
        self.reader.load_state_dict(run["reader"])
        self.events.emit("run_resumed", step=self.trainer.num_steps, epoch=self.reader.epoch)

    def train(self) -> None:
        """Train to the end: epochs or steps, whichever comes first; save as configured and at the end."""
        saved = self.trainer.num_steps if self.trainer.num_steps else -1
        self.saves.regroup()
        if self.saves.by_priority and saved < 0:
            self.save()  # rows are saved as deltas on this
        while self.reader.epoch < self.config.train.num_epochs and not self._enough():
            self._train_epoch()
            if self.config.evaluation.after_epochs:
                self.evaluate()
            if self.config.checkpoint.every_steps is None and not self._enough():
                self.save()
                saved = self.trainer.num_steps
        if saved != self.trainer.num_steps:
            self.save()

    def evaluate(self) -> Metrics:
        """Return the quality on the held-out samples."""
        config = evaluation_reader(self.config, self.table.schema)
        ranks = self.trainer.ranks
        reader = SessionReader(self.table, config, rank=ranks.rank, world_size=ranks.world_size)
        total = reader.steps_left

        def shown() -> Iterator[Batch]:
            for done, batch in enumerate(reader, start=1):
                yield batch
                self._progress("evaluate", done, total)

        try:
            metrics = self.trainer.evaluate(shown())
        finally:
            reader.close()
        self.events.emit("evaluated", step=self.trainer.num_steps, epoch=self.reader.epoch, **metrics.to_dict())
        return metrics

    def save(self) -> None:
        """Save the run as it is after the last step."""
        self.saves.save({"run": {"version": 1, "reader": self.reader.state_dict()}})

    def _save_due(self, step: int) -> None:
        match self.saves.due(step):
            case "nothing":
                pass
            case "everything":
                self.save()
            case "rows":
                self.saves.save_rows({"run": {"version": 1, "reader": self.reader.state_dict()}})

    def result(self, metrics: Metrics) -> RunResult:
        """Return what the run came to."""
        losses = tuple(read_losses(self.folder)) if self.trainer.ranks.rank == 0 else ()
        return RunResult(
            num_steps=self.trainer.num_steps,
            num_epochs=self.reader.epoch,
            losses=losses,
            metrics=metrics,
            step_seconds=_median(self._step_seconds),
            read_seconds=_median(self._read_seconds),
        )

    def close(self) -> None:
        """End workers and wait for the save in flight."""
        self.reader.close()
        self.saves.close()

    def _train_epoch(self) -> None:
        """Train the epoch's batches that are left."""
        task = f"train epoch {self.reader.epoch + 1}"
        total = self.reader.steps_left
        began = time.perf_counter()
        for done, batch in enumerate(self.reader, start=1):
            read = time.perf_counter()
            result = self.trainer.step(batch)
            trained = time.perf_counter()
            self.reader.commit()
            self._read_seconds.append(read - began)
            self._step_seconds.append(trained - read)
            self._emit(result)
            self._progress(task, done, total)
            self._save_due(result.step)
            if self._enough():
                return
            began = time.perf_counter()

    def _enough(self) -> bool:
        limit = self.config.train.max_steps
        return limit is not None and self.trainer.num_steps >= limit

    def _emit(self, result: StepResult) -> None:
        self.events.emit(
            "step",
            step=result.step,
            loss=result.loss,
            num_samples=result.num_samples,
            seconds=round(self._step_seconds[-1], 6),
        )


def train(
    config: RunConfig,
    folder: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    device: torch.device | str = "cpu",
    progress: Progress = no_progress,
) -> RunResult:
    """Train a run from its start, or from its newest checkpoint, to its end, and evaluate it.

    With several ranks (a process group exists) all call this together with the same folder, which all can reach.

    Args:
        config: the run.
        folder: of the run; see `recoup.train.run_folder`.
        resume: go on with the run in `folder`; whatever prevents it is an error, never a new start.
        overwrite: remove the run in `folder` first, once the new one has been checked.
        device: where this rank computes.
        progress: called as ("train epoch N", steps done, steps) and ("evaluate", batches done, batches).
    Raises:
        TrainError: the folder, the settings or the numbers are not as expected.
        CheckpointError, TableError, ReaderError, ModelError: as their floors say.
    """
    ranks = Ranks.join(torch.device(device))
    _together(ranks, lambda: check_folder(folder, config, resume=resume, overwrite=overwrite))
    run = Run(config, folder, device=device, progress=progress)
    if not resume:
        _together(ranks, lambda: start_folder(folder, config) if ranks.rank == 0 else None)
    try:
        if resume:
            run.resume()
        run.events.emit("run_started", step=run.trainer.num_steps, world_size=ranks.world_size, device=str(device))
        run.train()
        metrics = run.evaluate()
    finally:
        run.close()
    result = run.result(metrics)
    if ranks.rank == 0:
        write_json_atomic(folder / RESULT, {**asdict(result), "metrics": metrics.to_dict()})
    run.events.emit("run_finished", step=result.num_steps)
    return result


def evaluate(config: RunConfig, folder: Path, *, device: str = "cpu", progress: Progress = no_progress) -> Metrics:
    """Return the quality of a run's newest checkpoint on the held-out samples of `config`.

    Raises:
        TrainError: there is no run in `folder`, or it was trained with other settings.
        CheckpointError: there is no checkpoint, or it is damaged.
    """
    check_folder(folder, config, resume=True, overwrite=False)
    run = Run(config, folder, device=device, progress=progress)
    try:
        run.resume()
        return run.evaluate()
    finally:
        run.close()


def _together(ranks: Ranks, action: Callable[[], None]) -> None:
    """Run `action` on every rank; if it fails on one, all raise its error."""
    problem: RecoupError | None = None
    try:
        action()
    except RecoupError as err:
        problem = err
    ranks.agree(problem, [], torch.device("cpu"))


def _median(seconds: Sequence[float]) -> float:
    return statistics.median(seconds) if seconds else 0.0
