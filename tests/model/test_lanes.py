"""What sixteen lanes compute is what numpy computes."""

import numba
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from recoup.model import lanes

vectors = st.lists(st.integers(-50, 50), min_size=4 * lanes.WIDTH, max_size=4 * lanes.WIDTH)


@numba.njit
def _run(values, factor, out):
    lanes.prefetch(values, 1 << 40)  # far outside: nothing is read
    a, b, c, d = lanes.load(values, 0), lanes.load(values, 16), lanes.load(values, 32), lanes.load(values, 48)
    lanes.store(out, 0, lanes.add(a, b))
    lanes.store(out, 16, lanes.add_product(a, factor, b))
    lanes.store(out, 32, lanes.add_products(a, b, c))
    lanes.store(out, 48, lanes.zero())
    lanes.store_sums(out, 64, a, b, c, d)
    return lanes.sum_lanes(d)


@given(values=vectors, factor=st.integers(-9, 9))
def test_lanes_are_float32_vectors(values, factor):
    """Whole numbers are summed without rounding: every operation equals numpy's, and only its own cells are set."""
    array = np.array(values, dtype=np.float32)
    out = np.full(70, 7, dtype=np.float32)
    total = _run(array, np.float32(factor), out)
    a, b, c, d = array.reshape(4, lanes.WIDTH)
    sums = [x.sum() for x in (a, b, c, d)]
    expected = np.concatenate([a + b, a + factor * b, a + b * c, 0 * a, sums, [7, 7]])
    np.testing.assert_array_equal(out, expected)
    assert total == d.sum()
