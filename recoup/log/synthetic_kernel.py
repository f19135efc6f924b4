"""The compiled heart of the synthetic log: draws samples one after another from a pool of active sessions.

State is in arrays and moves forward sample by sample, so the cut into batches changes nothing.
Legend: A active sessions, F user-side features, G groups, I item-side features, D dense, n samples of a call.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numba
import numpy as np

from recoup.log.arrays import NumpyArray
from recoup.log.random_kernel import (
    Zipf,
    hash_id,
    new_random,
    new_zipf,
    next_bits,
    next_uniform,
    signed_part,
    zipf_id,
)

_MAX_ITEM_LENGTH = 20
_TASTE = 4  # dimensions of the planted user-item interaction
_WEIGHTS = (0.5, 0.4, 0.5, 0.3)  # item, user, interaction, dense shares of the planted log-odds; scaled to variance 1


@dataclass(frozen=True, slots=True)
class Tables:
    """What the user-side lists look like."""

    lengths: NumpyArray
    """int64 [F + 1, quantiles]; the last row is the item-side lists'."""
    group_of: NumpyArray
    """int64 [F]."""
    repeat: NumpyArray
    """float64 [G]."""
    shift: NumpyArray
    """bool [G]."""
    longest: int


class Rules(NamedTuple):
    """Constants of the kernel."""

    lengths: NumpyArray
    group_of: NumpyArray
    repeat: NumpyArray
    shift: NumpyArray
    dense_values: NumpyArray
    dense_effects: NumpyArray
    zipf: Zipf
    shift_of: NumpyArray
    num_items: int
    end: float
    bias: float
    scale: float
    mean_gap: float


class Pool(NamedTuple):
    """State of the active sessions, the random numbers, the clock and the counter of sessions."""

    lists: NumpyArray
    length: NumpyArray
    fresh: NumpyArray
    key: NumpyArray
    score: NumpyArray
    taste: NumpyArray
    random: NumpyArray
    clock: NumpyArray
    counter: NumpyArray


class Out(NamedTuple):
    """Where the kernel writes n samples."""

    values: NumpyArray
    offsets: NumpyArray
    dense: NumpyArray
    key: NumpyArray
    time: NumpyArray
    click: NumpyArray
    odds: NumpyArray


@dataclass(slots=True)
class World:
    """A generator in mid-log."""

    rules: Rules
    pool: Pool
    longest: int
    end: int = 0
    """Samples drawn so far."""
    out: Out | None = None


@dataclass(frozen=True, slots=True)
class Drawn:
    """n samples as arrays of their own."""

    key: NumpyArray
    time: NumpyArray
    click: NumpyArray
    odds: NumpyArray
    """float32 [n]: the true chance of a click."""
    dense: list[NumpyArray]
    lists: list[tuple[NumpyArray, NumpyArray]]
    """Offsets int32 [n + 1] and values int64, user-side features first."""
    end: int
    """Samples drawn up to and with these."""


def new_world(tables: Tables, *, seed: int, num_active: int, numbers: dict[str, Any]) -> World:
    """Return a generator at the start of its log."""
    num_features = len(tables.group_of)
    num_groups = len(tables.repeat)
    dense_values, dense_effects = _dense_tables(numbers["num_dense"])
    rules = Rules(
        lengths=tables.lengths,
        group_of=tables.group_of,
        repeat=tables.repeat,
        shift=tables.shift,
        dense_values=dense_values,
        dense_effects=dense_effects,
        zipf=new_zipf(numbers["zipf"], numbers["num_ids"]),
        shift_of=np.arange(num_features + numbers["num_items"]) * 7919 % numbers["num_ids"],
        num_items=numbers["num_items"],
        end=numbers["end"],
        bias=numbers["bias"],
        scale=numbers["scale"],
        mean_gap=numbers["mean_gap"],
    )
    pool = Pool(
        lists=np.empty((num_active, num_features, tables.longest), dtype=np.int64),
        length=np.zeros((num_active, num_features), dtype=np.int32),
        fresh=np.ones(num_active, dtype=np.bool_),
        key=np.zeros(num_active, dtype=np.int64),
        score=np.zeros((num_active, num_groups), dtype=np.float64),
        taste=np.zeros((num_active, num_groups, _TASTE), dtype=np.float64),
        random=new_random(seed),
        clock=np.array([float(numbers["start"])]),
        counter=np.zeros(1, dtype=np.int64),
    )
    return World(rules, pool, max(tables.longest, _MAX_ITEM_LENGTH))


