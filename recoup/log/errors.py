"""The log floor's branch of the error tree.

RecoupError
  LogError           a log file, message or generator setting is not what its format or schema declares
"""

from recoup.core import RecoupError


class LogError(RecoupError):
    """A log cannot be read as declared; the message names the file, the row and the column."""
