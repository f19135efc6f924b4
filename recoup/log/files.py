"""Files of a log: listed in natural order, opened as byte streams, decompressed by their name."""

import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from recoup.log.errors import LogError

_DIGITS = re.compile(r"(\d+)")


def list_files(path: str, suffixes: Sequence[str]) -> tuple[str, ...]:
    """Return the files at `path` in natural order (part-2 before part-10), whatever order the disk lists them in.

    A folder is searched with its sub-folders; names that start with `.` or `_` are ignored, as are other suffixes.

    Raises:
        LogError: nothing is there, or no file has one of `suffixes`.
    """
    root = Path(path)
    if root.is_file():
        return (str(root),)
    if not root.exists():
        raise LogError(f"expected a log file or folder, got nothing (file '{path}'): check the path")
    found = [file for file in root.rglob("*") if file.is_file() and _visible(file, root)]
    wanted = [str(file) for file in found if file.name.endswith(tuple(suffixes))]
    if not wanted:
        names = sorted(file.name for file in found)[:5]
        raise LogError(f"expected files named *{', *'.join(suffixes)}, got {names} (folder '{path}')")
    return tuple(sorted(wanted, key=natural_key))


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key under which runs of digits compare as numbers; equal numbers then compare as text."""
    parts = _DIGITS.split(name)
    return tuple((1, int(part), part) if part.isdigit() else (0, 0, part) for part in parts)


def file_bytes(path: str) -> int:
    """Return the size of the file as stored."""
    return Path(path).stat().st_size


class CountedFile:
    """A decompressed byte stream that knows how many stored bytes it has consumed."""

    def __init__(self, path: str) -> None:
        """Open `path`; `.gz`, `.bz2` and `.zst` are decompressed while reading."""
        self._raw = pa.OSFile(path, "rb")
        codec = _codec(path)
        self.stream: pa.NativeFile = pa.CompressedInputStream(self._raw, codec) if codec else self._raw

    @property
    def position(self) -> int:
        """Stored bytes read so far."""
        return 0 if self._raw.closed else self._raw.tell()


def ends_with_newline(path: str) -> bool:
    """Return whether the last byte of a text file is a newline; a compressed file has its own end mark."""
    if _codec(path):
        return True
    with Path(path).open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(size - 1, 0))
        return file.read(1) in (b"\n", b"")


def _codec(path: str) -> str | None:
    return {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}.get(Path(path).suffix)


def _visible(file: Path, root: Path) -> bool:
    return not any(part.startswith((".", "_")) for part in file.relative_to(root).parts)
