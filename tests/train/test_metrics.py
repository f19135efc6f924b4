"""Metrics: exact, ties half, undefined where undefined, the same in any order and split."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recoup.train import BinaryMetrics, TrainError


def metrics_of(scores, labels, split=1):
    found = BinaryMetrics()
    for s, y in zip(np.array_split(scores, split), np.array_split(labels, split), strict=True):
        found.add(torch.tensor(np.asarray(s, dtype=np.float32)), torch.tensor(np.asarray(y, dtype=np.float32)))
    return found.result()


def oracle_auc(scores, labels):
    """Count pairs one by one."""
    positives = [s for s, y in zip(scores, labels, strict=True) if y]
    negatives = [s for s, y in zip(scores, labels, strict=True) if not y]
    won = sum((p > n) + 0.5 * (p == n) for p in positives for n in negatives)
    return won / (len(positives) * len(negatives))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=40), st.integers(1, 4))
def test_metrics_equal_the_oracle_however_split_M04(samples, split):
    """AUC with ties, log loss, entropy and calibration equal slow Python; order and splits change no bit."""
    scores = [s / 2 for s, _ in samples]
    labels = [int(y) for _, y in samples]
    found = metrics_of(scores, labels, split)
    assert found == metrics_of(scores[::-1], labels[::-1]) or math.isnan(found.auc)
    p = [1 / (1 + math.exp(-s)) for s in scores]
    loss = -sum(math.log(q if y else 1 - q) for q, y in zip(p, labels, strict=True)) / len(p)
    assert found.log_loss == pytest.approx(loss)
    if 0 < sum(labels) < len(labels):
        rate = sum(labels) / len(labels)
        entropy = -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)
        assert found.auc == pytest.approx(oracle_auc(scores, labels), abs=1e-12)
        assert found.normalized_entropy == pytest.approx(loss / entropy)
        assert found.calibration == pytest.approx(sum(p) / sum(labels))


def test_five_distinct_scores_in_ten_thousand_rows_M04():
    """Heavily tied scores have the AUC of average ranks; all scores equal give one half."""
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 5, 10_000)
    labels = (rng.random(10_000) < scores / 6).astype(int)
    ranks = np.zeros(10_000)
    for value in range(5):
        ranks[scores == value] = (scores < value).sum() + ((scores == value).sum() + 1) / 2
    positives = labels.sum()
    auc = (ranks[labels == 1].sum() - positives * (positives + 1) / 2) / (positives * (10_000 - positives))
    assert metrics_of(scores, labels).auc == pytest.approx(auc, abs=1e-12)
    assert metrics_of(np.zeros(10_000), labels).auc == 0.5


@pytest.mark.parametrize(
    ("labels", "note"), [([1, 1], "positives"), ([0, 0, 0], "negatives"), ([1], "positives"), ([], "no samples")]
)
def test_one_class_is_undefined_with_a_note_M03(labels, note):
    """With one class or no sample AUC is NaN, JSON null, and the note says why; nothing fails."""
    found = metrics_of(np.zeros(len(labels)), labels)
    assert math.isnan(found.auc)
    assert found.to_dict()["auc"] is None
    assert note in found.note
    assert found.num_samples == len(labels)


def test_labels_and_scores_are_checked_M10():
    """A label other than 0 and 1, or a score that is not finite, is refused with its value."""
    with pytest.raises(TrainError, match=r"labels 0 and 1 in evaluation, got 0\.5"):
        BinaryMetrics().add(torch.zeros(2), torch.tensor([1.0, 0.5]))
    with pytest.raises(TrainError, match="finite scores, got nan"):
        BinaryMetrics().add(torch.tensor([0.0, float("nan")]), torch.zeros(2))


def test_compaction_changes_nothing(monkeypatch):
    """Merging the table on the way gives the same counts."""
    rng = np.random.default_rng(1)
    scores, labels = rng.integers(0, 50, 999), rng.integers(0, 2, 999)
    whole = metrics_of(scores, labels, 9)
    monkeypatch.setattr("recoup.train.metrics._COMPACT_SAMPLES", 100)
    assert metrics_of(scores, labels, 9) == whole
