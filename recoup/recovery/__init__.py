"""Recovery: the ledger of lost updates, the guard that chooses partial or full, and both recoveries on live rows."""

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

__all__ = [
    "POSITION",
    "Decision",
    "FailureFacts",
    "FailureNotice",
    "GuardConfig",
    "Ledger",
    "Loss",
    "Recovered",
    "RecoveryError",
    "RowAccesses",
    "decide",
    "facts_of",
    "position_of",
    "recover",
    "recover_full",
    "recover_partial",
]
