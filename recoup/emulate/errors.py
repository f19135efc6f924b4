"""The errors of this floor."""

from recoup.core import RecoupError


class EmulationError(RecoupError):
    """An emulation cannot be run as configured, or its results cannot be resumed."""
