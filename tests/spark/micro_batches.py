"""Spark's part in the sink, without Spark: a query that plans, runs tasks, commits and keeps a checkpoint.

The writer is the product's. It is pickled for the tasks and created again for the commit, as in Spark. As a program, it
can be killed at any operation (ONCELOG_SINK_FAULT) and restarted, like a driver.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from oncelog.errors import OncelogError
from oncelog.spark.faults import VARIABLE
from oncelog.spark.writing import sink as product
from oncelog.spark.writing.sink import BATCH_ID, QUERY_ID, SinkMessage, StreamSink

SCHEMA = StructType([StructField("key", StringType()), StructField("value", StringType())])
TYPED = StructType([StructField("key", StringType()), StructField("row", StringType())])
"""The columns with the option valueFormat. The value is then {"row": TEXT}."""


class FakeTaskContext:
    """The part of Spark's TaskContext that the sink uses."""

    current: FakeTaskContext | None = None

    def __init__(self, slot: int, number: int, task_attempt_id: int, batch: int, query: str) -> None:
        self.slot, self.number, self.task_attempt_id = slot, number, task_attempt_id
        self.properties = {BATCH_ID: str(batch), QUERY_ID: query}

    @classmethod
    def get(cls) -> FakeTaskContext | None:
        return cls.current

    def partitionId(self) -> int:
        return self.slot

    def attemptNumber(self) -> int:
        return self.number

    def taskAttemptId(self) -> int:
        return self.task_attempt_id

    def getLocalProperty(self, name: str) -> str | None:
        return self.properties.get(name)


class Query:
    """One run of a streaming query, whose `Checkpoint` is kept."""

    def __init__(self, bootstrap: str, topic: str, prefix: str, checkpoint: Path, rows: int, **options: str) -> None:
        product.TaskContext = FakeTaskContext  # type: ignore[misc, assignment]
        self.options = {
            "kafka.bootstrap.servers": bootstrap,
            "topic": topic,
            "transactionalIdPrefix": prefix,
            "checkpointlocation": str(checkpoint),
            **options,
        }
        self.bootstrap, self.topic, self.prefix = bootstrap, topic, prefix
        self.checkpoint, self.rows = checkpoint, rows
        self.query = "6b1c9d2e-query"

    @property
    def schema(self) -> StructType:
        return TYPED if "valueFormat" in self.options else SCHEMA

    def committed(self) -> int:
        return int(json.loads(self.checkpoint.read_text())) if self.checkpoint.exists() else -1

    def values(self, batch: int, slots: int) -> list[list[str]]:
        values = [f"{batch}-{row}" for row in range(self.rows)]
        return [values[slot::slots] for slot in range(slots)]

    def plan(self) -> bytes:
        writer = StreamSink(self.options, self.schema, overwrite=False)
        first, second = pickle.dumps(writer), pickle.dumps(writer)
        assert first == second
        return first

    def task(self, plan: bytes, batch: int, slot: int, values: list[str], number: int = 0, tid: int = 0) -> SinkMessage:
        """Run one attempt of one task that writes these values."""
        rows = pa.RecordBatch.from_pydict({"key": values, "row" if "valueFormat" in self.options else "value": values})
        return self.attempt(plan, batch, slot, iter([rows] if values else []), number, tid)

    def attempt(
        self, plan: bytes, batch: int, slot: int, rows: Iterator[Any], number: int = 0, tid: int = 0
    ) -> SinkMessage:
        """Run one attempt of one task, and return its message as Spark sends it."""
        FakeTaskContext.current = FakeTaskContext(slot, number, tid or slot, batch, self.query)
        message: SinkMessage = pickle.loads(pickle.dumps(pickle.loads(plan).write(rows)))
        return message

    def commit(self, messages: list[Any], batch: int) -> None:
        StreamSink(self.options, self.schema, overwrite=False).commit(messages, batch)

    def batch(self, batch: int, slots: int = 2) -> list[SinkMessage]:
        plan = self.plan()
        messages = [self.task(plan, batch, slot, values) for slot, values in enumerate(self.values(batch, slots))]
        self.commit(messages, batch)
        return messages

    def log(self, batch: int) -> None:
        new = self.checkpoint.with_suffix(".new")
        new.write_text(json.dumps(batch))
        os.replace(new, self.checkpoint)

    def run(self, until: int) -> None:
        """Run the query. Every start splits the same rows differently."""
        slots = 2 + (self.committed() + 1) % 2
        for batch in range(self.committed() + 1, until):
            self.batch(batch, slots)
            self.log(batch)


def serve() -> None:
    """For each line of JSON on stdin, run the query in a forked process and print its outcome (imports take
    seconds).
    """
    import oncelog.spark.writing.rows  # noqa: F401 - before the fork

    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            os.environ[VARIABLE] = order["fault"]
            status = 1
            try:
                Query(*order["sink"][:3], Path(order["sink"][3]), order["rows"], **order["options"]).run(order["until"])
                status = 0
            except OncelogError:
                traceback.print_exc()
            finally:
                os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


class Starter:
    """Start drivers in their own processes, one at a time. Use it in a `with` block."""

    def __enter__(self) -> Starter:
        root = Path(__file__).resolve().parents[1]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )
        return self

    def __exit__(self, *exc: object) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()

    def run(self, query: Query, until: int, fault: str = "") -> int:
        """Return the exit status of a driver. Negative: the signal that killed it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        names = ("kafka.bootstrap.servers", "topic", "transactionalIdPrefix", "checkpointlocation")
        order = {
            "sink": [query.options[name] for name in names],
            "rows": query.rows,
            "options": {name: value for name, value in query.options.items() if name not in names},
            "until": until,
            "fault": fault,
        }
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


if __name__ == "__main__":
    serve()
