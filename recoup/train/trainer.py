"""The trainer: one model under DistributedModelParallel, one step at a time, on any number of ranks.

Data in: batches. Data out: losses, metrics, live views of the tables' rows, dense state.
Guarantees: the same seed and batches give the same bits; n ranks give one process's losses within rounding; a batch or
loss that is not finite stops the run before anything is updated; an empty rank takes part in every exchange.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numba
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from torchrec.distributed.types import ShardingPlan

from recoup.checkpoint import TableView
from recoup.core import RecoupError, State, check_state
from recoup.jagged import Batch, pack_rows
from recoup.model import DLRM, DLRMConfig, check_finite, check_ids, table_views, with_missing
from recoup.model.lookup import module_name
from recoup.schema import Schema
from recoup.train.config import TrainConfig
from recoup.train.dense import DenseParameters
from recoup.train.draw import draw_rows
from recoup.train.empty import empty_batch
from recoup.train.errors import TrainError
from recoup.train.metrics import BinaryMetrics, Metrics
from recoup.train.ranks import Ranks
from recoup.train.regroup import replace_group
from recoup.train.sharding import shard


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step did, over all ranks."""

    step: int
    """Number of the step, from 1."""
    loss: float
    """Mean over the step's samples before the update."""
    num_samples: int


class Trainer:
    """A model in training on this rank."""

    def __init__(
        self,
        model: DLRMConfig,
        train: TrainConfig,
        schema: Schema,
        *,
        device: torch.device | str = "cpu",
        process_group: dist.ProcessGroup | None = None,
        plan: ShardingPlan | None = None,
    ) -> None:
        """Build and shard the model and draw its start; all ranks of the group do this together.

        Args:
            model: tables, layers.
            train: optimizers, seed.
            schema: of the batches: dense features and labels in their order.
            device: where this rank computes.
            process_group: ranks of the job; None = the default group, or a world of one.
            plan: sharding plan kept from an earlier build; None = whole tables, balanced by bytes.
        Raises:
            ConfigError: a feature of the model is not in the schema.
        """
        if train.num_threads is not None:
            torch.set_num_threads(train.num_threads)
            most: int = getattr(numba.config, "NUMBA_NUM_THREADS")  # noqa: B009 -- set at run time, unknown to checkers
            numba.set_num_threads(min(train.num_threads, most))
        self.config = train
        self.schema = schema
        self.device = torch.device(device)
        self.ranks = Ranks.join(self.device, process_group)
        dlrm = DLRM(model, schema, seed=train.seed)
        self.model = shard(dlrm, train, self.ranks, self.device, plan)
        self.model_config = model
        self.num_steps = 0
        self._label = model.label_index(schema)
        self._sizes = model.num_embeddings
        dense = {name: p for name, p in self.model.named_parameters() if not _is_table(name, model)}
        self._dense = DenseParameters(dense.items(), train, self.ranks)
        draw_rows(self.table_views(), model, train.seed)

    @property
    def plan(self) -> ShardingPlan:
        """Where every table is; give it to the next build after a failure."""
        return self.model.plan

    def step(self, batch: Batch) -> StepResult:
        """Train on one batch; with several ranks all call this together, each with its own samples (or none).

        Raises:
            ModelError: an absent feature, an ID outside its table, or a value that is not finite; on every rank.
            TrainError: the loss is not finite; nothing has been updated.
        """
        batch = batch.to(self.device)
        (num_samples,) = self.ranks.agree(self._problem(batch), [batch.num_samples], self.device)
        if num_samples == 0:
            return StepResult(step=self._count(), loss=0.0, num_samples=0)
        self.model.train()
        logits_B = self.model(batch)
        labels_B = batch.labels[:, self._label]
        loss = binary_cross_entropy_with_logits(logits_B, labels_B, reduction="sum")
        total = float(self.ranks.sum(loss.detach().double()))
        if total != total or total in (float("inf"), float("-inf")):
            raise self._loss_error(total, logits_B)
        self._dense.zero_grad()
        # TorchRec divides table gradients by the number of ranks, as the dense average does.
        (loss * (self.ranks.world_size / num_samples)).backward()
        self._dense.step()
        return StepResult(step=self._count(), loss=total / num_samples, num_samples=int(num_samples))

    def evaluate(self, batches: Iterable[Batch]) -> Metrics:
        """Return the quality on `batches`, each rank giving its own; equal on all ranks to one process's.

        Raises:
            ModelError: as `step`.
        """
        metrics = BinaryMetrics()
        self.model.eval()
        with torch.no_grad():
            for batch in self.ranks.in_step(batches, empty_batch(self.schema)):
                here = batch.to(self.device)
                self.ranks.agree(self._problem(here), [], self.device)
                metrics.add(self.model(here), here.labels[:, self._label])
        return metrics.result(self.ranks)

    def predict(self, batch: Batch) -> Tensor:
        """Return the probabilities of the batch's samples, float32 [B]; all ranks call this together."""
        here = batch.to(self.device)
        self.ranks.agree(self._problem(here), [], self.device)
        self.model.eval()
        with torch.no_grad():
            return torch.sigmoid(self.model(here))

    def regroup(self, group: dist.ProcessGroup) -> None:
        """Go on with the same ranks in another process group (after a failure); rows and plan stay as they are."""
        replace_group(self.model, self.ranks.group, group)
        self.ranks = Ranks.join(self.device, group)
        self._dense.ranks = self.ranks

    def table_views(self) -> dict[str, TableView]:
        """Return live views of the rows this rank holds, by table."""
        return table_views(self.model)

    def ids_by_table(self, batch: Batch) -> dict[str, Tensor]:
        """Return the rows that a step on `batch` reads and writes, by table: once for every unique row with them."""
        sparse = with_missing(batch.sparse, self.model_config.features, self.schema)
        return {
            table.name: torch.cat([pack_rows(sparse.rows[feature]).values for feature in table.features])
            for table in self.model_config.tables
        }

    def dense_state(self) -> dict[str, Tensor]:
        """Return copies of the dense parameters and of their optimizer's state, by name."""
        return self._dense.state()

    def load_dense_state(self, state: Mapping[str, Tensor]) -> None:
        """Set the dense parameters and their optimizer.

        Raises:
            TrainError: the state is of another model or optimizer; nothing is changed.
        """
        self._dense.load(state)

    def state_dict(self) -> State:
        """Return the counters."""
        return {"version": 1, "num_steps": self.num_steps}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Set the counters.

        Raises:
            StateError: not a state of this version.
        """
        check_state(state, version=1, keys={"num_steps"}, owner="trainer")
        num_steps = state["num_steps"]
        assert isinstance(num_steps, int)
        self.num_steps = num_steps

    def check_finite(self) -> None:
        """Refuse to go on with NaN or infinities in the model; called before anything is saved.

        Raises:
            TrainError: names the table and row, or the dense tensor.
        Cost: one pass over the local rows.
        """
        for name, view in self.table_views().items():
            for part, rows in (("weight", view.weight), *view.optimizer.items()):
                if rows.numel() and not bool(torch.isfinite(rows.sum())):
                    bad = (~torch.isfinite(rows.reshape(rows.shape[0], -1)).all(dim=1)).nonzero()
                    if bad.numel():
                        raise TrainError(
                            f"expected finite rows, got NaN or infinity in {part} of table '{name}', row "
                            f"{view.first_row + int(bad[0])}, step {self.num_steps}: nothing was saved; lower the "
                            "learning rate or check the inputs"
                        )
        wrong = self._dense.first_not_finite()
        if wrong:
            raise TrainError(f"expected finite dense state, got NaN or infinity in '{wrong}', step {self.num_steps}")

    def _problem(self, batch: Batch) -> RecoupError | None:
        try:
            check_finite(batch, self.schema.dense_names, self.schema.labels)
            check_ids(with_missing(batch.sparse, self.model_config.features, self.schema), self._sizes)
        except RecoupError as err:
            err.add_note(f"step {self.num_steps + 1}")
            return err
        return None

    def _count(self) -> int:
        self.num_steps += 1
        return self.num_steps

    def _loss_error(self, total: float, logits_B: Tensor) -> TrainError:
        bad = (~torch.isfinite(logits_B)).nonzero()
        where = f", sample {int(bad[0])} of the batch" if bad.numel() else ""
        return TrainError(
            f"expected a finite loss, got {total} (step {self.num_steps + 1}{where}): nothing was updated; "
            "lower the learning rate or clamp dense features"
        )


def _is_table(name: str, model: DLRMConfig) -> bool:
    return name.endswith(".weight") and name.split(".")[-2] in {module_name(table.name) for table in model.tables}
