"""The synthetic log: sessions interleaved in time, features that repeat with known odds, clicks that can be learnt.

Declared synthetic wherever it is shown. The default is "recd-like" (DESIGN section 10): mean 16.5 samples a session,
about 1.15 samples a session in a window of 4,096 samples, 8 user-side lists in 3 dedup groups, 12 item-side lists,
13 dense counts, IDs Zipf(1.05) over 10 million. The same configuration gives the same samples on every machine and
whatever the batch size.

How: `num_active` sessions are alive at any time; each sample comes from one of them, drawn evenly; after a sample its
session ends with probability 1 / L and a new one takes its place. Lengths are geometric (long tail), and the gap to a
session's next sample is memoryless, so the log looks alike from its first window to its last. `num_active` and L are
solved from the wanted means; in a log too short for them sessions are interleaved as far as its length allows.
Memory: the lists of the active sessions (about 80 MB for the default), whatever `num_samples` is.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from recoup.core import ConfigError, Progress, derive_seed, no_progress
from recoup.log.arrays import NumpyArray
from recoup.log.source import BATCH_SAMPLES, selected_schema
from recoup.log.synthetic_kernel import Drawn, Tables, World, draw_samples, new_world
from recoup.schema import DenseFeature, Schema, SparseFeature

_SLOT_SHARE = 0.75  # at most this share of a log's sessions is alive at once, so that short logs keep a tail of lengths


@dataclass(frozen=True, kw_only=True, slots=True)
class SyntheticGroup:
    """User-side list features that change together."""

    name: str
    """Dedup group."""
    prefix: str
    """Features are `<prefix>_0`, `<prefix>_1`, ..."""
    num_features: int
    repeat: float
    """Chance that the whole group is unchanged from one sample of a session to its next (d)."""
    shift: bool = False
    """True: a change appends one new ID and drops the oldest (a rolling history); False: new lists are drawn."""
    mean_length: float = 40.0
    """Mean of the log-normal list length, clipped to [min_length, max_length]."""
    min_length: int = 5
    max_length: int = 100


RECD_LIKE_GROUPS = (
    SyntheticGroup(name="stable", prefix="u_stable", num_features=4, repeat=0.98),
    SyntheticGroup(name="medium", prefix="u_medium", num_features=2, repeat=0.90),
    SyntheticGroup(name="history", prefix="hist", num_features=2, repeat=0.75, shift=True),
)
"""The standard groups: about 79 % of all ID values are exact repeats within a session."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SyntheticLog:
    """A log drawn from a seed.

    Raises:
        ConfigError: a setting is out of range.
    """

    kind: Literal["synthetic"] = "synthetic"
    num_samples: int
    seed: int = 0
    groups: tuple[SyntheticGroup, ...] = RECD_LIKE_GROUPS
    num_item_features: int = 12
    item_length: float = 2.0
    """Mean of the item-side list length: 1 + geometric, at most 20."""
    num_dense: int = 13
    """Dense features: heavy-tailed counts 0, 1, 2, ... drawn for every sample."""
    samples_per_session: float = 16.5
    window_samples: int = 4096
    samples_per_session_in_window: float = 1.15
    """Mean samples a session within `window_samples` neighbours of the time-ordered log."""
    num_ids: int = 10_000_000
    """IDs of every feature are 0 .. num_ids - 1, popularity spread over them by a fixed permutation."""
    zipf: float = 1.05
    """Exponent of ID popularity; 0 = uniform."""
    click_rate: float = 0.2
    click_scale: float = 1.5
    """Standard deviation of the planted log-odds: 1.5 gives the true odds an AUC of about 0.8."""
    start_time: int = 1_700_000_000_000
    """Time of the log's start, milliseconds since the epoch."""
    samples_per_second: float = 100.0

    def __post_init__(self) -> None:
        """Check ranges."""
        for name, lowest in (("num_samples", 0), ("num_ids", 2), ("num_item_features", 0), ("num_dense", 0)):
            if getattr(self, name) < lowest:
                raise ConfigError(f"{name} must be at least {lowest}, got {getattr(self, name)}")
        for group in self.groups:
            if not 0 <= group.repeat <= 1:
                raise ConfigError(f"repeat must be a chance in [0, 1], got {group.repeat} (group '{group.name}')")
            if not 1 <= group.min_length <= group.mean_length <= group.max_length:
                raise ConfigError(f"lengths must have 1 <= min <= mean <= max, got {group} (group '{group.name}')")
        if self.samples_per_session < 1 or self.samples_per_session_in_window < 1:
            raise ConfigError(f"a session has at least one sample, got {self.samples_per_session}")
        if not 0 < self.click_rate < 1 or self.zipf < 0 or self.samples_per_second <= 0:
            raise ConfigError(
                f"expected click_rate in (0, 1), zipf >= 0, samples_per_second > 0, got {self.click_rate}, "
                f"{self.zipf}, {self.samples_per_second}"
            )


