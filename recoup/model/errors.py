"""The model floor's branch of the error tree.

RecoupError
  ModelError         a model does not fit its schema, or a batch does not fit the model
"""

from recoup.core import RecoupError


class ModelError(RecoupError):
    """A batch does not fit the model; the message names the feature, the sample and the value."""
