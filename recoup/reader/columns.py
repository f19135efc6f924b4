"""Read columns of one part: by our own page decoder where it applies, by Arrow where it does not.

The direct way takes what the table writer writes: lists that are not nullable of int64, int32 or float32, pages of
version 1, zstd or no compression, PLAIN, dictionary or split bytes. Every page's checksum is verified. Anything else
(another writer's file, delta-packed columns) is read by pyarrow, with the same result.
IDs are stored as codes (`recoup.coding`): a part's `f__codes` is read as `f__values`, its IDs.
"""

import os
import weakref
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from recoup.coding import codes_column, ids_of, read_hot, stored_feature
from recoup.reader import page_kernels as pages
from recoup.reader.errors import ReaderError
from recoup.reader.memory import empty, frozen

Array = NDArray[Any]

_DTYPES = {"INT64": np.dtype(np.int64), "INT32": np.dtype(np.int32), "FLOAT": np.dtype(np.float32)}
_NUMBERS = {"PLAIN": 0, "PLAIN_DICTIONARY": 2, "RLE": 3, "RLE_DICTIONARY": 8, "BYTE_STREAM_SPLIT": 9}


@dataclass(frozen=True, slots=True)
class Column:
    """One list column of a row group, or a plain one (without offsets)."""

    values: Array
    offsets: NDArray[np.int32] | None
    """[rows + 1]; None: not read, the lengths of its lists are known from another column."""


class PartFile:
    """One part file, open."""

    def __init__(self, path: str) -> None:
        """Open the file and read its footer.

        Raises:
            OSError, pa.ArrowException: it is missing, or no Parquet file.
        """
        self._path = path
        self._arrow = pq.ParquetFile(path, page_checksum_verification=True, pre_buffer=False)
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._close = weakref.finalize(self, os.close, self._descriptor)
        self._zstd = pa.Codec("zstd")
        stored = frozenset(self._arrow.schema_arrow.names)
        coded = [name.removesuffix(codes_column("")) for name in stored if name.endswith(codes_column(""))]
        schema = self._arrow.schema_arrow
        self._coded = {f"{feature}__values": feature for feature in coded if not stored_feature(schema, feature)}
        self.names: frozenset[str] = stored | self._coded.keys()
        """Columns that can be read: those of the file, and the IDs of each feature."""
        self._hot: dict[str, NDArray[np.int64]] = {}
        self._leaves = _direct_leaves(self._arrow.schema)

    def close(self) -> None:
        """Close the file."""
        self._arrow.close()
        self._close()

    def read(self, row_group: int, names: Sequence[str], with_offsets: Collection[str]) -> dict[str, Column]:
        """Return the columns `names` of a row group; offsets of those in `with_offsets`, and of any Arrow read.

        Raises:
            OSError, pa.ArrowException, ReaderError: the file is damaged.
        """
        coded = {codes_column(self._coded[name]): name for name in names if name in self._coded}
        stored = [codes_column(self._coded[name]) if name in self._coded else name for name in names]
        found = self._read(row_group, stored, {name for name in stored if coded.get(name, name) in with_offsets})
        unknown = [self._coded[name] for name in coded.values() if self._coded[name] not in self._hot]
        if unknown:
            self._hot |= read_hot(self._arrow, unknown)
        for code, name in coded.items():
            column = found[code]
            if not column.values.flags.writeable:  # Arrow's own memory
                found[code] = column = Column(column.values.copy(), column.offsets)
            ids_of(column.values, self._hot[self._coded[name]])
        return {coded.get(name, name): _frozen(column) for name, column in found.items()}

    def _read(self, row_group: int, names: Sequence[str], with_offsets: Collection[str]) -> dict[str, Column]:
        """Return columns of the file as they are stored."""
        metadata = self._arrow.metadata.row_group(row_group)
        columns: dict[str, Column] = {}
        for name in names:
            if name in self._leaves:
                chunk = metadata.column(self._leaves[name][0])
                if chunk.compression in ("ZSTD", "UNCOMPRESSED") and _NUMBERS.keys() >= set(chunk.encodings):
                    columns[name] = self._read_direct(chunk, name, metadata.num_rows, offsets=name in with_offsets)
        rest = [name for name in names if name not in columns]
        table = self._arrow.read_row_group(row_group, columns=rest, use_threads=False) if rest else None
        for name in rest:
            assert table is not None  # it was read for them
            columns[name] = _from_arrow(table.column(name))
        return columns

    def _read_direct(self, chunk: pq.ColumnChunkMetaData, name: str, num_rows: int, *, offsets: bool) -> Column:
        dtype = self._leaves[name][1]
        start = chunk.dictionary_page_offset or chunk.data_page_offset
        data = np.frombuffer(os.pread(self._descriptor, chunk.total_compressed_size, start), dtype=np.uint8)
        announced = {_NUMBERS[encoding] for encoding in chunk.encodings}
        reader = _ChunkReader(data, dtype, chunk.num_values, num_rows if offsets else -1)
        packed = chunk.compression == "ZSTD"
        scratch = np.empty(pages.HEADER_FIELDS, dtype=np.int64)
        at = 0
        while reader.num_levels < chunk.num_values:
            at = pages.page_header(data, at, scratch)
            header: list[int] = scratch.tolist()
            end = at + header[pages.PACKED_BYTES]
            if at < 0 or not at <= end <= data.size or header[pages.RAW_BYTES] < 0:
                raise self._damaged(name, "a page header")
            page = data[at:end]
            if header[pages.CRC] != pages.NO_CRC and zlib.crc32(page.data) != header[pages.CRC]:
                raise self._damaged(name, "a page whose checksum agrees")
            if packed:
                page = np.frombuffer(self._zstd.decompress(page, header[pages.RAW_BYTES]), dtype=np.uint8)
            if header[pages.ENCODING] not in announced or not reader.add(header, page):
                raise self._damaged(name, "levels and values that agree")
            at = end
        if reader.num_levels != chunk.num_values or (at and at != data.size):  # a chunk without values may have a page
            raise self._damaged(name, "pages that fill their chunk")
        return reader.finish()

    def _damaged(self, name: str, expected: str) -> ReaderError:
        return ReaderError(
            f"expected a readable table part at {self._path}, got damage in column {name!r} (no {expected}): "
            f"check it with 'table verify'"
        )


