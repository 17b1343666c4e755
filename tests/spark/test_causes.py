"""The message that a user reads when a query fails."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import oncelog.spark
from oncelog.errors import ConnectionFailedError
from oncelog.spark.commit.errors import SinkError
from oncelog.spark.reading import task as reading
from oncelog.spark.reading.stream import StreamSource
from spark.judges import create
from support.processes import wait_until
from support.servers import Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparksError(Exception):
    """An exception like PySpark's: the JVM's stack trace is in an attribute, and so is the cause."""

    def __init__(self, text: str, stack: str, reason: BaseException | None = None) -> None:
        super().__init__(text)
        self._stackTrace, self._cause = stack, reason


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        (
            'The data source "oncelog" cannot be written in the "ErrorIfExists" mode.',
            '. For oncelog, add .mode("append")',
        ),
        (
            "requirement failed: oncelog does not support Update mode",
            '. Use .outputMode("append"), or write in foreachBatch',
        ),
        ("Another error of Spark", "Another error of Spark"),
    ],
)
def test_cause_of_a_wrong_mode_names_the_right_one(text: str, remedy: str) -> None:
    found = oncelog.spark.cause(SparksError(f"{text}\nJVM stacktrace:", ""))
    assert found.startswith(text.rstrip("."))
    assert found.endswith(remedy)


STACK = """org.apache.spark.SparkException: Writing job failed.
\tat org.apache.spark.Some.java
Caused by: org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] Traceback (most recent call last):
  File "user_errors.py", line 32, in translated
oncelog.spark.commit.errors.SinkError: no broker can be reached
 SQLSTATE: 38000
\tSuppressed: org.apache.spark.SparkException: Traceback (most recent call last):
oncelog.spark.commit.errors.SinkError: the abort failed, too
"""


def test_cause_is_the_first_oncelog_error() -> None:
    assert oncelog.spark.cause(SparksError("Query terminated", "", SparksError("", STACK))) == (
        "no broker can be reached"
    )


def test_cause_without_an_oncelog_error_is_pythons_or_the_first_line() -> None:
    stack = "org.apache.spark.SparkException: Job aborted\n  File x\nZeroDivisionError: division by zero\n"
    assert oncelog.spark.cause(SparksError("Query terminated", stack)) == "ZeroDivisionError: division by zero"
    assert oncelog.spark.cause(SparksError("Out of memory\n=== Query ===", "")) == "Out of memory"


def test_failed_read_has_a_one_line_cause(server: Server, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    create(server.bootstrap, name, 1)
    made = StreamSource({"kafka.bootstrap.servers": server.bootstrap, "subscribe": name})

    def fail(self: reading.Reading) -> object:
        try:
            raise OSError("connection refused")
        except OSError as error:
            raise ConnectionFailedError("no broker can be reached") from error
        yield

    monkeypatch.setattr(reading.Reading, "batches", fail)
    (part,) = made.partitions({name: {"0": 0}}, {name: {"0": 1}})
    with pytest.raises(SinkError, match="ConnectionFailedError: no broker can be reached") as raised:
        list(made.read(part))
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__
    made.stop()


@pytest.mark.timeout(120)
def test_failed_query_states_its_cause_in_one_line(
    spark: SparkSession, server: Server, name: str, tmp_path: Path
) -> None:
    create(server.bootstrap, name, 1)
    given = {
        "kafka.bootstrap.servers": server.bootstrap,
        "topic": f"{name}-missing",
        "transactionalIdPrefix": name,
        "checkpointLocation": str(tmp_path),
    }
    rows = spark.readStream.format("rate").load().selectExpr("CAST(value AS STRING) AS value")
    query = rows.writeStream.format("oncelog").options(**given).start()
    wait_until(lambda: not query.isActive, "the query ends", timeout=90)
    error = query.exception()
    assert error is not None
    assert oncelog.spark.cause(error).startswith(f"option topic: topic '{name}-missing' does not exist")