def draw_samples(world: World, num_samples: int) -> Drawn:
    """Draw the next `num_samples` and move the world on."""
    if world.out is None or len(world.out.key) < num_samples:
        world.out = _new_out(world, num_samples)
    out = world.out
    _draw(world.rules, world.pool, out, num_samples)
    world.end += num_samples
    lists = [
        (offsets[: num_samples + 1].copy(), values[: offsets[num_samples]].copy())
        for offsets, values in zip(out.offsets, out.values, strict=True)
    ]
    return Drawn(
        key=out.key[:num_samples].copy(),
        time=out.time[:num_samples].copy(),
        click=out.click[:num_samples].copy(),
        odds=out.odds[:num_samples].copy(),
        dense=[row[:num_samples].copy() for row in out.dense],
        lists=lists,
        end=world.end,
    )


def _new_out(world: World, num_samples: int) -> Out:
    num_lists = world.pool.lists.shape[1] + world.rules.num_items
    return Out(
        # Pages that no list reaches are never touched, so they cost address space only.
        values=np.empty((num_lists, num_samples * world.longest), dtype=np.int64),
        offsets=np.zeros((num_lists, num_samples + 1), dtype=np.int32),
        dense=np.empty((len(world.rules.dense_values), num_samples), dtype=np.float32),
        key=np.empty(num_samples, dtype=np.int64),
        time=np.empty(num_samples, dtype=np.int64),
        click=np.empty(num_samples, dtype=np.float32),
        odds=np.empty(num_samples, dtype=np.float32),
    )


def _dense_tables(num_dense: int) -> tuple[NumpyArray, NumpyArray]:
    """Return counts at 4096 quantiles of log-normals of growing mean, and their standardised log1p."""
    u = (np.arange(4096) + 0.5) / 4096
    logistic = np.log(u / (1 - u)) * 0.7
    values = np.stack([np.floor(np.exp(logistic + 0.2 * j)) for j in range(num_dense)] or [np.zeros(4096)])
    effects = np.log1p(values)
    effects = (effects - effects.mean(axis=1, keepdims=True)) / np.maximum(effects.std(axis=1, keepdims=True), 1e-9)
    signs = np.where(np.arange(len(values)) % 2, -1.0, 1.0)[:, None] / np.sqrt(len(values))
    return values[:num_dense].astype(np.float32), effects[:num_dense] * signs


@numba.njit(cache=True, nogil=True)
def _draw(rules: Rules, pool: Pool, out: Out, num_samples: int) -> None:
    random = pool.random
    num_features = pool.lists.shape[1]
    for i in range(num_samples):
        pool.clock[0] -= rules.mean_gap * np.log(1.0 - next_uniform(random))
        slot = int(next_uniform(random) * len(pool.key))
        if pool.fresh[slot]:
            pool.fresh[slot] = False
            # An odd factor modulo 2**62 is one to one: keys look random and never meet.
            pool.key[slot] = (pool.counter[0] * 0x2545F4914F6CDD1D) & 0x3FFFFFFFFFFFFFFF
            pool.counter[0] += 1
            for group in range(len(rules.repeat)):
                _new_lists(rules, pool, slot, group)
        else:
            for group in range(len(rules.repeat)):
                if next_uniform(random) >= rules.repeat[group]:
                    if rules.shift[group]:
                        _shift_lists(rules, pool, slot, group)
                    else:
                        _new_lists(rules, pool, slot, group)
        out.key[i] = pool.key[slot]
        out.time[i] = np.int64(pool.clock[0])
        for feature in range(num_features):
            begin = out.offsets[feature, i]
            length = pool.length[slot, feature]
            source = pool.lists[slot, feature]
            target = out.values[feature, begin : begin + length]
            for j in range(length):
                target[j] = source[j]
            out.offsets[feature, i + 1] = begin + length
        log_odds = _items(rules, pool, out, i, slot) + _dense(rules, out, i, random)
        log_odds = rules.bias + rules.scale * log_odds
        out.odds[i] = 1.0 / (1.0 + np.exp(-log_odds))
        out.click[i] = 1.0 if next_uniform(random) < out.odds[i] else 0.0
        if next_uniform(random) < rules.end:
            pool.fresh[slot] = True


