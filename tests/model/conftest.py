"""One thread: tiny steps gain nothing from two, and waiting threads spin where tests share cores."""

import numba
import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    torch.set_num_threads(1)
    numba.set_num_threads(1)
