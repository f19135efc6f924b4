"""The reader's branch of the error tree."""

from recoup.core import RecoupError


class ReaderError(RecoupError):
    """A table cannot be read as asked: a feature, file, ID, position or worker is not what was expected."""
