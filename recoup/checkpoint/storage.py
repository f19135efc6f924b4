"""Where checkpoints lie: a folder of any fsspec file system. Four verbs; a file is there whole or not at all.

On a local disk a file is written under a hidden temporary name, flushed, and renamed. Object stores put whole objects.
Elsewhere a cut file may stay: the manifest's size and checksum tell.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fsspec

from recoup.checkpoint.errors import CheckpointError
from recoup.core import write_atomic
from recoup.core.files import temporary_path


class Storage:
    """Files under one URL; names are relative, with `/`."""

    def __init__(self, url: str, **options: Any) -> None:  # noqa: ANN401
        """Open the file system of `url` ("path", "file://...", "memory://...", "s3://..."); nothing is written.

        Args:
            url: folder.
            options: of the file system, as fsspec takes them.
        Raises:
            CheckpointError: there is no such file system, or its package is not installed.
        """
        self.url = url
        try:
            system, root = fsspec.core.url_to_fs(url, **options)
        except (ValueError, ImportError) as err:
            raise CheckpointError(f"expected a folder or a URL that fsspec knows, got {url!r}: {err}") from err
        self._fs: Any = system
        self._root = str(root).rstrip("/")
        self._local = "file" in (system.protocol if isinstance(system.protocol, tuple) else (system.protocol,))

    def write(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Write a file, whole or not at all.

        Args:
            name: where.
            data: what.
            durable: flush it before this returns; otherwise it outlives this process, but maybe not the machine.
        Raises:
            CheckpointError: the disk is full, the permission is missing, ...; no file of that name was changed.
        """
        path = f"{self._root}/{name}"
        try:
            if self._local:
                _write_local(Path(path), data, durable=durable)
            else:
                self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
                self._fs.pipe_file(path, data)
        except Exception as err:  # file systems raise what they like: this adds the path and keeps the cause
            raise CheckpointError(f"writing '{path}' failed: {err}: older checkpoints are untouched") from err

    def read(self, name: str) -> bytes:
        """Return a file's bytes.

        Raises:
            CheckpointError: it is missing or cannot be read.
        """
        path = f"{self._root}/{name}"
        try:
            data: bytes = self._fs.cat_file(path)
        except Exception as err:  # as in `write`
            raise CheckpointError(f"reading '{path}' failed: {err}") from err
        return data

    def sizes(self, folder: str) -> dict[str, int]:
        """Return name and size of the files in a folder, temporary ones (".name...") too; a missing folder is empty."""
        path = f"{self._root}/{folder}"
        try:
            self._fs.invalidate_cache()
            found: Sequence[dict[str, Any]] = self._fs.ls(path, detail=True)
        except FileNotFoundError:
            return {}
        except Exception as err:  # as in `write`
            raise CheckpointError(f"listing '{path}' failed: {err}") from err
        files = [entry for entry in found if entry["type"] == "file"]
        return {f"{folder}/{str(entry['name']).rpartition('/')[2]}": int(entry["size"] or 0) for entry in files}

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""
        try:
            self._fs.rm_file(f"{self._root}/{name}")
        except FileNotFoundError:
            return
        except Exception as err:  # as in `write`
            raise CheckpointError(f"removing '{self._root}/{name}' failed: {err}") from err


def _write_local(target: Path, data: bytes, *, durable: bool) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_path(target)
    try:
        if durable:
            write_atomic(target, data)
        else:
            temporary.write_bytes(data)
            temporary.replace(target)
    except OSError:
        temporary.unlink(missing_ok=True)  # a full disk is not left fuller
        raise
