"""Impression logs: one file a source format, each streaming Arrow record batches of the schema; a synthetic log."""

from recoup.log.conform import conform
from recoup.log.csv import CsvLog
from recoup.log.errors import LogError
from recoup.log.jsonlines import JsonLinesLog
from recoup.log.mapping import ColumnMapping
from recoup.log.open import LogConfig, open_log
from recoup.log.parquet import ParquetLog
from recoup.log.source import BATCH_SAMPLES, LogSource
from recoup.log.synthetic import RECD_LIKE_GROUPS, SyntheticGroup, SyntheticLog, SyntheticSource, synthetic_schema

__all__ = [
    "BATCH_SAMPLES",
    "ColumnMapping",
    "CsvLog",
    "JsonLinesLog",
    "LogConfig",
    "LogError",
    "LogSource",
    "ParquetLog",
    "RECD_LIKE_GROUPS",
    "SyntheticGroup",
    "SyntheticLog",
    "SyntheticSource",
    "conform",
    "open_log",
    "synthetic_schema",
]
