"""Impression logs: one file a source format, each streaming Arrow record batches of the schema; a synthetic log."""

from recoup.log.avazu import AvazuLog
from recoup.log.conform import conform
from recoup.log.convert import Converted, ConvertOptions, convert_log
from recoup.log.criteo import CriteoLog
from recoup.log.csv import CsvLog
from recoup.log.delta import DeltaLog
from recoup.log.ebnerd import EbnerdLog
from recoup.log.errors import LogError
from recoup.log.iceberg import IcebergLog
from recoup.log.jsonlines import JsonLinesLog
from recoup.log.kuairand import KuaiRandLog
from recoup.log.landing import LandedLog
from recoup.log.mapping import ColumnMapping
from recoup.log.mind import MindLog
from recoup.log.open import LogConfig, open_log
from recoup.log.open_bandit import OpenBanditLog
from recoup.log.parquet import ParquetLog
from recoup.log.recbole import RecBoleLog, movielens_folder
from recoup.log.source import BATCH_SAMPLES, LogSource
from recoup.log.synthetic import RECD_LIKE_GROUPS, SyntheticGroup, SyntheticLog, SyntheticSource, synthetic_schema

__all__ = [
    "AvazuLog",
    "BATCH_SAMPLES",
    "ColumnMapping",
    "ConvertOptions",
    "Converted",
    "CriteoLog",
    "CsvLog",
    "DeltaLog",
    "EbnerdLog",
    "IcebergLog",
    "JsonLinesLog",
    "KuaiRandLog",
    "LandedLog",
    "LogConfig",
    "LogError",
    "LogSource",
    "MindLog",
    "OpenBanditLog",
    "ParquetLog",
    "RECD_LIKE_GROUPS",
    "RecBoleLog",
    "SyntheticGroup",
    "SyntheticLog",
    "SyntheticSource",
    "conform",
    "convert_log",
    "movielens_folder",
    "open_log",
    "synthetic_schema",
]
