"""Every source Recoup reads, as one configuration union told apart by `kind`, and the one way to open it."""

from typing import TypeAlias

from recoup.log.csv import CsvLog, open_csv
from recoup.log.jsonlines import JsonLinesLog, open_jsonlines
from recoup.log.parquet import ParquetLog, open_parquet
from recoup.log.source import LogSource
from recoup.log.synthetic import SyntheticLog, SyntheticSource

LogConfig: TypeAlias = ParquetLog | CsvLog | JsonLinesLog | SyntheticLog


def open_log(config: LogConfig) -> LogSource:
    """Return the source that `config` describes; files are listed now, read later.

    Raises:
        LogError: the files are not there.
        ConfigError: the configuration contradicts itself.
    """
    match config:
        case ParquetLog():
            return open_parquet(config)
        case CsvLog():
            return open_csv(config)
        case JsonLinesLog():
            return open_jsonlines(config)
        case SyntheticLog():
            return SyntheticSource(config)
