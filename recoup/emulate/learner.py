"""What the emulator trains: a learner whose tables' rows and dense parameters can be read and set in place.

TRAIN's `Trainer` is one; a test may bring a smaller one. The emulator touches nothing else of a learner.
"""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from recoup.jagged import Batch


class Rows(Protocol):
    """Live rows of one table: `TableView` of the checkpoint floor is one."""

    @property
    def weight(self) -> Tensor:
        """Live view [R, D]."""
        ...

    @property
    def optimizer(self) -> Mapping[str, Tensor]:
        """Live views [R, ...] of the optimizer's state, by name."""
        ...


class Quality(Protocol):
    """What an evaluation says."""

    @property
    def auc(self) -> float:
        """NaN if undefined."""
        ...

    @property
    def log_loss(self) -> float:
        """Mean over samples."""
        ...


class Learner(Protocol):
    """A model in training."""

    def step(self, batch: Batch) -> object:
        """Train on one batch."""
        ...

    def evaluate(self, batches: Iterable[Batch]) -> Quality:
        """Return the quality on held-out batches; changes nothing."""
        ...

    def table_views(self) -> Mapping[str, Rows]:
        """Return live rows by table."""
        ...

    def dense_state(self) -> Mapping[str, Any]:
        """Return everything that is not a table's row: parameters and their optimizer."""
        ...

    def load_dense_state(self, state: Mapping[str, Any]) -> None:
        """Set it."""
        ...

    def ids_by_table(self, batch: Batch) -> Mapping[str, Tensor]:
        """Return the row numbers that a step on `batch` reads and writes, repeats included, by table."""
        ...


@dataclass(frozen=True, slots=True)
class Mirror:
    """A copy of all rows of all tables, with their optimizer rows."""

    rows: dict[str, dict[str, Tensor]]
    """By table, by part: `weight` and each optimizer state."""

    @staticmethod
    def of(views: Mapping[str, Rows]) -> "Mirror":
        """Copy everything."""
        return Mirror({table: {part: rows.clone() for part, rows in parts(view)} for table, view in views.items()})

    def copy(self) -> "Mirror":
        """Return an independent copy."""
        return Mirror({t: {part: rows.clone() for part, rows in table.items()} for t, table in self.rows.items()})

    @staticmethod
    def take(view: Rows, index: Tensor | None) -> dict[str, Tensor]:
        """Return a copy of the live rows `index` (None = all) of one table, by part."""
        return {part: rows.clone() if index is None else rows[index] for part, rows in parts(view)}

    def put(self, table: str, index: Tensor | None, taken: Mapping[str, Tensor]) -> None:
        """Write rows taken before into the copy."""
        for part, rows in taken.items():
            if index is None:
                self.rows[table][part].copy_(rows)
            else:
                self.rows[table][part][index] = rows

    def revert(self, views: Mapping[str, Rows], index: Mapping[str, Tensor] | None = None) -> None:
        """Set live rows back to the copy: those of `index` by table, or all; nothing else is touched."""
        with torch.no_grad():
            for table, view in views.items():
                for part, rows in parts(view):
                    if index is None:
                        rows.copy_(self.rows[table][part])
                    elif table in index:
                        rows[index[table]] = self.rows[table][part][index[table]]


@dataclass(frozen=True, slots=True)
class Whole:
    """Everything of a learner at one step."""

    step: int
    rows: Mirror
    dense: Mapping[str, Any]

    @staticmethod
    def of(learner: Learner, step: int) -> "Whole":
        """Copy everything."""
        return Whole(step, Mirror.of(learner.table_views()), copy.deepcopy(dict(learner.dense_state())))

    def revert(self, learner: Learner) -> None:
        """Set the learner back to this step."""
        self.rows.revert(learner.table_views())
        learner.load_dense_state(copy.deepcopy(dict(self.dense)))


def parts(view: Rows) -> list[tuple[str, Tensor]]:
    """Return the live tensors of one table whose row i belongs to embedding row i."""
    return [("weight", view.weight.detach()), *((f"optimizer.{k}", v.detach()) for k, v in view.optimizer.items())]
