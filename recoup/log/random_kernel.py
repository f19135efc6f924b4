"""Random numbers inside compiled loops: xoshiro256**, a hash of IDs, and IDs by Zipf's law."""

from typing import NamedTuple

import numba
import numpy as np

from recoup.log.arrays import NumpyArray

_HEAD = 1 << 14  # ranks in the alias table: 400 kB, within a core's cache; 71 % of Zipf(1.05) over 10 million


def new_random(seed: int) -> NumpyArray:
    """Return the state of a generator, uint64 [4], filled from `seed` by splitmix64."""
    state = np.empty(4, dtype=np.uint64)
    x = seed
    for i in range(4):
        x = (x + 0x9E3779B97F4A7C15) % 2**64
        z = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
        state[i] = z ^ (z >> 31)
    return state


@numba.njit(cache=True, nogil=True, inline="always")
def next_bits(state: NumpyArray) -> np.uint64:
    """Return 64 random bits and move the state on.

    Source: Blackman and Vigna, xoshiro256**.
    """
    x = state[1] * np.uint64(5)
    result = ((x << np.uint64(7)) | (x >> np.uint64(57))) * np.uint64(9)
    t = state[1] << np.uint64(17)
    state[2] ^= state[0]
    state[3] ^= state[1]
    state[1] ^= state[2]
    state[0] ^= state[3]
    state[2] ^= t
    state[3] = (state[3] << np.uint64(45)) | (state[3] >> np.uint64(19))
    return result


@numba.njit(cache=True, nogil=True, inline="always")
def next_uniform(state: NumpyArray) -> float:
    """Return a uniform float64 in [0, 1)."""
    return np.float64(np.int64(next_bits(state) >> np.uint64(11))) * (1.0 / 9007199254740992.0)


@numba.njit(cache=True, nogil=True, inline="always")
def hash_id(value: int, feature: int) -> np.uint64:
    """Return 64 well-mixed bits that depend on the ID and on the feature."""
    x = np.uint64(value) + np.uint64(feature + 1) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@numba.njit(cache=True, nogil=True, inline="always")
def signed_part(bits: np.uint64, part: int) -> float:
    """Return part 0 .. 4 of 64 hashed bits as an independent value of mean 0 and variance 1 (uniform)."""
    return (np.float64(np.int64(bits >> np.uint64(12 * part)) & 4095) * (1.0 / 2047.5) - 1.0) * 1.7320508075688772


class Zipf(NamedTuple):
    """What `zipf_id` needs: a table of the most frequent ranks, and a formula for the others."""

    numbers: NumpyArray
    """float64 [6]: exponent, last rank, chance of the table, and the bounds of rejection-inversion beyond it."""
    chance: NumpyArray
    """float64 [K]: of a cell of the alias table, its own share."""
    own: NumpyArray
    """int64 [K]: the cell's own ID."""
    other: NumpyArray
    """int64 [K]: the ID that fills the rest of the cell."""
    num_ids: int
    stride: int
    """Rank r is ID r * stride modulo `num_ids`."""


def new_zipf(exponent: float, num_ids: int) -> Zipf:
    """Return the distribution with chance(rank r) proportional to (r + 1) ** -exponent, ranks spread over the IDs.

    Source: Walker's alias method for the head; for the tail Hoermann and Derflinger, rejection-inversion to generate
    variates from monotone discrete distributions (1996), started at the first rank beyond the head.
    """
    size = min(_HEAD, num_ids)
    weights = np.arange(1, size + 1, dtype=np.float64) ** -exponent
    first = size + 1  # first rank of the tail, counted from 1
    tail = _tail_weight(exponent, first, num_ids) if num_ids > size else 0.0
    numbers = np.array([exponent, float(num_ids), weights.sum() / (weights.sum() + tail), 0.0, 0.0, 0.0])
    numbers[3] = _integral(first + 0.5, exponent) - float(first) ** -exponent
    numbers[4] = _integral(num_ids + 0.5, exponent)
    numbers[5] = first + 1.0 - _inverse(_integral(first + 1.5, exponent) - (first + 1.0) ** -exponent, exponent)
    chance, other = _alias(weights / weights.sum())
    stride = _stride(num_ids)
    ids = np.arange(size) * stride % num_ids
    return Zipf(numbers, chance, ids, ids[other], num_ids, stride)


@numba.njit(cache=True, nogil=True)
def zipf_id(
    state: NumpyArray, numbers: NumpyArray, chance: NumpyArray, own: NumpyArray, other: NumpyArray, stride: int
) -> int:
    """Return a random ID; the arguments are the fields of `Zipf` (tuples of arrays are slow to pass on)."""
    u = next_uniform(state)
    if u < numbers[2]:
        place = u / numbers[2] * len(chance)
        cell = min(int(place), len(chance) - 1)
        return own[cell] if place - cell < chance[cell] else other[cell]
    exponent = numbers[0]
    while True:
        u = numbers[4] + next_uniform(state) * (numbers[3] - numbers[4])
        x = _inverse(u, exponent)
        rank = min(max(np.floor(x + 0.5), len(chance) + 1.0), numbers[1])
        if rank - x <= numbers[5] or u >= _integral(rank + 0.5, exponent) - rank**-exponent:
            return (int(rank) - 1) * stride % int(numbers[1])


def _stride(num_ids: int) -> int:
    """Return a factor near the golden section of `num_ids` and coprime to it: rank * stride mod num_ids permutes."""
    stride = max(1, int(num_ids * 0.6180339887))
    while np.gcd(stride, num_ids) != 1:
        stride += 1
    return stride


def _tail_weight(exponent: float, first: int, last: int) -> float:
    """Return sum of r ** -exponent over first .. last, by Euler and Maclaurin (error 1e-12 beyond 10,000)."""
    a, b = float(first), float(last)
    ends = (a**-exponent + b**-exponent) / 2
    slopes = exponent * (a ** (-exponent - 1) - b ** (-exponent - 1)) / 12
    return _integral(b, exponent) - _integral(a, exponent) + ends + slopes


def _alias(chances: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
    """Return Walker's alias table of a distribution: each cell's own share, and who fills the rest."""
    share = chances * len(chances)
    other = np.arange(len(chances))
    small = [int(i) for i in np.flatnonzero(share < 1)]
    large = [int(i) for i in np.flatnonzero(share >= 1)]
    while small and large:
        cell, donor = small.pop(), large[-1]
        other[cell] = donor
        share[donor] -= 1 - share[cell]
        if share[donor] < 1:
            small.append(large.pop())
    return np.minimum(share, 1.0), other


@numba.njit(cache=True, nogil=True)
def _integral(x: float, exponent: float) -> float:
    power = 1.0 - exponent
    return np.log(x) if abs(power) < 1e-9 else np.expm1(power * np.log(x)) / power


@numba.njit(cache=True, nogil=True)
def _inverse(u: float, exponent: float) -> float:
    power = 1.0 - exponent
    return np.exp(u) if abs(power) < 1e-9 else np.exp(np.log1p(power * u) / power)
