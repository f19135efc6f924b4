"""The priority policy of a strategy, over the large tables of a learner."""

from collections.abc import Mapping

from recoup.checkpoint import TableView
from recoup.checkpoint.policies import PolicyName, RowPolicy
from recoup.checkpoint.policies import make_policy as make_row_policy
from recoup.core import derive_seed
from recoup.emulate.learner import Rows
from recoup.emulate.training import large_tables


def make_policy(name: PolicyName, rows: Mapping[str, Rows], fraction: float, seed: int) -> RowPolicy | None:
    """Return the policy called `name`, None for none.

    Args:
        name: of the strategy.
        rows: live rows of all tables, as they are at the start, which counts as saved.
        fraction: r, the bound of SSU's lists.
        seed: of the run; SSU draws from it.
    """
    large = large_tables({table: view.weight.shape[0] for table, view in rows.items()})
    views = {table: whole_view(table, rows[table]) for table in rows if table in large}
    return make_row_policy(name, views, fraction=fraction, seed=derive_seed(seed, "emulate", "ssu"))


def whole_view(name: str, rows: Rows) -> TableView:
    """Return the checkpoint floor's view of a table that is whole in this process."""
    total = rows.weight.shape[0]
    return TableView(name=name, weight=rows.weight, optimizer=rows.optimizer, first_row=0, num_rows_total=total)