def synthetic_schema(config: SyntheticLog) -> Schema:
    """Return the schema of the log: key `session_key`, label `click`, groups as configured, items ungrouped."""
    user_side = [
        SparseFeature(name=f"{group.prefix}_{i}", group=group.name)
        for group in config.groups
        for i in range(group.num_features)
    ]
    item_side = [SparseFeature(name=f"item_{i}") for i in range(config.num_item_features)]
    return Schema(
        key="session_key",
        labels=("click",),
        dense=tuple(DenseFeature(name=f"dense_{i}") for i in range(config.num_dense)),
        sparse=(*user_side, *item_side),
    )


class SyntheticSource:
    """A `LogSource` that draws its samples."""

    def __init__(self, config: SyntheticLog) -> None:
        """Solve the session process; nothing is drawn yet."""
        self.config = config
        self.schema = synthetic_schema(config)
        self.num_bytes: int | None = None
        self.num_active, self.mean_length = session_process(config)

    def describe(self) -> dict[str, Any]:
        """Return the settings that shape the log."""
        return {
            "kind": "synthetic",
            "num_samples": self.config.num_samples,
            "seed": self.config.seed,
            "active_sessions": self.num_active,
            "repeat_by_group": {group.name: group.repeat for group in self.config.groups},
            "columns": list(self.schema.column_names),
        }

    def batches(
        self,
        columns: Sequence[str] | None = None,
        *,
        batch_samples: int = BATCH_SAMPLES,
        progress: Progress = no_progress,
    ) -> Iterator[pa.RecordBatch]:
        """Draw the log from its start (see `LogSource.batches`); progress counts samples."""
        target = selected_schema(self.schema, columns)
        for drawn in self.draw(batch_samples):
            progress("draw log", drawn.end, self.config.num_samples)
            yield _to_arrow(drawn, self.schema, target)

    def draw(self, batch_samples: int = BATCH_SAMPLES) -> Iterator[Drawn]:
        """Yield the samples as NumPy arrays, with the true click odds, which the log itself does not show."""
        world = _world(self.config, self.num_active, self.mean_length)
        for start in range(0, self.config.num_samples, batch_samples):
            yield draw_samples(world, min(batch_samples, self.config.num_samples - start))


def session_process(config: SyntheticLog) -> tuple[int, float]:
    """Return the number of active sessions and the mean length L that give the wanted means over the whole log.

    With A active sessions and N samples, a session still active at the end is cut there, so L is longer than the
    measured mean m: N / m = N / L + A (1 - 1/L)(1 - (1 - 1/A)^N). Within W samples the mean samples a session is
    1 / (1/L + (1 - 1/L) (A/W)(1 - (1 - 1/A)^W)): the chance that a sample is the first of its session there.
    """
    wanted = config.samples_per_session
    most = max(1, int(_SLOT_SHARE * config.num_samples / wanted))
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        end = _end_chance(middle, config.num_samples, wanted)
        if _window_mean(middle, end, config.window_samples) > config.samples_per_session_in_window:
            low = middle + 1
        else:
            high = middle
    return low, 1 / _end_chance(low, config.num_samples, wanted)


def _end_chance(active: int, num_samples: int, wanted: float) -> float:
    if num_samples == 0:
        return 1 / wanted
    started = active * -math.expm1(num_samples * math.log1p(-1 / active)) if active > 1 else 1.0
    return min(1.0, max((num_samples / wanted - started) / max(num_samples - started, 1.0), 1e-6))


