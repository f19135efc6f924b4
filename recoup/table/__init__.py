"""The session table: one row = one session, each version of a dedup group once, in Parquet that any engine reads."""

from recoup.table.added import regrouped, with_histories
from recoup.table.append import append_table
from recoup.table.build import build_table
from recoup.table.build_config import BuildConfig
from recoup.table.compact import compact_table
from recoup.table.disk import disk_needed
from recoup.table.encode import SessionEncoder, encode_sessions
from recoup.table.errors import TableError
from recoup.table.flatten import flatten_rows
from recoup.table.histories import HistoryFeature
from recoup.table.history_means import HistoryMean
from recoup.table.layout import row_schema
from recoup.table.manifest import Counts, GroupPrediction, Manifest, Part, RowGroup
from recoup.table.remote import is_remote, mirror_of, pull_table, push_table, worked_on
from recoup.table.session_table import SessionTable, open_table
from recoup.table.sessions import SessionRule
from recoup.table.writer import WriterConfig

__all__ = [
    "BuildConfig",
    "Counts",
    "GroupPrediction",
    "HistoryFeature",
    "HistoryMean",
    "Manifest",
    "Part",
    "RowGroup",
    "SessionEncoder",
    "SessionRule",
    "SessionTable",
    "TableError",
    "WriterConfig",
    "append_table",
    "build_table",
    "compact_table",
    "disk_needed",
    "encode_sessions",
    "flatten_rows",
    "is_remote",
    "mirror_of",
    "open_table",
    "pull_table",
    "push_table",
    "regrouped",
    "row_schema",
    "with_histories",
    "worked_on",
]
