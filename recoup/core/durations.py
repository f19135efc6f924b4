"""Durations as people write them: `90s`, `2m`, `14h`, `3d`, `250ms`; sums such as `1h30m` too.

Wall times in APIs are `timedelta`; formulas take floats named `..._seconds` or `..._hours`.
"""

import re
from datetime import timedelta

from recoup.core.errors import ConfigError

_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def parse_duration(text: str) -> timedelta:
    """Return the duration written in `text`.

    Args:
        text: one or more `<number><unit>` parts, unit one of ms, s, m, h, d.
    Raises:
        ConfigError: `text` is not of that form.
    """
    compact = text.replace(" ", "")
    if not re.fullmatch(f"(?:{_PART.pattern})+", compact):
        raise ConfigError(f"a duration is a number and a unit (ms, s, m, h, d), such as '30m', got {text!r}")
    return timedelta(seconds=sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(compact)))


def format_duration(duration: timedelta) -> str:
    """Return `duration` in the largest unit that `parse_duration` reads back to the same value."""
    seconds = duration.total_seconds()
    for unit in ("d", "h", "m", "s"):
        amount = seconds / _SECONDS[unit]
        if amount >= 1 and amount == int(amount):
            return f"{int(amount)}{unit}"
    return f"{round(seconds * 1000, 3):.3f}".rstrip("0").rstrip(".") + "ms"
