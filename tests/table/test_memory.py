"""Memory: a build stays small whatever the log's size, measured as real peak resident memory of a process."""

import subprocess
import sys

import pytest

CODE = """
import sys
from pathlib import Path
from recoup.log import SyntheticLog, open_log
from recoup.table import BuildConfig, build_table

def resident(field):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(field)) / 1024

source = open_log(SyntheticLog(num_samples=int(sys.argv[1])))
next(source.batches())
before = resident("VmRSS")
build_table(source, Path(sys.argv[2]), BuildConfig(memory_bytes=48_000_000))
print(resident("VmHWM"), before)
"""


@pytest.mark.timeout(110)
def test_a_build_of_260_mb_stays_under_its_bound(tmp_path):
    """96,000 recd-like samples (260 MB of IDs) with 48 MB for sorting: less than 480 MiB above what imports take.

    Two buckets are encoded at once: 411 MiB were seen above imports of 343 (no torch among them).
    """
    child = [sys.executable, "-c", CODE, "96000", str(tmp_path / "table")]
    done = subprocess.run(child, capture_output=True, text=True, check=True)
    peak, before = map(float, done.stdout.split())
    assert peak - before < 480, (peak, before)
    assert peak < 900
