"""The exactly-once sink: the writers that Spark calls. Imports neither pyarrow nor pandas nor numba."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from oncelog.client.blocking import BlockingCluster
from oncelog.spark import faults
from oncelog.spark.cluster.brokers import Brokers, run
from oncelog.spark.commit import finish, steps, task
from oncelog.spark.commit.errors import MisuseError, NotDecidedError, SinkError
from oncelog.spark.commit.names import Attempt
from oncelog.spark.commit.plan import Carried
from oncelog.spark.commit.record import APP, EACH, STREAM, WRITE, Source
from oncelog.spark.commit.steps import Sink
from oncelog.spark.commit.task import Tasking, TaskMessage
from oncelog.spark.formats.field import FieldFormat
from oncelog.spark.option_tables import SINK
from oncelog.spark.options import reach, warn_of_unused, warn_once
from oncelog.spark.user_errors import translate_errors
from oncelog.spark.versions import StreamArrowWriter
from oncelog.spark.writing.checkpoint import Planned, planned, query_id
from oncelog.spark.writing.driver import make_plan, sink_of
from oncelog.spark.writing.options import sink_options

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
}
"""Columns that may be written, and their types, as in Spark's Kafka connector."""

_COLLATION = re.compile(r" collate \w+")

BATCH_ID = "streaming.sql.batchId"
QUERY_ID = "sql.streaming.queryId"
CALL = ("spark.app.id", "spark.app.startTime", "spark.sql.execution.root.id")
"""The properties that name one call of a foreachBatch function: the application, and the execution of the micro-batch,
which Spark numbers within the application. A replay is another execution or another application."""
OF_A_STREAM = "spark.sql.streaming.internal.stateStore.partitions"
"""A setting that Spark gives only to the session of a streaming query. Tasks have the settings of their session."""
CONNECT_OPERATION, CONNECT_PLAN = "spark.connect.operation_id", "callSite.long"
"""Properties of Spark Connect's tasks: since 4.3, the operation; and the beginning of its plan as text."""
ABANDON_MS = 5_000


@dataclass
class SinkMessage(WriterCommitMessage):
    """A task's report to the driver."""

    message: TaskMessage


def columns_of(schema: Any, topic: str | None, formats: Sequence[FieldFormat] = ()) -> dict[str, int | list[int]]:
    """Return the sink's columns in a schema: name -> place. Raises MisuseError if they cannot be written.

    If there is no column `value`, and it has a format, its fields are all columns that the sink does not know. As in
    Spark's Kafka connector, names are compared without their case, and other columns are ignored. Strings may have any
    collation.
    """
    structs = {each.field for each in formats if each.name != "string"}
    found: dict[str, int | list[int]] = {}
    names: dict[str, str] = {}
    others: list[int] = []
    for place, column in enumerate(schema.fields):
        name = column.name.lower()
        allowed = COLUMNS.get(name)
        if allowed is None:
            others.append(place)
            continue
        if name in found:
            raise MisuseError(f"columns {names[name]} and {column.name}: drop or rename one of them")
        kind = _COLLATION.sub("", column.dataType.simpleString())
        if kind not in allowed and name not in structs:
            advice = f", or set {name}Format=json or avro" if name in ("key", "value") else ""
            raise MisuseError(f"column {name}: its type must be {' or '.join(allowed)}, not {kind}{advice}")
        found[name], names[name] = place, column.name
    if "value" not in found and "value" in structs and others:
        found["value"], others = others, []
    if "value" not in found:
        advice = ", or set valueFormat=json or avro to write all other columns as the value" if others else ""
        raise MisuseError(f"column value is missing; add it to the query{advice}")
    if topic is None and "topic" not in found:
        raise MisuseError("the sink has no topic; set option topic, or add a column topic to the query")
    if others:
        ignored = ", ".join(schema.fields[place].name for place in others)
        warn_once(
            f"the sink does not write the columns {ignored}; its columns are {', '.join(COLUMNS)}. To write more than "
            "one column, leave out the column value and set valueFormat=json or avro"
        )
    return found


