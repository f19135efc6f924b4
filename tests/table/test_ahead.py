"""Working ahead in a thread: order kept, errors raised in their place, the thread ends with its consumer."""

import threading

import pytest

from recoup.table.ahead import ahead


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_items_come_in_order(depth):
    """The items are those of the iterable, in its order."""
    assert list(ahead(range(50), depth)) == list(range(50))
    assert list(ahead([], depth)) == []


def test_an_error_comes_where_its_item_would_have_come():
    """What was made before the error is still yielded."""

    def failing():
        yield 1
        yield 2
        raise ValueError("third")

    items = ahead(failing())
    assert [next(items), next(items)] == [1, 2]
    with pytest.raises(ValueError, match="third"):
        next(items)


def test_a_consumer_that_stops_ends_the_thread():
    """Closing the generator early leaves no thread behind and does not run the producer to its end."""
    before = threading.active_count()
    made = []

    def endless():
        while True:
            made.append(len(made))
            yield made[-1]

    items = ahead(endless())
    assert [next(items), next(items)] == [0, 1]
    items.close()
    assert threading.active_count() == before
    assert len(made) < 10
