"""PySpark's daemon with imports done before it forks: `spark.python.daemon.module=oncelog.spark.daemon`.

PySpark's own daemon imports nothing beforehand, because pandas and pyarrow start threads. So each process that it forks
compiles PySpark from its zip again. The modules imported here start no threads: those of PySpark and oncelog that need
no Arrow. PySpark 4.0 to 4.3 use this daemon for the workers of tasks only. Other processes, such as those that plan and
commit, come from `pyspark.daemon`.
"""

from __future__ import annotations

import contextlib
import importlib
import sys

from pyspark import daemon

OURS = (
    "oncelog.spark.datasource",
    "oncelog.spark.writing.sink",
    "oncelog.spark.reading.batch",
    "oncelog.spark.reading.stream",
    "oncelog.spark.reading.older_stream",
    "oncelog.client.blocking",
    "uvloop",
)
WITH_ARROW = frozenset(
    {
        "pyspark.sql.streaming.python_streaming_source_runner",
        "pyspark.sql.worker.data_source_pushdown_filters",
        "pyspark.sql.worker.plan_data_source_read",
    }
)
"""PySpark's workers that import pyarrow: only the forked process imports them."""
HEAVY = frozenset({"numba", "numpy", "pandas", "pyarrow"})
"""Modules that start threads. A forked process would inherit their locks without the threads."""


def preload(worker: str) -> None:
    """Import the modules that processes with this worker module of PySpark need."""
    workers = () if worker in WITH_ARROW else (worker,)
    for name in (*workers, *OURS):
        with contextlib.suppress(ImportError):  # the code that needs it raises a better error
            importlib.import_module(name)


def main() -> None:
    """Do what `python -m pyspark.daemon MODULE` does."""
    preload(sys.argv[1] if len(sys.argv) > 1 else "pyspark.worker")
    daemon.manager()


if __name__ == "__main__":
    main()