def _window_mean(active: int, end: float, window: int) -> float:
    unseen = active / window * -math.expm1(window * math.log1p(-1 / active)) if active > 1 else 1 / window
    return 1 / (end + (1 - end) * unseen)


def _world(config: SyntheticLog, num_active: int, mean_length: float) -> World:
    features = [group for group in config.groups for _ in range(group.num_features)]
    tables = Tables(
        lengths=np.stack([*(_length_table(group) for group in features), *[_item_table(config.item_length)]]),
        group_of=np.array([config.groups.index(group) for group in features], dtype=np.int64),
        repeat=np.array([group.repeat for group in config.groups], dtype=np.float64),
        shift=np.array([group.shift for group in config.groups], dtype=np.bool_),
        longest=max([group.max_length for group in config.groups], default=1),
    )
    numbers = {
        "num_items": config.num_item_features,
        "num_dense": config.num_dense,
        "num_ids": config.num_ids,
        "zipf": config.zipf,
        "end": 1 / mean_length,
        "bias": 0.0,
        "scale": 1.0,
        "start": config.start_time,
        "mean_gap": 1000.0 / config.samples_per_second,
    }
    # A pilot of its own seed tells mean and spread of the raw log-odds, so that rate and scale come out as asked.
    pilot = new_world(tables, seed=derive_seed(config.seed, "pilot"), num_active=1024, numbers=numbers)
    odds = np.clip(draw_samples(pilot, 8192).odds.astype(np.float64), 1e-6, 1 - 1e-6)
    raw = np.log(odds / (1 - odds))
    scale = config.click_scale / max(float(raw.std()), 1e-9)
    bias = _bias(config.click_rate, scale * raw)
    seed = derive_seed(config.seed, "synthetic log")
    return new_world(tables, seed=seed, num_active=num_active, numbers={**numbers, "bias": bias, "scale": scale})


def _length_table(group: SyntheticGroup, size: int = 4096) -> NumpyArray:
    """Return lengths at `size` even quantiles of the clipped log-normal, its median solved so that the mean fits."""
    normal = _normal_quantiles(size)
    low, high = math.log(group.min_length) - 3, math.log(group.max_length) + 3
    for _ in range(60):
        middle = (low + high) / 2
        lengths = np.clip(np.rint(np.exp(middle + 0.6 * normal)), group.min_length, group.max_length)
        low, high = (middle, high) if lengths.mean() < group.mean_length else (low, middle)
    return np.clip(np.rint(np.exp(high + 0.6 * normal)), group.min_length, group.max_length).astype(np.int64)


def _item_table(mean: float, size: int = 4096) -> NumpyArray:
    u = (np.arange(size) + 0.5) / size
    extra = np.zeros(size) if mean <= 1 else np.floor(np.log1p(-u) / math.log1p(-1 / mean))
    return np.minimum(1 + extra, 20).astype(np.int64)


def _normal_quantiles(size: int) -> NumpyArray:
    grid = np.linspace(-6, 6, 20001)
    chance = np.cumsum(np.exp(-grid * grid / 2))
    return np.interp((np.arange(size) + 0.5) / size, chance / chance[-1], grid)


def _bias(rate: float, log_odds: NumpyArray) -> float:
    """Return the offset at which the mean of sigmoid(offset + log_odds) is `rate`."""
    low, high = -30.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2
        mean = float(np.mean(1 / (1 + np.exp(-(middle + log_odds)))))
        low, high = (middle, high) if mean < rate else (low, middle)
    return high


def _to_arrow(drawn: Drawn, schema: Schema, target: pa.Schema) -> pa.RecordBatch:
    arrays: list[pa.Array] = []
    for field in target:
        if field.name in schema.sparse_names:
            offsets, values = drawn.lists[schema.sparse_names.index(field.name)]
            arrays.append(pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), type=field.type))
        elif field.name in schema.dense_names:
            arrays.append(pa.array(drawn.dense[schema.dense_names.index(field.name)]))
        else:
            arrays.append(pa.array({schema.key: drawn.key, schema.time: drawn.time}.get(field.name, drawn.click)))
    return pa.RecordBatch.from_arrays(arrays, schema=target)
