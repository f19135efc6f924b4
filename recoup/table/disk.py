"""How much disk a build needs beside the table, stated before it starts.

The spool holds every sample once (LZ4, never more than uncompressed); a bucket's file goes when its run is complete,
and runs hold each repeat once. So the work folder never passes the log's uncompressed size by more than one run, plus
the histories that the builder adds. The size is extrapolated from the log's first samples.
"""

import shutil
from pathlib import Path

from recoup.log import LogSource
from recoup.table.errors import TableError

_LOOKED_AT = 8_192  # samples


def disk_needed(source: LogSource) -> int:
    """Return about how many bytes of disk a build of `source` takes beside the table while it runs, at most.

    Exact for a log of fewer samples than are looked at; otherwise the first samples stand for the rest.
    Cost: reads the first 8,192 samples.
    """
    read: list[tuple[int, int | None]] = [(0, None)]

    def note(_task: str, done: int, total: int | None) -> None:
        read[0] = (done, total)

    num_samples = num_bytes = 0
    for batch in source.batches(progress=note):
        num_samples += batch.num_rows
        num_bytes += batch.nbytes
        if num_samples >= _LOOKED_AT:
            done, total = read[0]
            return num_bytes if not done or total is None else int(num_bytes * max(1.0, total / done))
    return num_bytes


def check_disk(folder: Path, needed: int) -> None:
    """Refuse to start a build that needs more disk than is free.

    Raises:
        TableError: less is free in `folder` than `needed` bytes.
    """
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise TableError(
            f"expected {needed} free bytes for spilling in '{folder}', got {free}: free some, or build on another disk"
        )
