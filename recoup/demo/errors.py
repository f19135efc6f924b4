"""The demo floor's branch of the error tree.

RecoupError
  DemoError          the demo's folder is taken, or its two trainings disagree
"""

from recoup.core import RecoupError


class DemoError(RecoupError):
    """The demo cannot run as asked, or a law it shows does not hold."""
