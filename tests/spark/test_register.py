"""The Python that Spark's workers use."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import AnalysisException

import oncelog.spark


class Session(SimpleNamespace):
    """A session, which is compared by identity, as Spark's."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__


def session(master: str | None) -> Any:
    """Return a session with what `register` uses. None: a session of Spark Connect, which has no context."""
    made = Session(dataSource=SimpleNamespace(register=lambda source: None))
    if master is not None:
        made._sc = SimpleNamespace(master=master, pythonExec="python3")
    return made


@pytest.mark.parametrize(
    ("master", "chosen", "used"),
    [
        ("local[2]", None, sys.executable),
        ("local[2]", "/opt/python", "python3"),
        ("spark://far:7077", None, "python3"),
    ],
)
def test_local_workers_run_this_python(
    master: str, chosen: str | None, used: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if chosen is None:
        monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    else:
        monkeypatch.setenv("PYSPARK_PYTHON", chosen)
    spark = session(master)
    oncelog.spark.register(spark)
    assert spark._sc.pythonExec == used


def test_connect_session_is_not_changed() -> None:
    oncelog.spark.register(session(None))


class RegistrationError(AnalysisException):
    """An error of Spark's with a name."""

    def __init__(self, condition: str) -> None:
        super().__init__(condition)
        self._condition = condition

    def getCondition(self) -> str:
        return self._condition


def failing(condition: str) -> Any:
    """Return a session that rejects the registration."""

    def reject(source: object) -> None:
        raise RegistrationError(condition)

    return Session(dataSource=SimpleNamespace(register=reject))


def test_source_that_spark_has_found_is_kept() -> None:
    """PySpark 4.0 finds the module pyspark_oncelog, and does not replace its source."""
    oncelog.spark.register(failing("DATA_SOURCE_ALREADY_EXISTS"))
    with pytest.raises(RegistrationError, match="ANOTHER"):
        oncelog.spark.register(failing("ANOTHER"))


def test_source_is_registered_once_in_each_session() -> None:
    """Spark warns that the second registration replaces the first."""
    seen: list[object] = []
    first, second = session(None), session(None)
    for spark in (first, second):
        spark.dataSource.register = seen.append
    for _ in range(2):
        oncelog.spark.register(first)
    oncelog.spark.register(second)
    assert seen == [oncelog.spark.OncelogDataSource] * 2
