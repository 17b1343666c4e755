"""One decision topic, two prefixes: the second is rejected before it has fenced or decided anything."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from oncelog.cli.sink import sink as command
from oncelog.client.blocking import BlockingCluster
from oncelog.spark.cluster.brokers import Brokers, run
from oncelog.spark.commit import operations as op
from oncelog.spark.commit.errors import MisuseError
from oncelog.spark.commit.steps import write_record
from oncelog.spark.writing import driver
from oncelog.spark.writing import sink as product
from oncelog.spark.writing.options import sink_options
from oncelog.spark.writing.sink import BatchSink
from spark.judges import create, open_producers, values
from spark.micro_batches import SCHEMA, FakeTaskContext
from support.servers import Server


class Write:
    """A batch write without a name, which may follow any other such write."""

    def __init__(self, bootstrap: str, topic: str, prefix: str) -> None:
        product.TaskContext = FakeTaskContext  # type: ignore[misc, assignment]
        self.prefix, self.decisions = prefix, f"{topic}-decisions"
        self.options = {
            "kafka.bootstrap.servers": bootstrap,
            "topic": topic,
            "transactionalIdPrefix": prefix,
            "decisionTopic": self.decisions,
        }

    def plan(self) -> bytes:
        return pickle.dumps(BatchSink(self.options, SCHEMA, overwrite=False))

    def tasks(self, plan: bytes) -> list[Any]:
        """Run two tasks with one row each."""
        messages = []
        for slot in range(2):
            FakeTaskContext.current = context = FakeTaskContext(slot, 0, slot, 0, "")
            context.properties = {}  # a batch write outside foreachBatch
            value = [f"{self.prefix}-{slot}"]
            rows = pa.RecordBatch.from_pydict({"key": value, "value": value})
            messages.append(pickle.loads(pickle.dumps(pickle.loads(plan).write(iter([rows])))))
        return messages


@pytest.fixture
def pair(server: Server, name: str) -> tuple[Write, Write]:
    create(server.bootstrap, name)
    return Write(server.bootstrap, name, f"a-{name}"), Write(server.bootstrap, name, f"b-{name}")


def refusal(first: Write, second: Write) -> str:
    holds = f"the topic has the decisions of .*={first.prefix}, but this sink has {second.prefix}"
    return f"option decisionTopic={first.decisions}: {holds}"


def test_second_prefix_is_rejected_and_the_first_continues(pair: tuple[Write, Write]) -> None:
    first, second = pair
    bootstrap, topic = first.options["kafka.bootstrap.servers"], first.options["topic"]
    fenced = set()
    for _ in range(2):
        plan = first.plan()
        messages = first.tasks(plan)
        for _ in range(2):
            with pytest.raises(MisuseError, match=refusal(first, second)):
                second.plan()
            with BlockingCluster(bootstrap) as cluster:
                fenced.add(Brokers(cluster).answer(op.DescribeTransactions((second.prefix,))))
        pickle.loads(plan).commit(messages)
    assert len(fenced) == 1, "the second query's driver was fenced again"
    assert values(bootstrap, topic) == {f"{first.prefix}-{slot}": 2 for slot in range(2)}
    assert not open_producers(bootstrap, topic, first.decisions)


def test_tasks_detect_two_prefixes_that_planned_concurrently(pair: tuple[Write, Write]) -> None:
    """Their plans read an empty topic. The later record is valid."""
    first, second = pair
    plan = first.plan()
    options = sink_options(second.options, streaming=False)
    with BlockingCluster(second.options["kafka.bootstrap.servers"]) as cluster:
        brokers, sink = Brokers(cluster), driver.sink_of(options)
        record = pickle.loads(plan).carried.record
        theirs = type(record)(plan=1, planner=record.planner._replace(query="other"), prefix=second.prefix)
        run(write_record(sink, brokers.answer(op.InitProducerId(second.prefix, 10_000)), theirs), brokers)
    with pytest.raises(MisuseError, match=refusal(second, first)):
        first.tasks(plan)
    assert not open_producers(first.options["kafka.bootstrap.servers"], first.options["topic"])


@pytest.mark.parametrize("what", ["list", "settle", "abort", "abort --yes", "abort --yes --accept-loss"])
def test_commands_reject_the_topic_of_another_prefix(pair: tuple[Write, Write], what: str) -> None:
    first, second = pair
    plan = first.plan()
    messages = first.tasks(plan)
    server = ("-b", second.options["kafka.bootstrap.servers"])
    result = CliRunner().invoke(command, [*what.split(), second.prefix, *server, "--decision-topic", second.decisions])
    assert isinstance(result.exception, MisuseError)
    assert f"has the decisions of transactionalIdPrefix={first.prefix}" in str(result.exception)
    pickle.loads(plan).commit(messages)
    assert len(values(server[1], first.options["topic"])) == 2
