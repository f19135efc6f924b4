"""Side tables of a log (users, items) held in memory and joined by an integer key, and vocabularies of their text.

Memory: the whole side table; the log itself streams past it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from recoup.log.arrays import NumpyArray, compute
from recoup.log.delimited import Layout, read_delimited
from recoup.log.errors import LogError
from recoup.log.scalars import as_integers
from recoup.log.where import Where


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Distinct tokens of a side table in sorted order; a token's ID is its place, so it depends on the set alone."""

    tokens: tuple[str, ...]

    def encode(self, array: pa.Array) -> pa.Array:
        """Return IDs of text, or of lists of text; null stays null."""
        if pa.types.is_list(array.type):
            return pa.ListArray.from_arrays(array.offsets, self.encode(array.values), mask=array.is_null())
        return compute.index_in(array, value_set=pa.array(self.tokens, array.type)).cast(pa.int64())


def vocabulary(array: pa.Array) -> Vocabulary:
    """Return the vocabulary of a column of text or of lists of text."""
    items = array.flatten() if pa.types.is_list(array.type) else array
    return Vocabulary(tuple(sorted(compute.unique(items.drop_null()).to_pylist())))


class SideTable:
    """Columns by key, one row a key."""

    def __init__(self, keys: pa.Array, columns: Mapping[str, pa.Array], where: Where) -> None:
        """Order the rows by key.

        Raises:
            LogError: a key comes twice.
        """
        values = as_integers(keys, where).to_numpy(zero_copy_only=False)
        order = np.argsort(values, kind="stable")
        self._keys: NumpyArray = values[order]
        twins = np.flatnonzero(self._keys[1:] == self._keys[:-1])
        if len(twins):
            row = int(order[twins[0] + 1])
            raise where.error(f"expected one row a key, got {self._keys[twins[0]]} again", row=row)
        rows = pa.array(order)
        self._columns = {name: column.take(rows) for name, column in columns.items()}

    def has(self, name: str) -> bool:
        """Return whether there is a column of this name."""
        return name in self._columns

    def join(self, keys: pa.Array) -> dict[str, pa.Array]:
        """Return every column for each of `keys` (int64, no nulls); null where the key is unknown."""
        wanted = keys.to_numpy(zero_copy_only=False)
        places = np.searchsorted(self._keys, wanted)
        known = np.zeros(len(wanted), dtype=np.bool_)
        inside = places < len(self._keys)
        known[inside] = self._keys[places[inside]] == wanted[inside]
        rows = pa.array(places, mask=~known)
        return {name: column.take(rows) for name, column in self._columns.items()}


def read_side_file(path: str, layout: Layout, columns: Sequence[str]) -> pa.Table:
    """Return the named columns of a whole text file.

    Raises:
        LogError: a column is absent.
    """
    batches = [rows.data for rows in read_delimited(path, layout, columns)]
    names = batches[0].schema.names if batches else []
    for name in columns:
        if name not in names:
            raise LogError(f"expected column '{name}', got {names} (file '{path}')")
    return pa.Table.from_batches(batches).combine_chunks()


def whole_column(table: pa.Table, name: str) -> pa.Array:
    """Return a column as one array."""
    column = table[name].combine_chunks()
    return column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
