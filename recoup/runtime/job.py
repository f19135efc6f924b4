"""One rank's part of a run that outlives its ranks: trainer, reader, saves, ledger; every step whole or not at all."""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from recoup.checkpoint import Manifest
from recoup.core import EventLog, State
from recoup.jagged import Batch
from recoup.reader import SessionReader
from recoup.recovery import POSITION, Ledger
from recoup.runtime.deferred import DeferredUpdates
from recoup.runtime.heartbeat import Heartbeat
from recoup.table import open_table
from recoup.train import Metrics, RunConfig, Trainer
from recoup.train.regroup import forget_first_broadcast
from recoup.train.run_config import batch_schema, evaluation_reader, training_reader
from recoup.train.run_folder import CHECKPOINTS, EVENTS
from recoup.train.saves import RunSaves

SAVED_AT = "saved_at"
"""Key of a checkpoint's plain state: when it was saved, seconds since the epoch."""
SAVED_POSITION = "saved_position"
"""Key of a checkpoint's plain state: the position from which a lost shard's samples count as lost: of this save, if it
is of everything or completes a cycle of priority saves, else of the last such one."""
SAVES_SINCE = "saves_since"
"""Key of a checkpoint's plain state: priority saves since then, this one included; given up ones are not there."""


@dataclass(slots=True)
class Mark:
    """Where the job was after a step: what every rank agrees on."""

    step: int
    num_samples: int
    reader: State
    ledger: State


class LiveJob:
    """Train a run on this rank; an interrupted step can be dropped, or finished if another rank has finished it."""

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
        self.saves = RunSaves(str(folder / CHECKPOINTS), self.trainer, config.checkpoint, events=self.events)
        total = max(1, self.reader.steps_left * reader.batch_size * ranks.world_size * config.train.num_epochs)
        self.ledger = Ledger(ranks.world_size, total)
        self.num_samples = 0
        self.saved_position = 0
        """Of the newest save of everything or complete cycle; durable once the save in flight is."""
        self.saves_since = 0
        """Priority saves since then."""
        self.updates = DeferredUpdates(self.trainer.model)
        self.heartbeat = heartbeat
        self.mark: Mark | None = None
        self.recovered = -1
        """The newest generation in which this rank was brought to the state of all; -1: its state is not whole."""

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
        if self.mark is None:
            self._make_mark()
        while not self.finished:
            for batch in self._batches():
                self._step(batch)
                if self.finished:
                    break
        if self.saves.by_priority or self.ledger.last_saved(0) != self.num_samples:
            self.save()
        self.heartbeat.enter("evaluating", self.trainer.num_steps)
        config = evaluation_reader(self.config, self._table.schema)
        ranks = self.trainer.ranks
        reader = SessionReader(self._table, config, rank=ranks.rank, world_size=ranks.world_size)
        try:
            return self.trainer.evaluate(reader)
        finally:
            reader.close()

    def save(self) -> None:
        """Save everything, all ranks together; the shards' last save is now this position."""
        self.heartbeat.enter("saving", self.trainer.num_steps)
        self.saved_position, self.saves_since = self.num_samples, 0
        self.saves.save(self._extra())
        self._durable()

    def save_rows(self) -> None:
        """Save the rows that the policy puts first, in the background; 1 / r such saves count as one of everything."""
        self.heartbeat.enter("saving", self.trainer.num_steps)
        self.saves.settle()
        self._durable()
        self.saves_since += 1
        if self.saves_since == self.saves.saves_a_cycle:
            self.saved_position, self.saves_since = self.num_samples, 0
        self.saves.save_rows(self._extra())

    def go_on_from(self, manifest: Manifest) -> None:
        """Take note that a checkpoint is the newest that counts; a survivor's rows are in it and go on from it."""
        extra = json.loads(manifest.extra)
        self.saved_position, self.saves_since = int(extra[SAVED_POSITION]), int(extra[SAVES_SINCE])
        self.saves.store.go_on_from(manifest, range(manifest.plan.num_shards))
        self.ledger.saved(self.saved_position)

    def finish_step(self, mark: Mark, dense: Mapping[str, Tensor]) -> None:
        """Apply the step that was interrupted here and that another survivor has finished: its mark, its dense part."""
        self.updates.apply()
        self.trainer.load_dense_state(dense)
        self.take(mark)

    def drop_step(self) -> None:
        """Drop the step in progress; the reader gives its batch again."""
        assert self.mark is not None
        self.take(self.mark)

    def take(self, mark: Mark) -> None:
        """Set counters, reader and ledger to a mark (of this rank or another)."""
        self.trainer.load_state_dict({"version": 1, "num_steps": mark.step})
        self.reader.load_state_dict(mark.reader)
        self.ledger.load_state_dict(mark.ledger)
        self.num_samples = mark.num_samples
        self.updates.discard()
        self.mark = mark

    def restart_from(self, extra: dict[str, Any]) -> None:
        """Set counters and reader to a checkpoint's plain state (after a full recovery)."""
        self.reader.load_state_dict(extra["run"]["reader"])
        self.trainer.load_state_dict(extra["trainer"])
        self.num_samples = int(extra[POSITION])
        self.saved_position, self.saves_since = int(extra[SAVED_POSITION]), int(extra[SAVES_SINCE])
        self.updates.discard()
        self.mark = None

    def _extra(self) -> dict[str, Any]:
        return {
            "run": {"version": 1, "reader": self.reader.state_dict()},
            POSITION: self.num_samples,
            SAVED_POSITION: self.saved_position,
            SAVES_SINCE: self.saves_since,
            SAVED_AT: time.time(),
        }

    def _durable(self) -> None:
        self.ledger.saved(self.saved_position)
        if self.mark is not None:
            self.mark.ledger = self.ledger.state_dict()

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
        self.updates.discard()
        result = self.trainer.step(batch)
        self.updates.apply()
        self.reader.commit()
        self.num_samples += result.num_samples
        self._make_mark()
        if self.trainer.ranks.rank == 0:
            self.events.emit("step", step=result.step, loss=result.loss, num_samples=result.num_samples)
        match self.saves.due(result.step):
            case "nothing":
                pass
            case "everything":
                self.save()
            case "rows":
                self.save_rows()
        self.heartbeat.enter("reading", self.trainer.num_steps)

    def _make_mark(self) -> None:
        self.mark = Mark(
            step=self.trainer.num_steps,
            num_samples=self.num_samples,
            reader=self.reader.state_dict(),
            ledger=self.ledger.state_dict(),
        )
