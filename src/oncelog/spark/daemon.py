"""PySpark's daemon, with everything imported before it forks: `spark.python.daemon.module=oncelog.spark.daemon`.

Spark plans and commits each micro-batch in processes of Python that its daemons fork. PySpark's own daemon imports
nothing beforehand, for pandas and pyarrow start threads, and so each of them compiles PySpark from its zip anew. What
is imported here starts none: PySpark's part, and ours, without Arrow.
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
"""Those of PySpark's workers that import pyarrow: left to the forked process."""
HEAVY = frozenset({"numba", "numpy", "pandas", "pyarrow"})
"""What starts threads, of which a forked process would have nothing but their locks."""


def preload(worker: str) -> None:
    """Import what processes need that run this module of PySpark's."""
    workers = () if worker in WITH_ARROW else (worker,)
    for name in (*workers, *OURS):
        with contextlib.suppress(ImportError):  # who needs it says so, in its own words
            importlib.import_module(name)


def main() -> None:
    """As `python -m pyspark.daemon MODULE`."""
    preload(sys.argv[1] if len(sys.argv) > 1 else "pyspark.worker")
    daemon.manager()


if __name__ == "__main__":
    main()
