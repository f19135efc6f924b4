"""Fragments in shared memory: packed by a worker, viewed by the reader without a copy.

A segment is an anonymous memory file (memfd): it has no name, so nothing is left behind whoever dies; its descriptor
travels once over the worker's socket and its pages are used again for later fragments.
"""

import ctypes
import mmap
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from recoup.reader.fragment import Array, Fragment

ALIGNMENT = 64
"""Bytes; a cache line, as Arrow aligns its buffers."""

Place: TypeAlias = tuple[int, tuple[int, ...], str]
"""(offset in bytes, shape, dtype) of one array in a segment."""


@dataclass(frozen=True, slots=True)
class PackedFragment:
    """Where a fragment's arrays lie, in the order of `Fragment.map_arrays`, and the rest of it."""

    segment: int
    places: tuple[Place, ...]
    outline: Fragment
    """The fragment with empty arrays in place of its own: names, groups, which features have weights."""


class Segment:
    """One piece of shared memory, mapped in this process."""

    def __init__(self, number: int, capacity: int, descriptor: int | None = None) -> None:
        """Create the memory, or map what `descriptor` (which is closed) refers to."""
        self.number = number
        self.capacity = capacity
        self.descriptor = -1
        if descriptor is None:
            self.descriptor = os.memfd_create("recoup-reader", os.MFD_CLOEXEC)
            os.ftruncate(self.descriptor, capacity)
            self._map = mmap.mmap(self.descriptor, capacity)
        else:
            self._map = mmap.mmap(descriptor, capacity)
            os.close(descriptor)

    def close_descriptor(self) -> None:
        """Close the descriptor once it was sent; the mapping stays."""
        os.close(self.descriptor)
        self.descriptor = -1

    def pack(self, fragment: Fragment) -> PackedFragment:
        """Copy the fragment's arrays into the segment."""
        places: list[Place] = []
        position = 0

        def copy(array: Array) -> Array:
            nonlocal position
            target = np.ndarray(array.shape, dtype=array.dtype, buffer=self._map, offset=position)
            target[...] = array
            places.append((position, array.shape, array.dtype.str))
            position += _padded(array.nbytes)
            return _NOTHING

        outline = fragment.map_arrays(copy)
        return PackedFragment(self.number, tuple(places), outline)

    def view(self, packed: PackedFragment, on_release: Callable[[], Any]) -> Fragment:
        """Return the fragment as views; `on_release` runs when the last view (or tensor on it) is gone."""
        lease = (ctypes.c_ubyte * self.capacity).from_buffer(self._map)
        weakref.finalize(lease, on_release).atexit = False
        places = iter(packed.places)

        def view(_: Array) -> Array:
            offset, shape, dtype = next(places)
            return np.ndarray(shape, dtype=dtype, buffer=memoryview(lease), offset=offset)

        return packed.outline.map_arrays(view)


def packed_bytes(fragment: Fragment) -> int:
    """Return the bytes that `Segment.pack` needs for `fragment`."""
    total = 0

    def count(array: Array) -> Array:
        nonlocal total
        total += _padded(array.nbytes)
        return _NOTHING

    fragment.map_arrays(count)
    return max(total, mmap.PAGESIZE)


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


_NOTHING = np.empty(0, dtype=np.int8)
