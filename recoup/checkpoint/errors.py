"""The checkpoint floor's branch of the error tree.

RecoupError
  CheckpointError        a save failed, or a checkpoint is damaged, foreign, or does not fit
    DamagedError         a file is missing, cut, or has another checksum than its manifest says
    NoCheckpointError    there is no complete checkpoint to restore
"""

from recoup.core import RecoupError


class CheckpointError(RecoupError):
    """A checkpoint cannot be written or trusted; the message names the file, the shard and the table."""


class NoCheckpointError(CheckpointError):
    """A restore was asked for and no complete checkpoint is there: training must not start from scratch silently."""


class DamagedError(CheckpointError):
    """A file of a checkpoint is missing, cut or damaged: nothing of it was restored."""
