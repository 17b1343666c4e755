"""Batches with a divided decision record: the commit, and the next plan after the driver died."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oncelog import Admin
from oncelog.client.blocking import BlockingCluster
from oncelog.spark.cluster.brokers import Brokers
from oncelog.spark.commit import operations as op
from oncelog.spark.commit.errors import NotDecidedError
from oncelog.spark.commit.names import TopicPartition
from oncelog.spark.commit.record import Part
from oncelog.spark.writing import driver, sink
from oncelog.spark.writing.options import SinkOptions
from spark.judges import create, open_producers
from spark.micro_batches import Query
from spark.test_sink_crashes import check
from spark.test_sink_limits import sink_command
from support.servers import Server


class DiedError(Exception):
    """The driver's process ends here."""


@pytest.fixture
def query(server: Server, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Query:
    """Return a query whose decision records are split at some hundred bytes."""

    def dividing(options: SinkOptions) -> Any:
        return replace(driver.sink_of(options), part_bytes=300)

    monkeypatch.setattr(sink, "sink_of", dividing)
    create(server.bootstrap, name)
    return Query(server.bootstrap, name, f"sink-{name}", tmp_path / "checkpoint", 12)


def test_next_plan_settles_a_record_in_parts(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    query.run(1)
    answer, written = Brokers.answer, []

    def dying(self: Brokers, operation: op.Operation) -> Any:
        if isinstance(operation, op.Produce):
            written.append(type(operation.record))
        if isinstance(operation, op.EndAll):
            raise DiedError
        return answer(self, operation)

    with monkeypatch.context() as patched:
        patched.setattr(Brokers, "answer", dying)
        with pytest.raises(DiedError):
            query.run(2)
    assert written.count(Part) > 1
    assert open_producers(query.bootstrap, query.topic)
    listed = json.loads(sink_command(query, "list").output)
    assert listed["open"]
    assert all(entry["decided"] for entry in listed["open"])
    query.run(3)
    check(query, 3)


def test_rejected_decision_does_not_block_readers(query: Query) -> None:
    """The sink aborts the transactions at once, not at their timeout. A later attempt writes the batch."""
    query.run(1)
    decisions = f"{query.prefix}-commits"
    with Admin(query.bootstrap) as admin:
        before = admin.describe_configs("topic", decisions)["max.message.bytes"]
        plan = query.plan()
        messages = [query.task(plan, 1, slot, rows) for slot, rows in enumerate(query.values(1, 2))]
        assert open_producers(query.bootstrap, query.topic)
        admin.alter_configs("topic", decisions, {"max.message.bytes": "200"})
        with pytest.raises(NotDecidedError, match=r"max\.message\.bytes"):
            query.commit(messages, 1)
        owners = tuple(m.message.transaction.owner for m in messages)
        with BlockingCluster(query.bootstrap) as cluster:
            Brokers(cluster).answer(op.AwaitEnded(owners))
            ends = driver.target_partitions(cluster, query.topic)
            assert Brokers(cluster).answer(op.DescribeProducers(ends)) == ()
            assert ends[0] == TopicPartition(query.topic, 0)
        admin.alter_configs("topic", decisions, {"max.message.bytes": str(before)})
    query.run(2)
    check(query, 2)
