"""The Spark engine: the same encoder and the same table, on a cluster's shuffle."""

from recoup.table.spark.engine import SparkBuild, build_table_on_spark

__all__ = ["SparkBuild", "build_table_on_spark"]
