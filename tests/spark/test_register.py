"""The Python that Spark's workers use."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

import oncelog.spark


def session(master: str | None) -> Any:
    """Return a session with what `register` uses. None: a session of Spark Connect, which has no context."""
    made = SimpleNamespace(dataSource=SimpleNamespace(register=lambda source: None))
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
