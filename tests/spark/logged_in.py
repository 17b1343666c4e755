"""Copy rows through source and sink of a secured Kafka, with all of Spark's logs, and keep what Spark shows.

Arguments: a JSON file, and a folder for logs, checkpoints and pages. The file has three kinds of topics with the
options of their cluster: `copies`, `explained`, and `wrong`, whose login fails.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG4J = """
rootLogger.level = info
logger.sql.name = org.apache.spark.sql
logger.sql.level = debug
logger.python.name = org.apache.spark.api.python
logger.python.level = debug
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {folder}/spark.log
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %p %c: %m%n%ex
"""
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""As in support/spark_conf: this setting replaces the one there."""

PAGES = ("environment", "SQL", "StreamingQuery", "stages", "jobs", "executors")
REST = ("sql?details=true&planDescription=true", "environment", "jobs", "stages")


def start(folder: Path) -> SparkSession:
    from oncelog.spark.java import ensure_java

    ensure_java()
    os.environ.update({"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"})
    from pyspark.sql import SparkSession

    import oncelog.spark

    (folder / "events").mkdir()
    (folder / "log4j2.properties").write_text(LOG4J.format(folder=folder))
    settings = {
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": f"{SHORT_LIVED} -Dlog4j2.configurationFile=file:{folder}/log4j2.properties",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file:{folder}/events",
        "spark.eventLog.compress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.port": "0",
    }
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    oncelog.spark.register(spark)
    return spark


Kafka = dict[str, str]


def options_of(cluster: dict[str, str]) -> Kafka:
    return {f"kafka.{option}": value for option, value in cluster.items()}


def copy(spark: SparkSession, name: str, kafka: Kafka, folder: Path) -> None:
    source = spark.readStream.format("oncelog").options(**kafka, subscribe=name, startingOffsets="earliest")
    sink = source.load().select("key", "value").writeStream.format("oncelog")
    sink = sink.options(**kafka, topic=f"{name}-out", transactionalIdPrefix=f"{name}-sink")
    query = sink.option("checkpointLocation", str(folder / "checkpoints" / name)).trigger(availableNow=True).start()
    query.awaitTermination()
    query.explain(True)
    print(query.recentProgress)


def explain(spark: SparkSession, name: str, kafka: Kafka) -> None:
    read = spark.read.format("oncelog").options(**kafka, subscribe=name).load()
    read.explain("extended")
    read.createOrReplaceTempView("read")
    spark.sql("explain formatted select * from read").show(truncate=False)


def main(given: str, folder: Path) -> None:
    from pyspark.errors import PySparkException

    spark, wanted = start(folder), json.loads(Path(given).read_text())
    for name, cluster in wanted["copies"].items():
        copy(spark, name, options_of(cluster), folder)
    for name, cluster in wanted["explained"].items():
        explain(spark, name, options_of(cluster))
    for name, cluster in wanted["wrong"].items():
        try:
            explain(spark, name, options_of(cluster))
        except PySparkException as error:
            print(error)
    address, rest = spark.sparkContext.uiWebUrl, f"api/v1/applications/{spark.sparkContext.applicationId}"
    for number, page in enumerate([*PAGES, *(f"{rest}/{each}" for each in REST)]):
        with urlopen(f"{address}/{page}", timeout=30) as response:
            (folder / f"page-{number}").write_bytes(response.read())
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
