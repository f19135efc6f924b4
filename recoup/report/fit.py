"""A straight line through measured points, with its standard errors."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """y = slope x + intercept by least squares."""

    slope: float
    intercept: float
    slope_error: float
    """Standard error; NaN for two points or fewer."""
    intercept_error: float
    num_points: int

    def words(self) -> str:
        """Return the line as it is shown beside the points."""
        return (
            f"slope {self.slope:.3g} ± {self.slope_error:.2g}, at 0: {self.intercept:.2g} ± {self.intercept_error:.2g}"
        )


def fit_line(x: Sequence[float], y: Sequence[float]) -> Line | None:
    """Return the least-squares line, or None for fewer than two distinct x."""
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if np.unique(xs).size < 2:
        return None
    centre, spread = xs.mean(), ((xs - xs.mean()) ** 2).sum()
    slope = float(((xs - centre) * ys).sum() / spread)
    intercept = float(ys.mean() - slope * centre)
    residual = ((ys - slope * xs - intercept) ** 2).sum()
    variance = residual / (xs.size - 2) if xs.size > 2 else np.nan
    return Line(
        slope=slope,
        intercept=intercept,
        slope_error=float(np.sqrt(variance / spread)),
        intercept_error=float(np.sqrt(variance * (1 / xs.size + centre**2 / spread))),
        num_points=xs.size,
    )
