"""Versioned plain state: what `state_dict()` returns and `load_state_dict()` accepts.

A state holds plain types only (bool, int, float, str, None, lists and dicts of them) and a `version` key.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

from recoup.core.errors import StateError

State: TypeAlias = dict[str, Any]


def check_state(state: Mapping[str, Any], *, version: int, keys: frozenset[str] | set[str], owner: str) -> None:
    """Refuse a state that `owner` cannot load.

    Raises:
        StateError: another version, a missing key or an unknown key; the message names the owner and the key.
    """
    found = state.get("version")
    if found != version:
        raise StateError(
            f"{owner}: expected a state of version {version}, got {found!r}: it was saved by another release"
        )
    missing = sorted(keys - set(state))
    if missing:
        raise StateError(f"{owner}: expected key {missing[0]!r} in the saved state, got {sorted(state)}")
    unknown = sorted(set(state) - keys - {"version"})
    if unknown:
        raise StateError(f"{owner}: unknown key {unknown[0]!r} in the saved state, expected {sorted(keys)}")
