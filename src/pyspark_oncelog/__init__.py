"""Spark looks for modules whose names begin so (SPARK-45917): `format("oncelog")` is known where oncelog is installed.

Declarative Pipelines need it: what a pipeline's own session registers, `spark-pipelines run` cannot follow to the end.
"""

from oncelog.spark.datasource import OncelogDataSource as DefaultSource

__all__ = ["DefaultSource"]
