"""A Spark session for a build: local or on a cluster; Python workers are this interpreter."""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from recoup.table.errors import TableError


@contextmanager
def spark_session(master: str, options: dict[str, str]) -> Generator[Any]:
    """Yield a session for `master` and stop it at the end, if it was started here.

    Args:
        master: "local[*]", "local[2,3]" (two threads, three attempts a task), "spark://...", "yarn", "k8s://...".
        options: further Spark settings; they go before the defaults here.
    Raises:
        TableError: pyspark is not installed, or Java is missing.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as err:
        raise TableError("the Spark engine needs pyspark: install the extra 'spark'") from err
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    defaults = {
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "4096",
        "spark.sql.adaptive.enabled": "false",  # partitions are the commit protocol's units: they stay as planned
        "spark.ui.showConsoleProgress": "false",
    }
    if master.startswith("local"):
        defaults |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    builder: Any = SparkSession.builder
    builder = builder.master(master).appName("recoup table build")
    for key, value in {**defaults, **options}.items():
        builder = builder.config(key, value)
    running = SparkSession.getActiveSession()
    try:
        session = builder.getOrCreate()
    except RuntimeError as err:
        raise TableError(f"Spark did not start on {master!r}: {err}: is Java 17 installed?") from err
    if running is None:
        session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        if running is None:
            session.stop()
