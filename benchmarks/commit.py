"""Measure the cost of the Spark sink's commit protocol by the number of tasks: requests, bytes and seconds per batch.

scripts/bench --commit [--tasks N,N,...] [--partitions N] [--batches N] [--server NAME] [--json FILE]

The sink's own programs plan, prepare and commit batches on a real broker, without Spark: each task writes some rows
into every partition of one topic, in one transaction. The last batch is measured, separately for the plan, one task
(the mean of all) and the commit. Seconds depend on the machine and its other load; requests and bytes do not. At the
end, every row of every batch must be readable with read_committed.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from oncelog import Admin
from oncelog.client.blocking import BlockingCluster
from oncelog.client.response_errors import raise_for_error
from oncelog.errors import OncelogError
from oncelog.net.connection import ClientConnection
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.spark.cluster import partitions
from oncelog.spark.cluster.brokers import Brokers, run
from oncelog.spark.commit import finish, steps, task
from oncelog.spark.commit import operations as op
from oncelog.spark.commit.names import Attempt, TopicPartition
from oncelog.spark.commit.record import STREAM, Owner, Source, Span
from oncelog.spark.writing.driver import make_plan, sink_of
from oncelog.spark.writing.options import SinkOptions, sink_options
from support.apache_kafka import ApacheKafka
from support.servers import OncelogCluster, Server

TOPIC, PREFIX, QUERY = "out", "bench", "6b1c9d2e-query"
ROWS = 3
"""Rows of a task in each partition."""
SERVERS: dict[str, Callable[[Path], Server]] = {
    "oncelog": OncelogCluster,
    "apache-kafka": partial(ApacheKafka, options=()),
}


class Cost(Counter[str]):
    """Requests by kind, and "sent", "received" (bytes) and "seconds"."""

    @property
    def requests(self) -> int:
        """Return the number of requests."""
        return int(sum(count for kind, count in self.items() if kind[0].isupper()))

    def shown(self, share: int = 1) -> dict[str, Any]:
        """Return the figures, divided by `share`."""
        kinds = {kind: round(count / share, 2) for kind, count in self.items() if kind[0].isupper()}
        return {
            "requests": round(self.requests / share, 2),
            "sent": round(self["sent"] / share),
            "received": round(self["received"] / share),
            "seconds": round(self["milliseconds"] / 1000 / share, 3),
            "kinds": kinds,
        }


class Meter:
    """Count the bytes and requests of all connections of this process."""

    def __init__(self) -> None:
        self.cost = Cost()
        send, write, updated = ClientConnection.send, ClientConnection._write, ClientConnection.buffer_updated

        def counted(connection: ClientConnection, request: Any, *rest: Any, **more: Any) -> Any:
            self.cost[type(request).__name__.removesuffix("Request")] += 1
            return send(connection, request, *rest, **more)

        def written(connection: ClientConnection, chunks: Any) -> None:
            self.cost["sent"] += sum(map(len, chunks))
            write(connection, chunks)

        def read(connection: ClientConnection, nbytes: int) -> None:
            self.cost["received"] += nbytes
            updated(connection, nbytes)

        ClientConnection.send, ClientConnection._write, ClientConnection.buffer_updated = counted, written, read  # type: ignore[method-assign, assignment]

    @contextmanager
    def measure(self) -> Iterator[Cost]:
        """Start counting into a new cost."""
        self.cost = cost = Cost()
        began = time.monotonic()
        yield cost
        self.cost = Cost()
        cost["milliseconds"] = int(1000 * (time.monotonic() - began))


class EveryPartition:
    """The rows of a task. One request writes some rows to every partition."""

    def __init__(self, cluster: BlockingCluster, count: int) -> None:
        self.cluster, self.count = cluster, count

    def peek(self) -> bool:
        """Return True: every task has rows."""
        return True

    def __call__(self, owner: Owner) -> op.Rows:
        """Write the rows."""
        batch = partitions.record_batch(owner, [(None, b"row")] * ROWS, int(time.time() * 1000))
        data = [PartitionProduceData(index=number, records=batch) for number in range(self.count)]
        request = ProduceRequest(
            transactional_id=owner.id,
            acks=-1,
            timeout_ms=30_000,
            topic_data=[TopicProduceData(name=TOPIC, partition_data=data)],
        )
        response = self.cluster.call_leader(TOPIC, 0, request, partitions.PRODUCE_NEW)
        raise_for_error(response, "Produce")
        answers = sorted(response.responses[0].partition_responses, key=lambda answer: answer.index)
        spans = (Span(TopicPartition(TOPIC, a.index), a.base_offset, a.base_offset + ROWS - 1) for a in answers)
        return op.Rows(op.RequestOutcome.DONE, ROWS * self.count, tuple(spans))


def run_batch(meter: Meter, options: SinkOptions, batch: int, tasks: int, count: int) -> dict[str, Cost]:
    """Plan, prepare and commit one batch -> the cost of each step."""
    source = Source(STREAM, QUERY, batch)
    with meter.measure() as planning:
        sink, carried = make_plan(options, source._replace(batch=-1))
    messages: list[task.TaskMessage] = []
    with BlockingCluster(**options.client) as cluster, meter.measure() as preparing:
        for slot in range(tasks):
            tasking = task.Tasking(sink, carried, source, Attempt(slot, 0, slot))
            brokers = Brokers(cluster, rows=EveryPartition(cluster, count))
            messages.append(run(steps.run(task.TASK, tasking), brokers).message())
    with meter.measure() as committing, BlockingCluster(**options.client) as cluster:
        state = finish.Committing(sink_of(options), tuple(messages))
        run(steps.run(finish.COMMIT, state), Brokers(cluster))
    return {"plan": planning, "task": preparing, "commit": committing}


def check(bootstrap: str, tasks: int, count: int, batches: int) -> None:
    """Check that every partition has all rows and markers, and no open transaction."""
    wanted = dict.fromkeys((TopicPartition(TOPIC, number) for number in range(count)), partitions.LATEST)
    with BlockingCluster(bootstrap) as cluster:
        stable, ends = (partitions.list_offsets(cluster, wanted, isolation) for isolation in (1, 0))
    assert stable == ends, "a transaction is open"
    assert set(ends.values()) == {(ROWS + 1) * tasks * batches}, "rows or markers are missing"


def wait_for_leaders(bootstrap: str, count: int) -> None:
    """Query the end of each partition until all have answered."""
    with BlockingCluster(bootstrap, missing_topic_ms=60_000) as cluster:
        wanted = dict.fromkeys((TopicPartition(TOPIC, number) for number in range(count)), partitions.LATEST)
        partitions.list_offsets(cluster, wanted)


def measure(server: str, tasks: int, count: int, batches: int, meter: Meter) -> dict[str, Any]:
    """Measure one server and one number of tasks -> the costs of the last batch, or the error."""
    result: dict[str, Any] = {"server": server, "tasks": tasks, "partitions": count}
    with tempfile.TemporaryDirectory() as folder:
        started = SERVERS[server](Path(folder))
        try:
            with Admin(started.bootstrap) as admin:
                admin.create_topics(TOPIC, partitions=count)
            wait_for_leaders(started.bootstrap, count)
            given = {"kafka.bootstrap.servers": started.bootstrap, "topic": TOPIC, "transactionalIdPrefix": PREFIX}
            options = sink_options(given, streaming=True)
            try:
                for batch in range(batches):
                    costs = run_batch(meter, options, batch, tasks, count)
            except (OncelogError, OSError) as error:
                return {**result, "error": f"{type(error).__name__}: {error}"[:300]}
            check(started.bootstrap, tasks, count, batches)
            shares = {"plan": 1, "task": tasks, "commit": 1}
            return {**result, **{name: cost.shown(shares[name]) for name, cost in costs.items()}}
        finally:
            started.stop()


def show(results: list[dict[str, Any]]) -> None:
    """Print the table."""
    table = Table(title="The sink's commit protocol: requests, KB received, KB sent, seconds")
    for column in ("server", "tasks x partitions", "plan", "one task", "commit"):
        table.add_column(column)
    for result in results:
        name = f"{result['tasks']} x {result['partitions']}"
        if "error" in result:
            table.add_row(result["server"], name, result["error"])
            continue
        cells = [
            "{requests:,.0f}, {received:,.1f}, {sent:,.1f}, {seconds}".format(
                **{**cost, "received": cost["received"] / 1000, "sent": cost["sent"] / 1000}
            )
            for cost in (result["plan"], result["task"], result["commit"])
        ]
        table.add_row(result["server"], name, *cells)
    Console(width=160).print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="2,20,200,1000", help="numbers of tasks")
    parser.add_argument("--partitions", type=int, default=200)
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--server", choices=SERVERS, default="oncelog")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    meter = Meter()
    results = []
    for tasks in map(int, given.tasks.split(",")):
        results.append(measure(given.server, tasks, given.partitions, given.batches, meter))
        show(results)
    if given.json is not None:
        given.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
