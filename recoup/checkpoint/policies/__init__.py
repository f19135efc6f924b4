"""Priority policies: which rows of the large tables a save takes first."""

from recoup.checkpoint.policies.adagrad_change import AdagradChange
from recoup.checkpoint.policies.choose import priority_rows
from recoup.checkpoint.policies.contract import SAVE_FRACTION, RowPolicy
from recoup.checkpoint.policies.dirty import DirtyRows
from recoup.checkpoint.policies.large_tables import large_tables
from recoup.checkpoint.policies.make import PolicyName, make_policy
from recoup.checkpoint.policies.mfu import MFU
from recoup.checkpoint.policies.scar import SCAR
from recoup.checkpoint.policies.ssu import SSU
from recoup.checkpoint.policies.stale_use import StaleUse

__all__ = [
    "MFU",
    "SAVE_FRACTION",
    "SCAR",
    "SSU",
    "AdagradChange",
    "DirtyRows",
    "PolicyName",
    "RowPolicy",
    "StaleUse",
    "large_tables",
    "make_policy",
    "priority_rows",
]