@numba.njit(cache=True, nogil=True)
def _new_lists(rules: Rules, pool: Pool, slot: int, group: int) -> None:
    random = pool.random
    numbers, chance, own, other, num_ids, stride = rules.zipf
    for feature in range(len(rules.group_of)):
        if rules.group_of[feature] == group:
            length = rules.lengths[feature, next_bits(random) & np.uint64(4095)]
            pool.length[slot, feature] = length
            row = pool.lists[slot, feature]
            shift = rules.shift_of[feature]
            for j in range(length):
                new = zipf_id(random, numbers, chance, own, other, stride) + shift
                row[j] = new if new < num_ids else new - num_ids
    _rate_group(rules, pool, slot, group)


@numba.njit(cache=True, nogil=True)
def _shift_lists(rules: Rules, pool: Pool, slot: int, group: int) -> None:
    numbers, chance, own, other, num_ids, stride = rules.zipf
    for feature in range(len(rules.group_of)):
        if rules.group_of[feature] == group:
            row = pool.lists[slot, feature]
            last = pool.length[slot, feature] - 1
            for j in range(last):
                row[j] = row[j + 1]
            new = zipf_id(pool.random, numbers, chance, own, other, stride) + rules.shift_of[feature]
            row[last] = new if new < num_ids else new - num_ids
    _rate_group(rules, pool, slot, group)


@numba.njit(cache=True, nogil=True)
def _rate_group(rules: Rules, pool: Pool, slot: int, group: int) -> None:
    """Keep the group's part of the user's score and taste, so that only a change costs time."""
    score = 0.0
    tastes = np.zeros(_TASTE)
    for feature in range(len(rules.group_of)):
        if rules.group_of[feature] == group:
            row = pool.lists[slot, feature]
            length = pool.length[slot, feature]
            scale = 1.0 / np.sqrt(length * len(rules.group_of))
            for j in range(length):
                bits = hash_id(row[j], feature)
                for k in range(_TASTE):
                    tastes[k] += signed_part(bits, k) * scale
                score += signed_part(bits, _TASTE) * scale
    pool.score[slot, group] = score
    pool.taste[slot, group] = tastes


@numba.njit(cache=True, nogil=True)
def _items(rules: Rules, pool: Pool, out: Out, i: int, slot: int) -> float:
    """Draw the item-side lists of sample `i`; return their and the user's part of the log-odds."""
    random = pool.random
    numbers, chance, own, other, num_ids, stride = rules.zipf
    num_features = pool.lists.shape[1]
    user = pool.score[slot].sum()
    tastes = np.zeros(_TASTE)
    for group in range(pool.score.shape[1]):
        for k in range(_TASTE):
            tastes[k] += pool.taste[slot, group, k]
    lengths = rules.lengths[num_features]
    score = 0.0
    match = 0.0
    for feature in range(num_features, num_features + rules.num_items):
        begin = out.offsets[feature, i]
        length = lengths[next_bits(random) & np.uint64(4095)]
        row = out.values[feature, begin : begin + length]
        scale = 1.0 / np.sqrt(length * rules.num_items)
        shift = rules.shift_of[feature]
        for j in range(length):
            new = zipf_id(random, numbers, chance, own, other, stride) + shift
            row[j] = new if new < num_ids else new - num_ids
            bits = hash_id(row[j], feature)
            for k in range(_TASTE):
                match += tastes[k] * signed_part(bits, k) * scale
            score += signed_part(bits, _TASTE) * scale
        out.offsets[feature, i + 1] = begin + length
    share_item, share_user, share_match, share_dense = _WEIGHTS
    norm = np.sqrt(share_item**2 + share_user**2 + share_match**2 + share_dense**2)
    return (share_item * score + share_user * user + share_match * match / np.sqrt(_TASTE)) / norm


@numba.njit(cache=True, nogil=True)
def _dense(rules: Rules, out: Out, i: int, random: NumpyArray) -> float:
    effect = 0.0
    for j in range(len(out.dense)):
        quantile = next_bits(random) & np.uint64(4095)
        out.dense[j, i] = rules.dense_values[j, quantile]
        effect += rules.dense_effects[j, quantile]
    share_item, share_user, share_match, share_dense = _WEIGHTS
    norm = np.sqrt(share_item**2 + share_user**2 + share_match**2 + share_dense**2)
    return share_dense * effect / norm
