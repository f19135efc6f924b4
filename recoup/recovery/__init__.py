"""Recovery: the ledger of lost updates, the guard that chooses partial or full, and both recoveries on live rows."""

from recoup.recovery.accesses import RowAccesses
from recoup.recovery.errors import RecoveryError
from recoup.recovery.guard import Decision, FailureFacts, GuardConfig, decide
from recoup.recovery.ledger import Ledger, Loss

__all__ = [
    "Decision",
    "FailureFacts",
    "GuardConfig",
    "Ledger",
    "Loss",
    "RecoveryError",
    "RowAccesses",
    "decide",
]
