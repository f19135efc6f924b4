"""The train floor's branch of the error tree.

RecoupError
  TrainError         training cannot start, go on or resume: a loss that is not finite, a state of another model
"""

from recoup.core import RecoupError


class TrainError(RecoupError):
    """Training cannot start, go on or resume; the message names the step, the rank or the state."""
