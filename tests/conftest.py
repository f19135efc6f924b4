"""Hypothesis without deadlines, and which tests share a worker when several run at once (`make test`)."""

import pytest
from hypothesis import HealthCheck, settings

# On a fresh clone the first example of a test may wait for a kernel to be compiled.
settings.register_profile("recoup", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("recoup")

# These start whole clusters of processes and mostly wait: one after another, from the start, beside all others.
CLUSTERS = ("tests/runtime/", "tests/table/test_spark.py")


def pytest_itemcollected(item):
    """Give every file's tests one worker, and all clusters the same one (pytest-xdist's `loadgroup`)."""
    path = item.nodeid.partition("::")[0]
    item.add_marker(pytest.mark.xdist_group("clusters" if path.startswith(CLUSTERS) else path))


def pytest_collection_modifyitems(items):
    """Put the clusters first: they take longest."""
    items.sort(key=lambda item: not item.nodeid.startswith(CLUSTERS))
