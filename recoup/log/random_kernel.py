"""Random numbers inside compiled loops: xoshiro256**, a hash of IDs, and Zipf ranks by rejection-inversion."""

import numba
import numpy as np

from recoup.log.arrays import NumpyArray


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
    return np.float64(next_bits(state) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


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
    return (np.float64((bits >> np.uint64(12 * part)) & np.uint64(4095)) / 2047.5 - 1.0) * 1.7320508075688772


def zipf_constants(exponent: float, num_ids: int) -> NumpyArray:
    """Return what `zipf_rank` needs, float64 [5].

    Source: Hoermann and Derflinger, rejection-inversion for monotone discrete distributions (1996).
    """
    constants = np.array([exponent, float(num_ids), 0.0, 0.0, 0.0])
    constants[2] = _integral(1.5, exponent) - 1.0
    constants[3] = _integral(num_ids + 0.5, exponent)
    constants[4] = 2.0 - _inverse(_integral(2.5, exponent) - 2.0**-exponent, exponent)
    return constants


@numba.njit(cache=True, nogil=True)
def zipf_rank(state: NumpyArray, constants: NumpyArray) -> int:
    """Return a rank in 0 .. num_ids - 1 with chance proportional to (rank + 1) ** -exponent."""
    exponent = constants[0]
    while True:
        u = constants[3] + next_uniform(state) * (constants[2] - constants[3])
        x = _inverse(u, exponent)
        rank = min(max(np.floor(x + 0.5), 1.0), constants[1])
        if rank - x <= constants[4] or u >= _integral(rank + 0.5, exponent) - rank**-exponent:
            return int(rank) - 1


@numba.njit(cache=True, nogil=True)
def _integral(x: float, exponent: float) -> float:
    power = 1.0 - exponent
    return np.log(x) if abs(power) < 1e-9 else np.expm1(power * np.log(x)) / power


@numba.njit(cache=True, nogil=True)
def _inverse(u: float, exponent: float) -> float:
    power = 1.0 - exponent
    return np.exp(u) if abs(power) < 1e-9 else np.exp(np.log1p(power * u) / power)
