"""A policy by its name in a configuration."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

from recoup.checkpoint.policies.adagrad_change import AdagradChange
from recoup.checkpoint.policies.contract import RowPolicy
from recoup.checkpoint.policies.dirty import DirtyRows
from recoup.checkpoint.policies.mfu import MFU
from recoup.checkpoint.policies.scar import SCAR
from recoup.checkpoint.policies.ssu import SSU
from recoup.checkpoint.policies.stale_use import StaleUse
from recoup.checkpoint.views import TableView

PolicyName: TypeAlias = Literal["none", "scar", "mfu", "ssu", "adagrad_change", "stale_use", "dirty_rows"]


def make_policy(name: PolicyName, views: Mapping[str, TableView], *, fraction: float, seed: int) -> RowPolicy | None:
    """Return the policy called `name` over these tables as they are now, which counts as saved; None for "none".

    Args:
        name: of the policy.
        views: the tables that it tracks.
        fraction: r, the bound of SSU's lists.
        seed: SSU draws from it.
    """
    sizes = {table: view.num_rows_total for table, view in views.items()}
    match name:
        case "none":
            return None
        case "scar":
            return SCAR(views)
        case "adagrad_change":
            return AdagradChange(views)
        case "dirty_rows":
            return DirtyRows(sizes)
        case "stale_use":
            return StaleUse(sizes)
        case "mfu":
            return MFU(sizes)
        case "ssu":
            return SSU(sizes, fraction=fraction, seed=seed)
