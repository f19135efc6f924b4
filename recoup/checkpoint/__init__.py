"""The row-delta checkpoint store: bases and deltas a shard, the manifest is the commit, one shard restored alone."""

from recoup.checkpoint.errors import CheckpointError, DamagedError, NoCheckpointError
from recoup.checkpoint.manifest import Entry, FileRef, Manifest, TableFacts
from recoup.checkpoint.plan import ShardPlan
from recoup.checkpoint.requests import PendingSave, Restored, SaveRequest, Snapshot, StoreConfig
from recoup.checkpoint.snapshot import RowsCopy
from recoup.checkpoint.storage import Storage
from recoup.checkpoint.store import CheckpointStore
from recoup.checkpoint.together import FileGather, Gather, remove_reports, save_together, start_save_together
from recoup.checkpoint.views import TableView

__all__ = [
    "CheckpointError",
    "CheckpointStore",
    "DamagedError",
    "Entry",
    "FileGather",
    "FileRef",
    "Gather",
    "Manifest",
    "NoCheckpointError",
    "PendingSave",
    "Restored",
    "RowsCopy",
    "SaveRequest",
    "ShardPlan",
    "Snapshot",
    "Storage",
    "StoreConfig",
    "TableFacts",
    "TableView",
    "remove_reports",
    "save_together",
    "start_save_together",
]
