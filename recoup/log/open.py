"""Every source Recoup reads, as one configuration union told apart by `kind`, and the one way to open it."""

from typing import TypeAlias

from recoup.log.avazu import AvazuLog, open_avazu
from recoup.log.criteo import CriteoLog, open_criteo
from recoup.log.csv import CsvLog, open_csv
from recoup.log.delta import DeltaLog, open_delta
from recoup.log.ebnerd import EbnerdLog, open_ebnerd
from recoup.log.iceberg import IcebergLog, open_iceberg
from recoup.log.jsonlines import JsonLinesLog, open_jsonlines
from recoup.log.kuairand import KuaiRandLog, open_kuairand
from recoup.log.landing import LandedLog, open_landed
from recoup.log.mind import MindLog, open_mind
from recoup.log.open_bandit import OpenBanditLog, open_open_bandit
from recoup.log.parquet import ParquetLog, open_parquet
from recoup.log.recbole import RecBoleLog, open_recbole
from recoup.log.source import LogSource
from recoup.log.synthetic import SyntheticLog, SyntheticSource

LogConfig: TypeAlias = (
    RecBoleLog
    | KuaiRandLog
    | CriteoLog
    | MindLog
    | EbnerdLog
    | AvazuLog
    | OpenBanditLog
    | ParquetLog
    | CsvLog
    | JsonLinesLog
    | DeltaLog
    | IcebergLog
    | LandedLog
    | SyntheticLog
)


def open_log(config: LogConfig) -> LogSource:
    """Return the source that `config` describes; files are listed now, side files read now, the log read later.

    Raises:
        LogError: the files are not there.
        ConfigError: the configuration contradicts itself.
    """
    if isinstance(config, SyntheticLog):
        return SyntheticSource(config)
    if isinstance(config, ParquetLog):
        return open_parquet(config)
    if isinstance(config, CsvLog):
        return open_csv(config)
    if isinstance(config, JsonLinesLog):
        return open_jsonlines(config)
    if isinstance(config, DeltaLog):
        return open_delta(config)
    if isinstance(config, IcebergLog):
        return open_iceberg(config)
    if isinstance(config, LandedLog):
        return open_landed(config)
    return _open_published(config)


def _open_published(
    config: RecBoleLog | KuaiRandLog | CriteoLog | MindLog | EbnerdLog | AvazuLog | OpenBanditLog,
) -> LogSource:
    match config:
        case RecBoleLog():
            return open_recbole(config)
        case KuaiRandLog():
            return open_kuairand(config)
        case CriteoLog():
            return open_criteo(config)
        case MindLog():
            return open_mind(config)
        case EbnerdLog():
            return open_ebnerd(config)
        case AvazuLog():
            return open_avazu(config)
        case OpenBanditLog():
            return open_open_bandit(config)
