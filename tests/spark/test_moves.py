"""Leaders and coordinators that move while the sink asks about several partitions or transactions at once."""

from __future__ import annotations

import pytest

from oncelog.client.blocking import BlockingCluster
from oncelog.spark.cluster.brokers import Brokers
from oncelog.spark.commit import operations as op
from oncelog.spark.commit.names import TopicPartition
from oncelog.spark.commit.record import Owner, Record
from spark.judges import create
from spark.two_brokers import OTHER, TwoBrokers
from support.servers import Server


def begin(brokers: Brokers, name: str, at: TopicPartition) -> Owner:
    owner: Owner = brokers.answer(op.InitProducerId(name, 60_000))
    brokers.answer(op.Produce(owner, at, Record(plan=1)))
    return owner


def test_moved_partitions_and_coordinators_are_asked_at_their_new_broker(
    server: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of three partitions and ids is at one broker. Then the second and the third move."""
    wanted = [TopicPartition(f"{name}-a", 0), TopicPartition(f"{name}-a", 1), TopicPartition(f"{name}-b", 0)]
    create(server.bootstrap, f"{name}-a", 2)
    create(server.bootstrap, f"{name}-b", 1)
    with BlockingCluster(server.bootstrap, api_timeout_ms=5_000) as cluster:
        brokers = Brokers(cluster)
        owners = [begin(brokers, f"{name}/{slot}/0/0.0", at) for slot, at in enumerate(wanted)]
        ids = tuple(owner.id for owner in owners)
        opened = brokers.answer(op.DescribeProducers(tuple(wanted)))
        assert [(p.at, p.pid) for p in opened] == [(at, o.pid) for at, o in zip(wanted, owners, strict=True)]
        two = TwoBrokers(monkeypatch)
        two.moved = {wanted[1], wanted[2], *ids[1:]}
        assert brokers.answer(op.DescribeProducers(tuple(wanted))) == opened
        assert two.asked["DescribeProducers", 1] == two.asked["DescribeProducers", OTHER] == 1, (
            "one request to each broker"
        )
        described = brokers.answer(op.DescribeTransactions(ids))
        assert {(d.id, d.pid, d.epoch, d.state) for d in described} == {
            (o.id, o.pid, o.epoch, op.TxnState.ONGOING) for o in owners
        }
        assert two.asked["DescribeTransactions", 1] == two.asked["DescribeTransactions", OTHER] == 1
        two.moved = {wanted[0], ids[0]}
        assert brokers.answer(op.DescribeProducers(tuple(wanted))) == opened
        assert len(brokers.answer(op.DescribeTransactions(ids))) == len(ids)
        monkeypatch.undo()
        for owner in owners:
            brokers.answer(op.EndTxn(owner, commit=False))


def test_deleted_topic_has_no_open_transactions(server: Server, name: str) -> None:
    create(server.bootstrap, name, 1)
    at, gone = TopicPartition(name, 0), TopicPartition(f"{name}-gone", 0)
    with BlockingCluster(server.bootstrap, missing_topic_ms=100) as cluster:
        brokers = Brokers(cluster)
        owner = begin(brokers, f"{name}/0/0/0.0", at)
        opened = brokers.answer(op.DescribeProducers((gone, at)))
        assert [(p.at, p.pid) for p in opened] == [(at, owner.pid)]
        brokers.answer(op.EndTxn(owner, commit=False))
