"""How fast is deduplication of a foreign row-per-sample batch, against torch.unique over rows and a dict of tuples?

python -m benches.dedup [--quick]
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recoup.jagged import dedup, to_kjt
from recoup.report import summary_table
from recoup.schema import DedupGroup

ROWS, LENGTH, DISTINCT = 200_000, 8, 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three repeats")
    repeats = 3 if parser.parse_args().quick else 9
    ids = make_rows()
    lengths = torch.full((ROWS,), LENGTH)
    kjt = KeyedJaggedTensor(keys=["f"], values=ids.flatten(), lengths=lengths, stride=ROWS)
    groups = (DedupGroup(name="g", features=("f",)),)
    ours = dedup(kjt, groups)
    unique, _ = torch.unique(ids, dim=0, return_inverse=True)
    assert torch.equal(to_kjt(ours).values(), kjt.values()), "expand(dedup(x)) = x"
    assert ours.num_rows("g") == unique.shape[0], "as many distinct rows"
    seconds = {
        "recoup.jagged.dedup": timed(lambda: dedup(kjt, groups), repeats),
        "torch.unique(dim=0)": timed(lambda: torch.unique(ids, dim=0, return_inverse=True), repeats),
        "dict of tuples": timed(lambda: by_dict(ids), 1),
    }
    growth = [timed(lambda n=n: dedup(part(kjt, n), groups), repeats) for n in (ROWS // 4, ROWS // 2, ROWS)]
    best = seconds["recoup.jagged.dedup"]
    rows = [(name, one, ROWS / one, one / best) for name, one in seconds.items()]
    note = f"synthetic: {ROWS} rows of {LENGTH} IDs, {unique.shape[0]} distinct, in runs and scattered"
    Console().print(summary_table("Deduplicate rows", ("", "seconds", "rows/s", "times ours"), rows, note).rich())
    result = {
        "ratio_vs_torch_unique": seconds["torch.unique(dim=0)"] / best,
        "ratio_vs_dict": seconds["dict of tuples"] / best,
        "rows_per_second": ROWS / best,
        "seconds_by_rows": growth,
    }
    print(json.dumps(result))


def make_rows() -> torch.Tensor:
    """Return rows in short runs whose content comes back later: neighbours repeat, and so does A, B, A."""
    generator = torch.Generator().manual_seed(0)
    pool = torch.randint(0, 1 << 40, (DISTINCT, LENGTH), generator=generator)
    heads = torch.randint(0, DISTINCT, (ROWS // 4,), generator=generator)
    return pool[heads.repeat_interleave(4)]


def part(kjt: KeyedJaggedTensor, rows: int) -> KeyedJaggedTensor:
    return KeyedJaggedTensor(
        keys=["f"], values=kjt.values()[: rows * LENGTH], lengths=kjt.lengths()[:rows], stride=rows
    )


def by_dict(ids: torch.Tensor) -> int:
    return len({tuple(row): None for row in ids.tolist()})


def timed(run: Callable[[], object], repeats: int) -> float:
    run()
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


if __name__ == "__main__":
    main()
