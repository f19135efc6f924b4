"""Recovery: the ledger of lost updates, the guard that chooses partial or full, both recoveries, and attaching them.

`attach` needs TorchRec, which is imported when it is first asked for.
"""

import importlib
from typing import TYPE_CHECKING

from recoup.recovery.accesses import RowAccesses
from recoup.recovery.errors import RecoveryError
from recoup.recovery.guard import Decision, FailureFacts, GuardConfig, decide
from recoup.recovery.ledger import Ledger, Loss
from recoup.recovery.restore import (
    POSITION,
    FailureNotice,
    Recovered,
    facts_of,
    position_of,
    recover,
    recover_full,
    recover_partial,
)

if TYPE_CHECKING:
    from recoup.recovery.attached import Attached, attach

__all__ = [
    "POSITION",
    "Attached",
    "Decision",
    "FailureFacts",
    "FailureNotice",
    "GuardConfig",
    "Ledger",
    "Loss",
    "Recovered",
    "RecoveryError",
    "RowAccesses",
    "attach",
    "decide",
    "facts_of",
    "position_of",
    "recover",
    "recover_full",
    "recover_partial",
]


def __getattr__(name: str) -> object:
    """Import what needs TorchRec when it is first asked for."""
    if name in {"Attached", "attach"}:
        return getattr(importlib.import_module("recoup.recovery.attached"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
