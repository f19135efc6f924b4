"""MovieLens-100k as the demo trains it: `recoup train` takes the TOML that this prints.

python -m recipes.movielens tables/movielens > movielens.toml
recoup train movielens.toml runs/movielens
"""

import sys
from pathlib import Path

from recoup.core import to_toml
from recoup.demo.movielens import movielens_build, movielens_log, movielens_run
from recoup.log import open_log
from recoup.table import build_table
from recoup.train import RunConfig


def config(table: Path, *, seed: int = 0, num_epochs: int = 3) -> RunConfig:
    """Return the run on the table in the folder `table`, which is built if it is not there."""
    if not (table / "manifest.json").exists():
        build_table(open_log(movielens_log()), table, movielens_build())
    return movielens_run(table, dedup=True, num_epochs=num_epochs, seed=seed)


if __name__ == "__main__":
    sys.stdout.write(to_toml(config(Path(sys.argv[1]))))
