"""One rank's part of a run that outlives its ranks: trainer, reader, saves, ledger, and the way back by one step."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch.distributed as dist

from recoup.core import EventLog, State
from recoup.jagged import Batch
from recoup.reader import SessionReader
from recoup.recovery import POSITION, Ledger
from recoup.runtime.heartbeat import Heartbeat
from recoup.runtime.undo import UndoLog
from recoup.table import open_table
from recoup.train import Metrics, RunConfig, Trainer
from recoup.train.regroup import forget_first_broadcast
from recoup.train.run_config import batch_schema, evaluation_reader, training_reader
from recoup.train.run_folder import CHECKPOINTS, EVENTS
from recoup.train.saves import RunSaves


@dataclass(slots=True)
class Mark:
    """Where the job was after a step: what every rank agrees on."""

    step: int
    num_samples: int
    reader: State
    ledger: State
    seconds: float = field(default=0.0)
    """When it was made, seconds since the epoch."""


class LiveJob:
    """Train a run on this rank; every step can be taken back until the next one begins."""

    def __init__(self, config: RunConfig, folder: Path, group: dist.ProcessGroup, heartbeat: Heartbeat) -> None:
        """Build the model on this rank without waiting for anyone.

        Raises:
            ConfigError, TableError, ReaderError: the run does not fit its table.
        """
        forget_first_broadcast()
        self.config = config
        self.folder = folder
        self.events = EventLog(folder / EVENTS, rank=group.rank())
        table = open_table(config.table)
        self._table = table
        reader = training_reader(config, table.schema)
        self.trainer = Trainer(config.model, config.train, batch_schema(table.schema, reader), process_group=group)
        ranks = self.trainer.ranks
        self.reader = SessionReader(table, reader, rank=ranks.rank, world_size=ranks.world_size)
        self.saves = RunSaves(str(folder / CHECKPOINTS), self.trainer, keep=config.checkpoint.keep, events=self.events)
        total = max(1, self.reader.steps_left * reader.batch_size * ranks.world_size * config.train.num_epochs)
        self.ledger = Ledger(ranks.world_size, total)
        self.num_samples = 0
        self.undo = UndoLog(self.trainer)
        self.heartbeat = heartbeat
        self.marks: list[Mark] = []

    @property
    def finished(self) -> bool:
        """Whether all epochs or steps are trained."""
        limit = self.config.train.max_steps
        return self.reader.epoch >= self.config.train.num_epochs or (
            limit is not None and self.trainer.num_steps >= limit
        )

    def train(self) -> Metrics:
        """Train what is left, save as configured and at the end, and evaluate.

        Raises:
            RuntimeError: an exchange failed because a rank died; the job can be recovered and called again.
            RecoupError: as `recoup.train` raises it, on every rank.
        """
        if not self.marks:
            self._mark()
        while not self.finished:
            for batch in self._batches():
                self._step(batch)
                if self.finished:
                    break
        if self.ledger.last_saved(0) != self.num_samples:
            self.save()
        self.heartbeat.enter("evaluating", self.trainer.num_steps)
        config = evaluation_reader(self.config, self._table.schema)
        ranks = self.trainer.ranks
        reader = SessionReader(self._table, config, rank=ranks.rank, world_size=ranks.world_size)
        return self.trainer.evaluate(reader)

    def save(self) -> None:
        """Save everything, all ranks together; the shards' last save is now this position."""
        self.heartbeat.enter("saving", self.trainer.num_steps)
        self.saves.save({"run": {"version": 1, "reader": self.reader.state_dict()}, POSITION: self.num_samples})
        self.ledger.saved(self.num_samples)
        if self.marks:
            self.marks[-1].ledger = self.ledger.state_dict()

    def back_to(self, step: int) -> None:
        """Take back whatever this rank did after `step`: a part of the next step, or all of it."""
        self.undo.undo_to(step)
        mark = next(mark for mark in reversed(self.marks) if mark.step == step)
        self.take(mark)

    def take(self, mark: Mark) -> None:
        """Set counters, reader and ledger to a mark (of this rank or another)."""
        self.trainer.load_state_dict({"version": 1, "num_steps": mark.step})
        self.reader.load_state_dict(mark.reader)
        self.ledger.load_state_dict(mark.ledger)
        self.num_samples = mark.num_samples
        self.marks = [mark]

    def restart_from(self, extra: dict[str, Any]) -> None:
        """Set counters and reader to a checkpoint's plain state (after a full recovery)."""
        self.reader.load_state_dict(extra["run"]["reader"])
        self.trainer.load_state_dict(extra["trainer"])
        self.num_samples = int(extra[POSITION])
        self.marks = []

    def rows_digest(self) -> str:
        """Return a hash of every local row and its optimizer state."""
        digest = hashlib.blake2b(digest_size=16)
        for name, view in sorted(self.trainer.table_views().items()):
            digest.update(name.encode())
            for part in view.parts().values():
                digest.update(part.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def _batches(self) -> Iterator[Batch]:
        self.heartbeat.enter("reading", self.trainer.num_steps)
        yield from self.reader

    def _step(self, batch: Batch) -> None:
        self.heartbeat.enter("training", self.trainer.num_steps)
        self.undo.begin()
        result = self.trainer.step(batch)
        self.undo.end()
        self.reader.commit()
        self.num_samples += result.num_samples
        self._mark()
        if self.trainer.ranks.rank == 0:
            self.events.emit("step", step=result.step, loss=result.loss, num_samples=result.num_samples)
        every = self.config.checkpoint.every_steps
        if every is not None and result.step % every == 0:
            self.save()
        self.heartbeat.enter("reading", self.trainer.num_steps)

    def _mark(self) -> None:
        mark = Mark(
            step=self.trainer.num_steps,
            num_samples=self.num_samples,
            reader=self.reader.state_dict(),
            ledger=self.ledger.state_dict(),
        )
        self.marks = [*self.marks[-1:], mark]
