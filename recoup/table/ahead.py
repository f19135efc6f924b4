"""Work ahead of the consumer in one thread: reading, decompressing and sorting overlap with writing.

The kernels and Arrow release the interpreter's lock, so two stages use two cores. Order is kept; at most `depth` items
wait. An error of the producer is raised where its item would have come.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from queue import Full, Queue
from threading import Event, Thread
from typing import Generic, TypeVar

Item = TypeVar("Item")
_WAIT_SECONDS = 0.1  # how often the thread looks whether its consumer has gone


@dataclass(frozen=True, slots=True)
class _Given(Generic[Item]):
    item: Item


@dataclass(frozen=True, slots=True)
class _Ended:
    error: BaseException | None


def ahead(items: Iterable[Item], depth: int = 1) -> Iterator[Item]:
    """Yield `items`, made by a thread that is at most `depth` + 1 items ahead; it ends with the generator."""
    waiting: Queue[_Given[Item] | _Ended] = Queue(depth)
    gone = Event()
    thread = Thread(target=_produce, args=(items, waiting, gone), daemon=True)
    thread.start()
    try:
        while isinstance(entry := waiting.get(), _Given):
            yield entry.item
        if entry.error is not None:
            raise entry.error
    finally:
        gone.set()
        thread.join()


def _produce(items: Iterable[Item], waiting: "Queue[_Given[Item] | _Ended]", gone: Event) -> None:
    try:
        for item in items:
            if not _put(waiting, _Given(item), gone):
                return
    except BaseException as err:
        _put(waiting, _Ended(err), gone)
    else:
        _put(waiting, _Ended(None), gone)


def _put(waiting: "Queue[_Given[Item] | _Ended]", entry: "_Given[Item] | _Ended", gone: Event) -> bool:
    while not gone.is_set():
        try:
            waiting.put(entry, timeout=_WAIT_SECONDS)
        except Full:
            continue
        return True
    return False
