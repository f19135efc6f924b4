"""Failures on a virtual clock: overhead and quality of every way to save and recover, on one trace."""

from recoup.emulate.clock_only import ClockOnly, ClockResult, run_clock_only
from recoup.emulate.course import Course, Shards, prepare_course
from recoup.emulate.criteo_like import CriteoLikeData, criteo_like
from recoup.emulate.data import DataConfig, LogData, load_dataset, samples_of
from recoup.emulate.errors import EmulationError
from recoup.emulate.learner import Learner, Mirror, Quality, Rows, Whole
from recoup.emulate.machine import Account, JobTimes, Machine, Workload
from recoup.emulate.samples import Dataset, Samples, plain_batches, shuffled, split_by_time
from recoup.emulate.strategy import STRATEGIES, PolicyName, Strategy, job_times, save_interval, strategy
from recoup.emulate.training import EmulatedTraining, RunPlan, Selector, large_tables, small_share

__all__ = [
    "Account",
    "ClockOnly",
    "ClockResult",
    "Course",
    "CriteoLikeData",
    "DataConfig",
    "Dataset",
    "EmulatedTraining",
    "EmulationError",
    "JobTimes",
    "Learner",
    "LogData",
    "Machine",
    "Mirror",
    "PolicyName",
    "Quality",
    "Rows",
    "RunPlan",
    "STRATEGIES",
    "Samples",
    "Selector",
    "Shards",
    "Strategy",
    "Whole",
    "Workload",
    "criteo_like",
    "job_times",
    "large_tables",
    "load_dataset",
    "plain_batches",
    "prepare_course",
    "run_clock_only",
    "samples_of",
    "save_interval",
    "shuffled",
    "small_share",
    "split_by_time",
    "strategy",
]
