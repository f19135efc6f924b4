"""The reader's position: an epoch, and how many steps were trained by how many ranks since its start.

Plain, a few hundred bytes, the same on every rank. What remains is a pure function of it and of the table (plan.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from recoup.core import State, check_state
from recoup.reader.errors import ReaderError
from recoup.reader.plan import Stage

VERSION = 1


@dataclass(kw_only=True, slots=True)
class Position:
    """Points at the next batch to train."""

    epoch: int = 0
    earlier: tuple[Stage, ...] = ()
    """Stages of this epoch that other world or batch sizes trained."""
    num_steps: int = 0
    """Steps trained since."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PositionContext:
    """What a position means: saved with it, and compared when it is loaded."""

    world_size: int
    batch_size: int
    order: Mapping[str, Any] = field(default_factory=dict)
    """Everything that shapes the order of samples; must be equal to resume."""
    part_digests: tuple[str, ...] = ()
    """Running digests of the table's parts; a saved table must be a prefix of the one that is resumed from."""


def save_position(position: Position, context: PositionContext, num_parts: int) -> State:
    """Return the position as plain state."""
    return {
        "version": VERSION,
        "epoch": position.epoch,
        "earlier_stages": [[s.world_size, s.batch_size, s.num_steps] for s in position.earlier],
        "world_size": context.world_size,
        "batch_size": context.batch_size,
        "num_steps": position.num_steps,
        "order": dict(context.order),
        "num_parts": num_parts,
        "table": context.part_digests[num_parts - 1] if num_parts else "",
    }


def load_position(state: Mapping[str, Any], context: PositionContext) -> tuple[Position, int]:
    """Return the position that `state` describes, and the number of parts that its epoch reads.

    Raises:
        StateError: a state of another version or shape.
        ReaderError: the order or the table is another one.
    """
    keys = {"epoch", "earlier_stages", "world_size", "batch_size", "num_steps", "order", "num_parts", "table"}
    check_state(state, version=VERSION, keys=keys, owner="reader")
    for name, value in context.order.items():
        if state["order"].get(name) != value:
            raise ReaderError(
                f"expected to resume with {name} = {state['order'].get(name)!r}, as saved, got {value!r}: the order of "
                f"samples would be another; set it back, or start a new run"
            )
    num_parts = state["num_parts"]
    found = context.part_digests[num_parts - 1] if 0 < num_parts <= len(context.part_digests) else ""
    if found != state["table"]:
        raise ReaderError(
            f"expected the table that the position was saved for ({num_parts} parts, digest {state['table']!r}), "
            f"got {len(context.part_digests)} parts, digest {found!r}: point the run at that table, or start a new run"
        )
    earlier = tuple(Stage(world_size=w, batch_size=b, num_steps=n) for w, b, n in state["earlier_stages"])
    saved = Stage(world_size=state["world_size"], batch_size=state["batch_size"], num_steps=state["num_steps"])
    if (saved.world_size, saved.batch_size) == (context.world_size, context.batch_size):
        return Position(epoch=state["epoch"], earlier=earlier, num_steps=saved.num_steps), num_parts
    if saved.num_steps:
        earlier = (*earlier, saved)
    return Position(epoch=state["epoch"], earlier=earlier), num_parts
