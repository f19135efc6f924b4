"""Tables on object storage, through fsspec: a table lives under a URL, and is worked on in a mirror on local disk.

A pull fetches the manifest, and then the parts that the mirror does not hold yet, each checked against its checksum. A
push puts the parts, and then the manifest: its presence is the commit, as on a disk. So readers, `inspect` and `verify`
read local files at local speed; a table is downloaded once a machine and later only what was appended.
A table has one writer at a time; a push onto a table that another writer changed since the pull is refused.
A mirror follows its URL: parts that the newest manifest does not name are removed from it.
The mirror of a URL is the folder `recoup/tables/<hash of the URL>` of the user's cache ($XDG_CACHE_HOME or ~/.cache).
"""

import hashlib
import os
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec

from recoup.core import Progress, no_progress, temporary_path
from recoup.table.errors import TableError
from recoup.table.manifest import (
    MANIFEST,
    PARTS,
    Manifest,
    Part,
    decode_committed,
    decode_manifest,
    read_manifest,
    write_manifest,
)
from recoup.table.strays import remove_stray_parts
from recoup.table.writer import file_checksum

_LOCAL = ("file://", "local://")
_STREAMS = 8  # transfers at a time: one stream rarely fills a network


def is_remote(location: Path | str) -> bool:
    """Whether a table's location is a URL of something else than the local disk."""
    return "://" in str(location) and not str(location).startswith(_LOCAL)


def local_path(location: Path | str) -> Path:
    """Return the folder of a table that is not remote, named by a path or by a URL such as "file:///data/table"."""
    return Path(str(location).removeprefix(_LOCAL[0]).removeprefix(_LOCAL[1]))


