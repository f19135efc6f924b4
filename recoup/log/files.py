"""Files of a log: listed in natural order, opened as byte streams, decompressed by their name."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa

from recoup.log.errors import LogError

_DIGITS = re.compile(r"(\d+)")


def list_files(path: str, suffixes: Sequence[str]) -> tuple[str, ...]:
    """Return the files at `path` in natural order (part-2 before part-10), whatever order the disk lists them in.

    A folder is searched with its sub-folders; names that start with `.` or `_` are ignored, as are other suffixes.

    Args:
        path: a local path, or a URL that fsspec knows, such as `s3://bucket/folder`.
        suffixes: how the wanted names end.
    Raises:
        LogError: nothing is there, or no file has one of `suffixes`.
    """
    found = _remote_files(path) if is_remote(path) else _local_files(path)
    if found == [path]:
        return (path,)
    wanted = [file for file in found if file.endswith(tuple(suffixes))]
    if not wanted:
        names = sorted(file.rsplit("/", 1)[-1] for file in found)[:5]
        raise LogError(f"expected files named *{', *'.join(suffixes)}, got {names} (folder '{path}')")
    return tuple(sorted(wanted, key=natural_key))


def is_remote(path: str) -> bool:
    """Return whether `path` is a URL for fsspec rather than a local path."""
    return "://" in path


def _local_files(path: str) -> list[str]:
    root = Path(path)
    if root.is_file():
        return [path]
    if not root.exists():
        raise LogError(f"expected a log file or folder, got nothing (file '{path}'): check the path")
    return [str(file) for file in root.rglob("*") if file.is_file() and _visible(file.relative_to(root).parts)]


def _remote_files(path: str) -> list[str]:
    files, inner = _filesystem(path)
    found = sorted(files.find(inner))
    if not found:
        raise LogError(f"expected a log file or folder, got nothing (file '{path}'): check the path")
    if found == [inner]:
        return [path]
    root = inner.rstrip("/") + "/"
    visible = [file for file in found if _visible(tuple(file.removeprefix(root).split("/")))]
    return [str(files.unstrip_protocol(file)) for file in visible]


def _filesystem(path: str) -> tuple[Any, str]:
    try:
        files, inner = fsspec.core.url_to_fs(path)
    except (ImportError, ValueError) as err:
        raise LogError(f"expected a URL that fsspec can open, got: {err} (file '{path}')") from err
    return files, inner


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key under which runs of digits compare as numbers; equal numbers then compare as text."""
    parts = _DIGITS.split(name)
    return tuple((1, int(part), part) if part.isdigit() else (0, 0, part) for part in parts)


def file_bytes(path: str) -> int:
    """Return the size of the file as stored."""
    if is_remote(path):
        files, inner = _filesystem(path)
        return int(files.size(inner))
    return Path(path).stat().st_size


def open_file(path: str) -> pa.NativeFile:
    """Return the file's bytes for reading at any place."""
    if is_remote(path):
        files, inner = _filesystem(path)
        return pa.PythonFile(files.open(inner, "rb"), mode="r")
    return pa.OSFile(path, "rb")


class CountedFile:
    """A decompressed byte stream that knows how many stored bytes it has consumed."""

    def __init__(self, path: str) -> None:
        """Open `path`; `.gz`, `.bz2` and `.zst` are decompressed while reading."""
        self._raw = open_file(path)
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
    with open_file(path) as file:
        file.seek(max(file.size() - 1, 0))
        return bytes(file.read(1)) in (b"\n", b"")


def _codec(path: str) -> str | None:
    return {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}.get(Path(path).suffix)


def _visible(parts: tuple[str, ...]) -> bool:
    return not any(part.startswith((".", "_")) for part in parts)
