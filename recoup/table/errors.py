"""The table floor's branch of the error tree.

RecoupError
  TableError         a session table, its settings or its files are not what they should be
"""

from recoup.core import RecoupError


class TableError(RecoupError):
    """A session table cannot be built, opened or trusted; the message names the folder, the file and the row."""
