"""Which tables are worth a policy: the largest that hold nearly all rows; small ones are saved whole.

Source: CPR (arXiv 2011.02999): the 7 largest of Criteo's 26 tables hold over 99 % of the rows.
"""

from collections.abc import Mapping


def large_tables(num_rows: Mapping[str, int], *, share: float = 0.99) -> tuple[str, ...]:
    """Return the fewest tables, largest first, that hold at least `share` of all rows."""
    total, held = sum(num_rows.values()), 0
    chosen: list[str] = []
    for table in sorted(num_rows, key=lambda name: (-num_rows[name], name)):
        if held >= share * total:
            break
        chosen.append(table)
        held += num_rows[table]
    return tuple(chosen)
