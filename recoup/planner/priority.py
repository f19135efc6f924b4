"""What priority saving buys: how much smaller the lost accesses are when hot rows are saved more often.

Every r T_save the r N rows with most accesses since they were last saved are saved (MFU). In the fluid limit row i
with access rate p_i is saved each time its count reaches a threshold c, so its period is max(r T_save, c / p_i), and c
follows from the number of rows saved: sum_i r T_save / period_i = r N. The bytes are those of plain saving.
Source: our own; a prediction for CPR's MFU, compared with the emulator's effective PLS in docs/planner.md.
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
    periods = np.maximum(fraction, _threshold(used, fraction, rates.size) / used)
    return float((used * periods).sum() / used.sum())


def zipf_rates(num_rows: int, exponent: float) -> NDArray[np.float64]:
    """Return access rates of rows whose popularity is Zipf's: rank to the power of -exponent, sum 1."""
    rates = np.arange(1, num_rows + 1, dtype=np.float64) ** -exponent
    return rates / rates.sum()


def _threshold(rates: NDArray[np.float64], fraction: float, num_rows: int) -> float:
    """Return c such that sum of min(1, r p_i / c) = r N; 0 if even saving every used row each time is not more."""
    if rates.size <= fraction * num_rows:
        return 0.0
    low, high = 0.0, float(rates.sum()) / num_rows
    while np.minimum(1.0, fraction * rates / high).sum() > fraction * num_rows:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        if np.minimum(1.0, fraction * rates / middle).sum() > fraction * num_rows:
            low = middle
        else:
            high = middle
    return high
