"""Who fails when: failure traces, and an injector that records that it fired."""

from recoup.failures.errors import FailureTraceError
from recoup.failures.injector import Injection, Injector
from recoup.failures.traces import (
    ExponentialTrace,
    Failure,
    GammaTrace,
    RecordedTrace,
    Trace,
    draw_failures,
    read_trace,
    write_trace,
)

__all__ = [
    "ExponentialTrace",
    "Failure",
    "FailureTraceError",
    "GammaTrace",
    "Injection",
    "Injector",
    "RecordedTrace",
    "Trace",
    "draw_failures",
    "read_trace",
    "write_trace",
]
