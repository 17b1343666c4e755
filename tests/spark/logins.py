"""Spark's source and sink log in to a secured server in a `Way`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import oncelog.spark
from oncelog import Admin
from support.python_logins import read_with_ours, write_with_ours
from support.ways_to_log_in import VALUES, Way

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _options(way: Way) -> dict[str, str]:
    return {f"kafka.{name}": value for name, value in way.java().items()}


def _read(spark: SparkSession, way: Way) -> list[bytes]:
    rows = spark.read.format("oncelog").options(**_options(way), subscribe=way.topic).load()
    return [bytes(row.value) for row in rows.collect()]


def _write(spark: SparkSession, way: Way) -> None:
    rows = spark.createDataFrame([(value.decode(),) for value in VALUES], "value string").coalesce(1)
    sink = rows.write.format("oncelog").mode("append").options(**_options(way), topic=way.topic)
    sink.option("transactionalIdPrefix", way.topic).save()


def source(spark: SparkSession, way: Way) -> None:
    write_with_ours(way)
    found = _read(spark, way)
    assert found == VALUES, found


def sink(spark: SparkSession, way: Way) -> None:
    with Admin(config=way.dotted()) as admin:
        admin.create_topics(way.topic)
    _write(spark, way)
    found = read_with_ours(way)
    assert found == VALUES, found


def _rejected(act: Callable[[SparkSession, Way], object]) -> Callable[[SparkSession, Way], str]:
    def rejected(spark: SparkSession, way: Way) -> str:
        try:
            act(spark, way)
        except Exception as error:  # noqa: BLE001 - the test looks at its text
            return f"{oncelog.spark.cause(error)}"
        return "the client was accepted"

    return rejected


Program = tuple[Callable[["SparkSession", Way], None], Callable[["SparkSession", Way], str]]
SPARK: dict[str, Program] = {
    "Spark's source": (source, _rejected(_read)),
    "Spark's sink": (sink, _rejected(_write)),
}
"""The program, and one that returns the error for a wrong login."""
