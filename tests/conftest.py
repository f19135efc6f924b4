"""Hypothesis without deadlines, and which tests share a worker when several run at once (`make test`)."""

from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

# On a fresh clone the first example of a test may wait for a kernel to be compiled.
settings.register_profile("recoup", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("recoup")

# These start whole clusters of processes and mostly wait: one after another, from the start, beside all others.
CLUSTERS = ("tests/runtime/", "tests/table/test_spark.py")


class FilesAndClusters(LoadScopeScheduling):
    """Every file's tests share a worker, and all clusters the same one.

    pytest-xdist 3.8's own `--dist loadgroup` renames tests, which pytest 9.2 does not heed: nothing is grouped.
    """

    def _split_scope(self, nodeid):
        return "clusters" if nodeid.startswith(CLUSTERS) else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config, log):
    """Give the workers their tests by file."""
    return FilesAndClusters(config, log)


def pytest_collection_modifyitems(items):
    """Put the clusters first: they take longest."""
    items.sort(key=lambda item: not item.nodeid.startswith(CLUSTERS))
