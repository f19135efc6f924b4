"""Quality of binary predictions: AUC, log loss, normalised entropy, calibration; streamed, exact, the same on n ranks.

What is kept is a table of distinct scores with their counts of negatives and positives; everything is computed from
the table sorted by score, so the result does not depend on the order of samples, on batches, or on ranks: not even in
the last bit. Memory: 20 bytes a distinct score.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from recoup.train.errors import TrainError
from recoup.train.ranks import Ranks

_COMPACT_SAMPLES = 1 << 22


@dataclass(frozen=True, kw_only=True, slots=True)
class Metrics:
    """Quality over `num_samples` samples; NaN = undefined, and `note` says why."""

    num_samples: int
    num_positives: int
    auc: float
    """Chance that a positive scores above a negative, ties one half; NaN if one class is absent."""
    log_loss: float
    """Mean, nats; NaN without samples."""
    normalized_entropy: float
    """Log loss over the entropy of the positive rate: 1 = no better than the rate; NaN if one class is absent."""
    calibration: float
    """Sum of probabilities over number of positives; NaN without positives."""
    note: str = ""

    def to_dict(self) -> dict[str, float | int | str | None]:
        """Return plain JSON values: undefined is None."""
        return {k: None if isinstance(v, float) and v != v else v for k, v in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """Distinct scores (logits, ascending) and how many negatives and positives have each."""

    scores: npt.NDArray[np.float32]
    negatives: npt.NDArray[np.int64]
    positives: npt.NDArray[np.int64]

    @staticmethod
    def merge(tables: Sequence["ScoreTable"]) -> "ScoreTable":
        """Return the table of all samples of `tables`."""
        scores = np.concatenate([table.scores for table in tables])
        distinct, place = np.unique(scores, return_inverse=True)
        counts = []
        for name in ("negatives", "positives"):
            count = np.zeros(distinct.size, dtype=np.int64)
            np.add.at(count, place, np.concatenate([getattr(table, name) for table in tables]))
            counts.append(count)
        return ScoreTable(distinct, counts[0], counts[1])

    def metrics(self) -> Metrics:
        """Return the quality of the samples in the table."""
        positives, negatives = int(self.positives.sum()), int(self.negatives.sum())
        total = positives + negatives
        undefined = float("nan")
        if total == 0:
            return Metrics(
                num_samples=0,
                num_positives=0,
                auc=undefined,
                log_loss=undefined,
                normalized_entropy=undefined,
                calibration=undefined,
                note="no samples: nothing is defined",
            )
        scores = self.scores.astype(np.float64)
        loss = self.positives @ np.logaddexp(0.0, -scores) + self.negatives @ np.logaddexp(0.0, scores)
        log_loss = float(loss) / total
        predicted = float((self.positives + self.negatives) @ np.exp(-np.logaddexp(0.0, -scores)))
        one_class = positives == 0 or negatives == 0
        note = f"only one class ({'negatives' if positives == 0 else 'positives'}): AUC undefined" if one_class else ""
        rate = positives / total
        entropy = 0.0 if one_class else -rate * np.log(rate) - (1 - rate) * np.log1p(-rate)
        return Metrics(
            num_samples=total,
            num_positives=positives,
            auc=undefined if one_class else self._pairs_won() / (positives * negatives),
            log_loss=log_loss,
            normalized_entropy=undefined if one_class else log_loss / float(entropy),
            calibration=predicted / positives if positives else undefined,
            note=note,
        )

    def _pairs_won(self) -> float:
        """Count (positive, negative) pairs in the right order, equal scores one half; exact below 2**52 pairs."""
        below = np.cumsum(self.negatives) - self.negatives
        twice = [2 * int(self.positives @ below), int(self.positives @ self.negatives)]
        return sum(twice) / 2


class BinaryMetrics:
    """Takes logits and labels batch by batch."""

    def __init__(self) -> None:
        """Start empty."""
        self._tables: list[ScoreTable] = []
        self._pending = 0

    def add(self, logits: Tensor, labels: Tensor) -> None:
        """Count B samples.

        Args:
            logits: float32 [B].
            labels: [B], each 0 or 1.
        Raises:
            TrainError: a label is neither 0 nor 1, or a logit is not finite.
        """
        # -0.0 and 0.0 are one score
        scores = logits.detach().float().cpu().numpy() + np.float32(0)
        truth = labels.detach().float().cpu().numpy()
        if not np.isfinite(scores).all():
            raise TrainError(f"expected finite scores, got {scores[~np.isfinite(scores)][0]} in evaluation")
        if not np.isin(truth, (0.0, 1.0)).all():
            wrong = truth[~np.isin(truth, (0.0, 1.0))][0]
            raise TrainError(f"expected labels 0 and 1 in evaluation, got {wrong}")
        positive = (truth == 1).astype(np.int64)
        self._tables.append(ScoreTable(scores, 1 - positive, positive))
        self._pending += scores.size
        if self._pending >= _COMPACT_SAMPLES:
            self._tables = [ScoreTable.merge(self._tables)]
            self._pending = 0

    def table(self) -> ScoreTable:
        """Return the counts so far."""
        empty = ScoreTable(np.zeros(0, np.float32), np.zeros(0, np.int64), np.zeros(0, np.int64))
        return ScoreTable.merge([*self._tables, empty])

    def result(self, ranks: Ranks | None = None) -> Metrics:
        """Return the quality; with several ranks, of all their samples, the same on each."""
        table = self.table()
        if ranks is not None and ranks.world_size > 1:
            table = ScoreTable.merge(ranks.gather(table))
        return table.metrics()
