"""A vocabulary as an open-addressing hash table: about one probe an ID, 16 bytes a slot, at most half full."""

import numpy as np
from numpy.typing import NDArray

from recoup.reader.errors import ReaderError
from recoup.reader.transforms import id_kernels
from recoup.reader.transforms.config import Vocabulary


class VocabularyTable:
    """ID -> 1 + index; built once, then read only."""

    def __init__(self, config: Vocabulary) -> None:
        """Read the IDs and build the table.

        Raises:
            ReaderError: the file cannot be read as one integer a line, or an ID comes twice.
        """
        ids = _read(config)
        size = 1 << max((2 * ids.size - 1).bit_length(), 1)
        self._slots = np.zeros(size, dtype=np.int64)
        self._numbers = np.zeros(size, dtype=np.int64)
        self._unknown = config.unknown
        repeat = id_kernels.build_vocabulary(ids, self._slots, self._numbers)
        if repeat >= 0:
            raise ReaderError(f"vocabulary: expected every ID once, got {ids[repeat]} again (entry {repeat + 1})")

    def remap_in_place(self, values: NDArray[np.int64]) -> None:
        """Replace each ID by its number, or by the configured unknown one."""
        id_kernels.remap_in_place(values, self._slots, self._numbers, self._unknown)


def _read(config: Vocabulary) -> NDArray[np.int64]:
    if config.path is None:
        return np.asarray(config.ids, dtype=np.int64)
    try:
        words = config.path.read_text(encoding="utf-8").split()
        return np.fromiter((int(word) for word in words), dtype=np.int64, count=len(words))
    except (OSError, ValueError, OverflowError) as err:
        raise ReaderError(f"vocabulary: expected one int64 ID a line in {config.path}, got: {err}") from err
