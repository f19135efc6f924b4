"""The README's example runs and prints what the README shows."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_quickstart_prints_what_the_readme_shows():
    """The output of the example stands in the README, digit for digit but for the losses' last place."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "examples" / "quickstart.py")]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=ROOT).stdout
    lines = shown.splitlines()
    assert len(lines) == 4
    readme = (ROOT / "README.md").read_text()
    assert lines[0] in readme
    for line in lines[1:]:
        head, _, factors = line.partition(", samples a unique row ")
        assert factors in readme
        assert head[: len("step 8: loss 0.6")] in readme
