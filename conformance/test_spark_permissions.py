"""The permissions that the Spark sink needs on an Apache Kafka with an authorizer, and its errors without them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from oncelog.client.blocking import BlockingCluster
from oncelog.spark.cluster.brokers import Brokers, run
from oncelog.spark.commit import operations as op
from oncelog.spark.commit.errors import NotPermittedError, NotVerifiedError
from oncelog.spark.commit.names import TopicPartition
from oncelog.spark.commit.record import STREAM, Owner, Record, Source, TaskTransaction
from oncelog.spark.commit.steps import write_record
from oncelog.spark.writing import driver
from oncelog.spark.writing.options import sink_options
from spark.micro_batches import Query
from spark.test_sink_limits import hang
from support.guarded_kafka import GuardedKafka


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedKafka]:
    settings = {"transaction.partition.verification.enable": "false"}
    made = GuardedKafka(tmp_path_factory.mktemp("guarded"), settings=settings)
    yield made
    made.stop()


def query(kafka: GuardedKafka, name: str, folder: Path) -> Query:
    return Query(kafka.bootstrap, name, f"sink-{name}", folder / "checkpoint", 6)


def test_documented_permissions_are_enough(guarded: GuardedKafka, name: str, tmp_path: Path) -> None:
    guarded.permit_sink(name)
    query(guarded, name, tmp_path).run(3)


@pytest.mark.parametrize(
    ("without", "said"),
    [
        ("topic READ", "option topic: the sink needs the permission Read"),
        ("topic WRITE", "the sink needs the permission Write on the topics of option topic or column topic"),
        ("decisions READ", "option decisionTopic: the sink needs the permission Read"),
        ("decisions WRITE", "option decisionTopic: the sink needs the permission Write"),
        ("ids", "option transactionalIdPrefix=sink-"),
    ],
)
def test_error_names_the_missing_permission(
    guarded: GuardedKafka, name: str, tmp_path: Path, without: str, said: str
) -> None:
    guarded.permit_sink(name, without)
    with pytest.raises(NotPermittedError, match=said):
        query(guarded, name, tmp_path).run(1)


def test_missing_permission_to_create_the_decision_topic_is_reported(
    guarded: GuardedKafka, name: str, tmp_path: Path
) -> None:
    guarded.permit_sink(name, decisions=False)
    with pytest.raises(NotPermittedError, match="option decisionTopic: the sink lacks the permission Create on"):
        query(guarded, name, tmp_path).run(1)
    guarded.grant(ResourceType.TOPIC, f"sink-{name}-commits", (AclOperation.CREATE,))
    query(guarded, name, tmp_path).run(1)


def test_missing_permission_to_write_a_marker_names_cluster_action(
    guarded: GuardedKafka, name: str, tmp_path: Path
) -> None:
    guarded.permit_sink(name)
    ran = query(guarded, name, tmp_path)
    ran.run(1)
    at = TopicPartition(name, 0)
    options = sink_options(ran.options, streaming=True)
    with BlockingCluster(guarded.bootstrap) as cluster:
        brokers, sink = Brokers(cluster), driver.sink_of(options)
        owner: Owner = brokers.answer(op.InitProducerId(f"{ran.prefix}/0/2/0.0", 60_000))
        transaction = TaskTransaction(owner, (hang(cluster, owner, at, "1-0"),))
        record = Record(Source(STREAM, ran.query, 1), 2, 1, 1, False, (transaction,), (name,))
        run(write_record(sink, brokers.answer(op.InitProducerId(ran.prefix, 10_000)), record), brokers)
    began = time.monotonic()
    with pytest.raises(NotVerifiedError, match="ClusterAction"):
        ran.run(2)
    print(f"reported after {time.monotonic() - began:.1f} s")
    guarded.grant(ResourceType.BROKER, "kafka-cluster", (AclOperation.CLUSTER_ACTION,))
    driver.settle(options)
    ran.log(1)
    ran.run(3)
