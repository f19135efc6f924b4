"""The runtime floor's branch of the error tree.

RecoupError
  JobError           a job cannot be launched, or cannot go on: the message names the rank and what was seen of it
"""

from recoup.core import RecoupError


class JobError(RecoupError):
    """A job of several ranks cannot start or go on."""
