"""The jagged floor's branch of the error tree.

RecoupError
  JaggedError        lengths, offsets, windows or inverse indices contradict each other
"""

from recoup.core import RecoupError


class JaggedError(RecoupError):
    """A jagged tensor is malformed; the message names the field, the feature and the position."""
