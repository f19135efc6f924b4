"""Files in a table's folder that its manifest does not name: left by a stopped build, or replaced by a newer one."""

import shutil
from pathlib import Path

from recoup.table.manifest import PARTS, WORK, Manifest


def strays(path: Path, manifest: Manifest) -> list[str]:
    """Return the names, below `parts`, of files that are not in the manifest, sorted."""
    named = {part.name for part in manifest.parts}
    folder = path / PARTS
    found = (file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
    return sorted(name for name in found if name not in named)


def remove_strays(path: Path, manifest: Manifest) -> None:
    """Remove them, folders of partitions that are empty then, and the folder of the build: after its commit."""
    remove_stray_parts(path, manifest)
    shutil.rmtree(path / WORK, ignore_errors=True)


def remove_stray_parts(path: Path, manifest: Manifest) -> None:
    """Remove the files alone, and folders of partitions that are empty then."""
    for name in strays(path, manifest):
        (path / PARTS / name).unlink(missing_ok=True)
    for folder in (path / PARTS).iterdir():
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