class _ChunkReader:
    """Collects the pages of one column chunk."""

    def __init__(self, data: NDArray[np.uint8], dtype: np.dtype[Any], num_levels: int, num_lists: int) -> None:
        self._dtype = dtype
        self._values = empty(num_levels, dtype)
        self._count = 0
        self._dictionary = np.empty(0, dtype=dtype)
        self._lengths = np.zeros(num_lists, dtype=np.int32) if num_lists >= 0 else None
        self._list = -1
        self.num_levels = 0

    def add(self, header: Sequence[int], page: NDArray[np.uint8]) -> bool:
        """Decode a page; False when it is damaged."""
        if header[pages.PAGE_TYPE] == pages.DICTIONARY_PAGE:
            self._dictionary = np.frombuffer(page, dtype=self._dtype, count=page.size // self._dtype.itemsize)
            return True
        count = header[pages.NUM_VALUES]
        at = pages.values_begin(page)
        if header[pages.PAGE_TYPE] != pages.DATA_PAGE or at < 0 or count < 0:
            return False
        self.num_levels += count
        if self._lengths is not None:
            self._list = pages.add_list_lengths(page, count, self._lengths, self._list)
            if self._list < -1:
                return False
        return self._decode(header[pages.ENCODING], page, at, count)

    def finish(self) -> Column:
        values = self._values[: self._count]
        if self._lengths is None:
            return Column(values, None)
        offsets = np.zeros(self._lengths.size + 1, dtype=np.int32)
        np.cumsum(self._lengths, out=offsets[1:])
        return Column(values, offsets)

    def _decode(self, encoding: int, page: NDArray[np.uint8], at: int, num_levels: int) -> bool:
        left = self._values[self._count :]
        if self._lengths is not None:  # empty lists have a level and no value
            num_levels = int(self._lengths.sum()) - self._count
        if encoding in (pages.RLE_DICTIONARY, pages.PLAIN_DICTIONARY):
            if self._lengths is None:  # packed codes are padded to eight: only the levels tell how many are values
                num_levels = pages.count_present(page, num_levels)
            if not 0 <= num_levels <= left.size:
                return False
            found = pages.from_dictionary(
                page, at, self._dictionary.view(_WORDS[self._dtype]), _words(left[:num_levels])
            )
            if found != num_levels:
                return False
            self._count += found
            return True
        count = (page.size - at) // self._dtype.itemsize
        if count > left.size or (self._lengths is not None and count != num_levels):
            return False
        out = _words(left[:count])
        if encoding == pages.PLAIN:
            out[:] = np.frombuffer(page, dtype=out.dtype, count=count, offset=at)
        elif encoding == pages.BYTE_STREAM_SPLIT:
            (pages.split_bytes_8 if self._dtype.itemsize == 8 else pages.split_bytes_4)(page, at, out)
        else:
            return False
        self._count += count
        return True


_WORDS = {dtype: np.dtype(np.int64 if dtype.itemsize == 8 else np.uint32) for dtype in _DTYPES.values()}


def _words(values: Array) -> Array:
    """Return the same memory as integers of the same width: one compiled kernel serves floats too."""
    return values.view(_WORDS[values.dtype])


def _direct_leaves(schema: pq.ParquetSchema) -> dict[str, tuple[int, np.dtype[Any]]]:
    """Return (leaf number, dtype) of the list columns that the direct way can read."""
    leaves: dict[str, tuple[int, np.dtype[Any]]] = {}
    for number in range(len(schema.names)):
        leaf = schema.column(number)
        if (leaf.max_definition_level, leaf.max_repetition_level) == (1, 1) and leaf.physical_type in _DTYPES:
            leaves[leaf.path.split(".")[0]] = (number, _DTYPES[leaf.physical_type])
    return leaves


def _from_arrow(column: pa.ChunkedArray) -> Column:
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], type=column.type)
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        return Column(array.to_numpy(), None)
    return Column(array.values.to_numpy(zero_copy_only=True), array.offsets.to_numpy().astype(np.int32, copy=False))


def _frozen(column: Column) -> Column:
    return Column(frozen(column.values), None if column.offsets is None else frozen(column.offsets))
