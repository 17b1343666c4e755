"""`oncelog up --brokers N` from a user's view: one line for all brokers, each restarted alone, one clean stop."""

from __future__ import annotations

import json
import os
import re
import signal
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from oncelog.cluster.image_nodes import read_image
from oncelog.cluster.store_sqlite import SqliteStore
from support.command_line import Tool
from support.processes import children, gone, wait_until
from support.servers import OncelogCluster

NewCluster = Callable[..., OncelogCluster]


@pytest.fixture
def three(new_cluster: NewCluster) -> OncelogCluster:
    return new_cluster(arguments=("--brokers", "3", "--topic", "single:6", "--topic", "triple:3:3"))


def metadata(address: str) -> Any:
    return AdminClient({"bootstrap.servers": address}).list_topics(timeout=20)


def test_each_broker_tells_of_all_brokers_and_topics(three: OncelogCluster) -> None:
    addresses = three.bootstrap.split(",")
    assert len(set(addresses)) == 3
    for address in addresses:
        found = metadata(address)
        assert {f"{each.host}:{each.port}" for each in found.brokers.values()} == set(addresses)
        assert sorted(found.brokers) == [1, 2, 3]
        assert found.controller_id in found.brokers
        leaders = Counter(partition.leader for partition in found.topics["single"].partitions.values())
        assert leaders == {1: 2, 2: 2, 3: 2}
        for partition in found.topics["triple"].partitions.values():
            assert sorted(partition.replicas) == sorted(partition.isrs) == [1, 2, 3]