class Writer:
    """The base class of the streaming and batch writers. Pickling a writer makes the plan, once, on the driver."""

    streaming = True

    def __init__(self, given: dict[str, str], schema: Any, overwrite: bool) -> None:
        if overwrite:
            raise MisuseError("the sink can only append to a topic; use mode('append') or outputMode('append')")
        self.options = sink_options(given, streaming=self.streaming)
        warn_of_unused(given, SINK)
        self.columns = columns_of(schema, self.options.topic, self.options.formats)
        self.formats = self.options.formats
        self.sink: Sink | None = None
        self.carried: Carried | None = None
        self.planned = Planned()

    @translate_errors
    def __getstate__(self) -> dict[str, Any]:
        if self.carried is None:
            given = self.options
            self.formats = tuple(each.for_writing(given.topic, register=given.register) for each in given.formats)
            self.planned = planned(self.options.checkpoint)
            self.sink, self.carried = make_plan(self.options, self.applicant())
        return self.__dict__

    def applicant(self) -> Source:
        """Return what the driver knows of the source of the rows."""
        raise NotImplementedError

    def write_rows(self, iterator: Iterator[pa.RecordBatch], source: Source) -> SinkMessage:
        """Run one attempt of one task: K0 to K4. If it fails, abort the transaction that it has begun."""
        from oncelog.spark.writing.rows import RowWriter

        if self.sink is None or self.carried is None:
            raise SinkError("this writer has no plan, because Spark has not pickled it on the driver")
        context = TaskContext.get()
        if context is None:
            raise SinkError("there is no TaskContext; the sink can write only in a task of Spark")
        attempt = Attempt(context.partitionId(), context.attemptNumber(), context.taskAttemptId())
        tasking = Tasking(self.sink, self.carried, source, attempt, self.options.permission)
        faults.enter("task")
        with BlockingCluster(**self.options.client) as cluster:
            brokers = Brokers(cluster)
            # One task has few rows, so tasks of one batch, and batches, each begin at the next partition.
            turn = attempt.slot + self.carried.record.plan
            new_protocol = brokers.transactions.new_protocol
            rows = self._rows(iterator)
            brokers.rows = RowWriter(cluster, self.options, rows, new_protocol=new_protocol, first_turn=turn)
            try:
                done = run(steps.run(task.TASK, tasking), brokers)
            except BaseException:
                if brokers.transactions.begun is not None:
                    with contextlib.suppress(Exception):
                        cluster.cluster.api_timeout_ms = ABANDON_MS
                        run(task.abandon(brokers.transactions.begun), Brokers(cluster))
                raise
            return SinkMessage(done.message())

    def _rows(self, iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return batches of the sink's columns, under its names, with encoded keys and values."""
        if self.formats:
            from oncelog.spark.formats.encoding import encoded

            return encoded(iterator, self.formats, self.columns)
        names = list(self.columns)
        return (batch.select(list(self.columns.values())).rename_columns(names) for batch in iterator)

    def finish(self, messages: Sequence[WriterCommitMessage | None], batch: int | None) -> None:
        """Run Commit(b)."""
        known = _unwrapped(messages)
        reports = tuple(m for m in known if m is not None)
        if len(reports) != len(known):
            raise NotDecidedError(
                f"{len(known) - len(reports)} of {len(known)} tasks have sent no report; Spark replays the batch"
            )
        for m in reports:
            if isinstance(m, task.Prepared) and batch is not None and m.source.batch != batch:
                raise NotDecidedError(
                    f"a task has reported batch {m.source.batch}, but Spark commits batch {batch}, and replays it"
                )
        faults.enter("commit")
        with self._connected() as cluster:
            state = finish.Committing(self.sink or sink_of(self.options), reports)
            run(steps.run(finish.COMMIT, state), Brokers(cluster))

    def give_up(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Run Abort(b)."""
        faults.enter("abort")
        with self._connected() as cluster:
            run(finish.abort_batch(_unwrapped(messages)), Brokers(cluster))

    @contextlib.contextmanager
    def _connected(self) -> Iterator[BlockingCluster]:
        """Yield a cluster after one of its brokers has answered, so that no step fails for lack of a broker."""
        with BlockingCluster(**self.options.client) as cluster:
            reach(cluster, self.options.client["bootstrap_servers"], self.options.bootstrap_ms)
            yield cluster


def _unwrapped(messages: Sequence[WriterCommitMessage | None]) -> list[TaskMessage | None]:
    return [m.message if isinstance(m, SinkMessage) else None for m in messages]


class StreamSink(Writer, StreamArrowWriter):
    """The writer of streaming queries."""

    def applicant(self) -> Source:
        """Return the query by its checkpoint: Spark reports the query's id to tasks only."""
        checkpoint = self.options.checkpoint
        return Source(STREAM, query_id(checkpoint), -1, checkpoint)

    @translate_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task, in the task."""
        context = TaskContext.get()
        batch = context.getLocalProperty(BATCH_ID) if context is not None else None
        query = context.getLocalProperty(QUERY_ID) if context is not None else None
        if batch is None or query is None:
            raise SinkError(
                f"the task has no property {BATCH_ID} or {QUERY_ID}; this version of Spark is not supported"
            )
        source = Source(STREAM, query, int(batch), self.options.checkpoint)
        return self.write_rows(iterator, self._with_offsets(source))

    def _with_offsets(self, source: Source) -> Source:
        """Return the source with the digests of the batch's offsets, if the plan could read them.

        Compare id and number: the driver may have read a folder of the same name in another file system.
        """
        known = self.carried.record.planner.query if self.carried is not None else ""
        batch, start, end = self.planned
        return source._replace(start=start, end=end) if (known, batch) == (source.query, source.batch) else source

    @translate_errors
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit the batch, on the driver, in a separate process."""
        self.finish(messages, batchId)

    @translate_errors
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Abort the batch after failed tasks. Spark calls this after a failed commit, too."""
        self.give_up(messages)


def each_source(topic: str) -> Source | None:
    """Return the query and batch number of a task inside foreachBatch, or None outside foreachBatch.

    `topic`: the option topic of the write, or "". Raises MisuseError if Spark does not report which call of the
    function it is.
    """
    context = TaskContext.get()
    if context is None:
        return None
    query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
    if query is None and batch is None and not _in_unknown_call(context):
        return None
    call = [context.getLocalProperty(name) for name in CALL]
    if query is None or batch is None or None in call:
        raise MisuseError(
            "this write runs inside foreachBatch (or writes a DataFrame from checkpoint(), in Spark Connect before "
            "4.3), but Spark does not report the query and the batch to its tasks; set the options txnAppId (a name) "
            "and txnVersion (the batch's number)"
        )
    return Source(EACH, query, int(batch), call="/".join(map(str, call)), topic=topic)


def _in_unknown_call(context: TaskContext) -> bool:
    """Return whether a task without a query's properties runs inside foreachBatch nevertheless.

    In Spark Connect, the server runs the function's writes as operations of their own. Before 4.3, they run in the
    user's session, and only their plan shows that they write rows of the server.
    """
    if context.getLocalProperty(OF_A_STREAM) is not None:
        return True
    if context.getLocalProperty(CONNECT_OPERATION) is not None:
        return False
    return "cached_remote_relation" in (context.getLocalProperty(CONNECT_PLAN) or "")


class BatchSink(Writer, DataSourceArrowWriter):
    """The writer of batch writes.

    Inside foreachBatch, the tasks see the streaming query's properties. A write without txnAppId takes its id and batch
    number from them. Only tasks see these properties, so the plan does not know that it runs inside foreachBatch.
    """

    streaming = False

    def __init__(self, given: dict[str, str], schema: Any, overwrite: bool) -> None:
        super().__init__(given, schema, overwrite)
        app = self.options.app
        self.source = Source(WRITE, uuid.uuid4().hex, 0) if app is None else Source(APP, *app)

    def applicant(self) -> Source:
        """Return the source, which this writer knows."""
        return self.source

    @translate_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task, in the task."""
        each = each_source(self.options.topic or "") if self.options.app is None else None
        return self.write_rows(iterator, each or self.source)

    @translate_errors
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the batch, on the driver, in a separate process."""
        self.finish(messages, None)

    @translate_errors
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Abort the batch after failed tasks. Spark calls this after a failed commit, too."""
        self.give_up(messages)
