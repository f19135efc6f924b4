"""Failures on a virtual clock: overhead and quality of every way to save and recover, on one trace."""

from recoup.emulate.clock_only import ClockOnly, ClockResult, run_clock_only
from recoup.emulate.config import QUALITY_STRATEGIES, ClusterConfig, EmulateConfig, FailureConfig, LearnerConfig
from recoup.emulate.course import Course, Shards, prepare_course
from recoup.emulate.criteo_like import CriteoLikeData, criteo_like
from recoup.emulate.data import DataConfig, LogData, load_dataset, samples_of
from recoup.emulate.drive import RESULTS, Existing, MakeLearner, emulate, open_folder, split_work
from recoup.emulate.errors import EmulationError
from recoup.emulate.learner import Learner, Mirror, Quality, Rows, Whole
from recoup.emulate.machine import Account, JobTimes, Machine, Workload
from recoup.emulate.policies import make_policy, whole_view
from recoup.emulate.results import Comparison, append_record, compare, mean_and_error, read_records
from recoup.emulate.runs import NO_FAILURES, Bench, RunKey, prepare, run_one, run_seed, wanted_runs
from recoup.emulate.samples import Dataset, Samples, plain_batches, shuffled, split_by_time
from recoup.emulate.strategy import STRATEGIES, PolicyName, Strategy, costs_of, job_times, save_interval, strategy
from recoup.emulate.sweep import clock_records, clock_run
from recoup.emulate.trainer import make_trainer
from recoup.emulate.training import EmulatedTraining, RunPlan, Selector, large_tables, small_share

__all__ = [
    "Account",
    "Bench",
    "ClockOnly",
    "ClockResult",
    "ClusterConfig",
    "Comparison",
    "Course",
    "CriteoLikeData",
    "DataConfig",
    "Dataset",
    "EmulateConfig",
    "EmulatedTraining",
    "EmulationError",
    "Existing",
    "FailureConfig",
    "JobTimes",
    "Learner",
    "LearnerConfig",
    "LogData",
    "Machine",
    "MakeLearner",
    "Mirror",
    "NO_FAILURES",
    "PolicyName",
    "QUALITY_STRATEGIES",
    "Quality",
    "RESULTS",
    "Rows",
    "RunKey",
    "RunPlan",
    "STRATEGIES",
    "Samples",
    "Selector",
    "Shards",
    "Strategy",
    "Whole",
    "Workload",
    "append_record",
    "clock_records",
    "clock_run",
    "compare",
    "costs_of",
    "criteo_like",
    "emulate",
    "job_times",
    "large_tables",
    "load_dataset",
    "make_policy",
    "make_trainer",
    "mean_and_error",
    "open_folder",
    "plain_batches",
    "prepare",
    "prepare_course",
    "read_records",
    "run_clock_only",
    "run_one",
    "run_seed",
    "samples_of",
    "save_interval",
    "shuffled",
    "small_share",
    "split_by_time",
    "split_work",
    "strategy",
    "wanted_runs",
    "whole_view",
]
