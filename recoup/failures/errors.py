"""The errors of this floor."""

from recoup.core import RecoupError


class FailureTraceError(RecoupError):
    """A failure trace cannot be read or contradicts the job, or an injected failure did not happen."""
