"""Failures on a virtual clock: overhead and quality of every way to save and recover, on one trace."""

from recoup.emulate.clock_only import ClockOnly, ClockResult, run_clock_only
from recoup.emulate.errors import EmulationError
from recoup.emulate.machine import Account, JobTimes, Machine, Workload
from recoup.emulate.strategy import STRATEGIES, PolicyName, Strategy, job_times, save_interval, strategy

__all__ = [
    "STRATEGIES",
    "Account",
    "ClockOnly",
    "ClockResult",
    "EmulationError",
    "JobTimes",
    "Machine",
    "PolicyName",
    "Strategy",
    "Workload",
    "job_times",
    "run_clock_only",
    "save_interval",
    "strategy",
]
