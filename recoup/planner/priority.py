"""What priority saving buys: how much smaller the lost accesses are when hot rows are saved more often.

Every r T_save the r N rows with most accesses since they were last saved are saved (MFU), the bytes being those of
plain saving. With accesses in proportion to the rates, row i is saved once its count reaches a threshold c, so every
m_i = ceil(c / (p_i r T_save)) savings, and c follows from the number of rows saved: sum_i 1 / m_i = r N.
Source: our own; a prediction for CPR's MFU, held against a simulation in tests/planner. It takes many accesses a row;
where rows get few, chance decides which are saved, and the policy sees that while this formula does not.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from recoup.core import ConfigError


def priority_loss_ratio(access_rates: Sequence[float] | NDArray[np.float64], fraction: float) -> float:
    """Return lost accesses with priority saving over those with plain saving of the same volume, in (0, 1].

    1 for rows alike; near `fraction` when a few rows get nearly all accesses.

    Args:
        access_rates: accesses a unit of time, by row, at least 0; any unit.
        fraction: r, the part of the rows saved each r T_save, in (0, 1].
    Raises:
        ConfigError: a negative rate, no access at all, or a fraction outside (0, 1].
    Cost: O(R) time a step of a bisection of 60 steps.
    """
    rates = np.asarray(access_rates, dtype=np.float64)
    if not 0 < fraction <= 1:
        raise ConfigError(f"the fraction of rows saved at once lies in (0, 1], got {fraction}")
    if rates.size == 0 or rates.min() < 0 or rates.max() == 0:
        raise ConfigError("access rates must be at least 0 and not all 0")
    used = rates[rates > 0]
    per_saving = used * (fraction / used.sum())
    savings = _savings_between(per_saving, _threshold(per_saving, fraction * rates.size))
    return min(float((per_saving * savings).sum()), 1.0)


def zipf_rates(num_rows: int, exponent: float) -> NDArray[np.float64]:
    """Return access rates of rows whose popularity is Zipf's: rank to the power of -exponent, sum 1."""
    rates = np.arange(1, num_rows + 1, dtype=np.float64) ** -exponent
    return rates / rates.sum()


def _savings_between(per_saving: NDArray[np.float64], threshold: float) -> NDArray[np.float64]:
    """Return how many savings pass until a row's count, growing by `per_saving`, reaches the threshold."""
    return np.maximum(1.0, np.ceil(threshold / per_saving * (1 - 1e-12)))


def _threshold(per_saving: NDArray[np.float64], num_saved: float) -> float:
    """Return the least count c at which no more than `num_saved` rows are saved at a time."""
    low, high = 0.0, float(per_saving.max())
    while (1 / _savings_between(per_saving, high)).sum() > num_saved:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        if (1 / _savings_between(per_saving, middle)).sum() > num_saved:
            low = middle
        else:
            high = middle
    return high
