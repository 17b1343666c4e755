"""Register the data source in Spark automatically. Spark imports modules named `pyspark_*` (SPARK-45917).

So `format("oncelog")` works wherever oncelog is installed. Declarative Pipelines need this: `spark-pipelines run`
cannot run a pipeline to its end if the pipeline's own session registers the source.
"""

from oncelog.spark.datasource import OncelogDataSource as DefaultSource

__all__ = ["DefaultSource"]