def test_records_go_to_the_leader_of_each_partition(three: OncelogCluster) -> None:
    producer = Producer({"bootstrap.servers": three.bootstrap, "acks": "all"})
    for number in range(600):
        producer.produce("single", str(number).encode(), partition=number % 6)
    assert producer.flush(30) == 0
    consumer = Consumer({"bootstrap.servers": three.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["single"])
    seen: set[int] = set()
    wait_until(
        lambda: seen.update(int(each.value()) for each in consumer.consume(100, 1)) or len(seen) == 600,
        "all records are read",
    )
    consumer.close()


def test_a_killed_broker_returns_on_its_port_and_the_others_keep_running(three: OncelogCluster) -> None:
    pids = {broker: three.broker_pid(broker) for broker in (1, 2, 3)}
    three.kill(2)
    three.wait_ready()
    assert {broker: three.broker_pid(broker) == pid for broker, pid in pids.items()} == {1: True, 2: False, 3: True}
    wait_until(lambda: sorted(metadata(three.bootstrap).brokers) == [1, 2, 3], "the broker is registered again")


def test_each_log_line_names_its_broker(three: OncelogCluster) -> None:
    lines = [line for line in three.process.stderr_path.read_text().splitlines() if "oncelog.broker: " in line]
    assert len(lines) >= 3
    for line in lines:
        assert re.match(r"\S+ \S+ \[Broker id=[123]\] INFO oncelog\.broker: ", line), line


def test_partitions_of_a_dead_broker_are_described(new_cluster: NewCluster) -> None:
    cluster = new_cluster(
        arguments=("--brokers", "3", "--topic", "single:3", "--topic", "triple:2:3"),
        settings={"min.insync.replicas": "3"},
    )
    tool = Tool(cluster.bootstrap)
    only = next(
        row["partition"] for row in tool.json("topic", "describe", "single")[0]["partitions"] if row["leader"] == 2
    )
    os.kill(cluster.process.pid, signal.SIGSTOP)  # it must not restart the broker
    os.kill(cluster.broker_pid(2), signal.SIGKILL)
    try:
        found: dict[str, Any] = {}

        def is_noticed() -> bool:
            """Brokers learn of the death and of the smaller ISRs at different times."""
            found.update(tool.json("cluster", "describe"))
            return len(found["brokers"]) == 2 and found["partitions"]["under_replicated"] == 3

        wait_until(is_noticed, "the death and the smaller ISRs are shown")
        assert [broker["id"] for broker in found["brokers"]] == [1, 3]
        assert found["missing_brokers"] == [{"id": 2, "replicas": 3}]
        assert found["partitions"] == {
            "total": 5,
            "offline": 1,
            "under_min_isr": 5,
            "under_replicated": 3,
            "with_problems": 5,
        }
        worst = found["problems"][0]
        assert (worst["topic"], worst["partition"], worst["leader"], worst["replicas"]) == ("single", only, -1, [2])
        assert [row["partition"] for row in tool.json("topic", "describe", "--unavailable")] == [only]
        reduced = tool.json("topic", "describe", "--under-replicated", "triple")
        assert [sorted(row["isr"]) for row in reduced] == [[1, 3], [1, 3]]
        described = tool.json("topic", "describe", "triple")[0]["partitions"]
        assert [row["elr"] for row in described] == [[2], [2]]
        headings, *lines = (re.split(" {2,}", line) for line in tool("topic", "describe", "triple").splitlines()[1:])
        assert [line[headings.index("ELR")] for line in lines] == ["2", "2"]
        assert "broker 2 is down or hangs; it has 3 replicas" in tool("cluster", "describe")
        assert {row["broker"] for row in tool.json("cluster", "log-dirs")} == {1, 3}
        said = cluster.process.stderr_path.read_text()
        assert re.search(r"running brokers: 1, 3(\n| \(gone: 2\))", said), said
    finally:
        os.kill(cluster.process.pid, signal.SIGCONT)
    wait_until(
        lambda: not tool.json("topic", "describe", "--under-replicated", "--unavailable"), "all replicas are in sync"
    )


COORDINATOR_STARTS = (
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
)
"""librdkafka's synchronous commit raises these errors, although they are temporary."""


def commits(consumer: Consumer) -> bool:
    """Return whether a commit succeeds. The first one creates `__consumer_offsets`."""
    try:
        consumer.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
    except KafkaException as error:
        if error.args[0].code() not in COORDINATOR_STARTS:
            raise
        return False
    return True


def test_lists_name_a_broker_that_hangs_and_show_the_answers_of_the_others(new_cluster: NewCluster) -> None:
    """Without the end of its session, no other broker takes its groups and transactions."""
    settings = {"broker.session.timeout.ms": "600000", "offsets.topic.replication.factor": "1"}
    cluster = new_cluster(settings=settings, arguments=("--brokers", "3", "--topic", "t"))
    tool = Tool(cluster.bootstrap)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    producer.produce("t", b"x")
    assert producer.flush(30) == 0
    for number in range(6):
        group = {"bootstrap.servers": cluster.bootstrap, "group.id": f"g-{number}", "auto.offset.reset": "earliest"}
        consumer = Consumer(group)
        consumer.assign([TopicPartition("t", 0)])
        wait_until(partial(commits, consumer), "the group has a coordinator")
        consumer.close()
    coordinators = {row["group"]: row["coordinator"] for row in tool.json("group", "list")}
    assert len(coordinators) == 6
    hanging = coordinators["g-0"]
    os.kill(cluster.broker_pid(hanging), signal.SIGSTOP)
    try:
        done = tool.run("group", "list", "--format", "json")
        assert done.returncode == 1
        assert {row["group"] for row in json.loads(done.stdout)} == {
            group for group, coordinator in coordinators.items() if coordinator != hanging
        }
        assert f"broker {hanging} did not answer: " in done.stderr
        assert "The list may lack its groups" in done.stderr
        assert f"broker {hanging} did not answer: " in tool.fails(1, "txn", "list")
    finally:
        os.kill(cluster.broker_pid(hanging), signal.SIGCONT)
    wait_until(lambda: tool.run("group", "list").returncode == 0, "all brokers answer again")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_signal_stops_all_brokers_and_leaves_nothing(three: OncelogCluster, number: signal.Signals) -> None:
    pids = children(three.process.popen.pid)
    assert len(pids) == 3
    three.process.popen.send_signal(number)
    assert three.process.popen.wait(60) == 0
    assert all(gone(pid) for pid in pids)
    assert "cannot fetch from" not in three.process.stderr_path.read_text()
    assert not list(three.data.glob("broker-*/broker.pid"))
    store = SqliteStore(str(three.data / "metadata.sqlite"))
    topic = read_image(store).topics_by_name["triple"]
    store.close()
    assert all(len(partition.isr) > 1 for partition in topic.partitions), "the loss of one disk must lose no records"
