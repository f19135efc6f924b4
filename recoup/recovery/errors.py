"""The errors of this floor."""

from recoup.core import RecoupError


class RecoveryError(RecoupError):
    """A recovery was asked for that cannot be done, or the ledger was told something impossible."""