def mirror_of(url: str) -> Path:
    """Return the local folder in which the table under `url` is worked on; nothing is fetched."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "recoup" / "tables" / hashlib.blake2b(url.rstrip("/").encode(), digest_size=12).hexdigest()


def pull_table(url: str, *, progress: Progress = no_progress) -> Path:
    """Bring the mirror of the table under `url` up to date and return its folder.

    Args:
        url: of the table, such as "s3://bucket/table"; credentials and endpoints as fsspec takes them.
        progress: called as ("fetch table", bytes done, bytes).
    Raises:
        TableError: there is no complete table under the URL, it cannot be reached, or a part is damaged.
    Cost: the bytes of the parts that are not in the mirror. Several processes may pull at once.
    """
    system, root = _system(url)
    folder = mirror_of(url)
    (folder / PARTS).mkdir(parents=True, exist_ok=True)
    held = _checksums_held(folder)
    data = _manifest_bytes(system, root, url)
    if data is None:
        raise TableError(f"expected a session table under '{url}', got no {MANIFEST}: build it first")
    manifest = decode_manifest(data, f"{url}/{MANIFEST}")
    missing = [part for part in manifest.parts if not _is_held(folder, part, held.get(part.name))]

    def fetch(part: Part) -> None:
        target = folder / PARTS / part.name
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = temporary_path(target)
        system.get_file(f"{root}/{PARTS}/{part.name}", str(temporary))
        found = file_checksum(temporary)
        if found != part.checksum:
            temporary.unlink()
            raise TableError(f"part '{url}/{PARTS}/{part.name}': expected checksum {part.checksum}, got {found}")
        temporary.replace(target)

    _transfer(fetch, missing, "fetch table", url, progress)
    write_manifest(folder, manifest)
    remove_stray_parts(folder, manifest)
    return folder


def push_table(url: str, *, progress: Progress = no_progress) -> Manifest:
    """Make the table under `url` what its mirror is: parts first, then the manifest, then strays are removed.

    Raises:
        TableError: the storage cannot be written, or another writer's table is there that the mirror does not know;
            the older table under the URL is whole.
    Cost: the bytes of the parts that the older table under the URL does not hold.
    """
    system, root = _system(url)
    folder = mirror_of(url)
    manifest = read_manifest(folder)
    data = _manifest_bytes(system, root, url)
    older = None if data is None else decode_committed(data, f"{url}/{MANIFEST}")
    committed = dict[str, str]() if older is None else older.checksums
    if older is not None and older.generation >= manifest.generation and committed != _checksums(manifest):
        raise TableError(
            f"expected a table of a generation below {manifest.generation} under '{url}', got {older.generation}, "
            "of another writer: it stays; do this build, append or compaction again"
        )
    try:
        there = {name: facts["size"] for name, facts in system.find(f"{root}/{PARTS}", detail=True).items()}
    except FileNotFoundError:
        there = dict[str, int]()
    place = {part.name: f"{root}/{PARTS}/{part.name}" for part in manifest.parts}

    def is_there(part: Part) -> bool:
        size = there.get(system._strip_protocol(place[part.name]))
        return committed.get(part.name) == part.checksum and size == part.bytes

    new = [part for part in manifest.parts if not is_there(part)]

    def put(part: Part) -> None:
        system.makedirs(place[part.name].rpartition("/")[0], exist_ok=True)
        system.put_file(str(folder / PARTS / part.name), place[part.name])

    _transfer(put, new, "push table", url, progress)
    try:
        system.pipe_file(f"{root}/{MANIFEST}", (folder / MANIFEST).read_bytes())
    except Exception as err:  # as above
        raise TableError(f"'{url}/{MANIFEST}' could not be written: {err}: the older table is whole") from err
    named = {system._strip_protocol(path) for path in place.values()}
    for stray in there.keys() - named:
        system.rm_file(stray)
    return manifest


def _checksums(manifest: Manifest) -> dict[str, str]:
    return {part.name: part.checksum for part in manifest.parts}


def _manifest_bytes(system: Any, root: str, url: str) -> bytes | None:  # noqa: ANN401
    """Return the manifest under the URL as it lies there; None if there is none."""
    try:
        data: bytes = system.cat_file(f"{root}/{MANIFEST}")
    except FileNotFoundError:
        return None
    except Exception as err:  # file systems raise what they like: this adds the URL and keeps the cause
        raise TableError(f"'{url}/{MANIFEST}' cannot be read: {err}") from err
    return data


def _system(url: str) -> tuple[Any, str]:
    try:
        system, root = fsspec.core.url_to_fs(url)
    except (ValueError, ImportError) as err:
        raise TableError(f"expected a URL that fsspec knows, got {url!r}: {err}") from err
    return system, str(root).rstrip("/")


def _checksums_held(folder: Path) -> dict[str, str]:
    """Return the parts of the mirror by its manifest; none if there is no whole one, of whatever version."""
    try:
        return decode_committed((folder / MANIFEST).read_bytes(), str(folder / MANIFEST)).checksums
    except (FileNotFoundError, TableError):
        return {}


def _is_held(folder: Path, part: Part, held: str | None) -> bool:
    path = folder / PARTS / part.name
    return held == part.checksum and path.is_file() and path.stat().st_size == part.bytes


def _transfer(move: Callable[[Part], None], parts: Iterable[Part], task: str, url: str, progress: Progress) -> None:
    waiting = list(parts)
    total, done = sum(part.bytes for part in waiting), 0
    with ThreadPoolExecutor(_STREAMS, thread_name_prefix="recoup-transfer") as pool:
        try:
            for part, _ in zip(waiting, pool.map(move, waiting), strict=True):
                done += part.bytes
                progress(task, done, total)
        except TableError:
            raise
        except Exception as err:  # as above
            raise TableError(f"{task}: '{url}' failed: {err}: the older table is whole") from err


@contextmanager
def worked_on(location: str, progress: Progress, *, replaces: bool = False) -> Generator[Path]:
    """Yield the local folder in which a table is built or changed; at the end, without an error, its URL follows.

    With `replaces` a table under the URL is not fetched, and may be of any format version: only its manifest counts.

    Raises:
        TableError: as `pull_table` (a table that is not there yet is no error) and `push_table`.
    """
    if not is_remote(location):
        yield local_path(location)
        return
    system, root = _system(location)
    data = _manifest_bytes(system, root, location)
    mirror = mirror_of(location)
    if data is None:
        (mirror / MANIFEST).unlink(missing_ok=True)
    elif replaces:
        mirror.mkdir(parents=True, exist_ok=True)
        temporary = temporary_path(mirror / MANIFEST)
        temporary.write_bytes(data)
        temporary.replace(mirror / MANIFEST)
    else:
        pull_table(location, progress=progress)
    yield mirror
    push_table(location, progress=progress)
