"""Consumer and Spark source read from the replica in their rack, and from the leader if that replica fails (KIP-392).

Apache Kafka only: oncelog's partitions have one replica.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from oncelog import Admin, Consumer, Producer
from oncelog.net.connection import ClientConnection
from oncelog.spark.reading.stream import StreamSource
from support.apache_kafka import ApacheKafka
from support.processes import wait_until

RECORDS = 500


class Second(ApacheKafka):
    """A broker that joins the cluster of another node. It has its own folder, and no controller."""

    def listeners(self, port: int, controller: int) -> dict[str, str]:
        return {"listeners": f"PLAINTEXT://127.0.0.1:{port}"}

    def format(self, cluster_id: str, *, with_tool: bool = False) -> None:
        meta = (self.directory.parent / "first" / "kafka-logs" / "meta.properties").read_text()
        joined = next(line.partition("=")[2] for line in meta.splitlines() if line.startswith("cluster.id="))
        super().format(joined, with_tool=True)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ApacheKafka, ApacheKafka]]:
    """Return the nodes 1 and 2, in the racks r1 and r2."""
    tmp_path = tmp_path_factory.mktemp("racks")
    selector = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
    first = ApacheKafka(tmp_path / "first", settings={**selector, "broker.rack": "r1"})
    own = {
        "process.roles": "broker",
        "node.id": "2",
        "broker.rack": "r2",
        "controller.quorum.voters": first.setting("controller.quorum.voters"),
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    }
    try:
        second = Second(tmp_path / "second", settings={**selector, **own})
        try:
            yield first, second
        finally:
            second.process.kill()
            second.stop()
    finally:
        first.process.kill()
        first.stop()


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Return the number of Fetch requests by the port of the broker."""
    counted: Counter[int] = Counter()
    send = ClientConnection.send

    def counting(made: ClientConnection, request: Any, *rest: Any, **more: Any) -> Any:
        if type(request).__name__ in ("FetchRequest", "ByVersion"):
            counted[int(made.address.rpartition(":")[2])] += 1
        return send(made, request, *rest, **more)

    monkeypatch.setattr(ClientConnection, "send", counting)
    return counted


def port(node: ApacheKafka) -> int:
    return int(node.bootstrap.rpartition(":")[2])


def fill(nodes: tuple[ApacheKafka, ApacheKafka], topic: str) -> None:
    """Create a topic that node 1 leads and node 2 follows, with records that both have."""
    first, second = nodes
    second.wait_ready()
    with Admin(first.bootstrap) as admin:
        wait_until(lambda: len(admin.describe_cluster().brokers) == 2, "both brokers are in the cluster")
        admin.create_topics(topic, assignments=[[1, 2]])
        with Producer(first.bootstrap, batch_size=500) as producer:
            for number in range(RECORDS):
                producer.send(topic, b"%0100d" % number)
        wait_until(lambda: len(admin.describe_topics(topic)[0].partitions[0].isr) == 2, "both are in sync")


def test_consumer_reads_from_its_rack(nodes: tuple[ApacheKafka, ApacheKafka], name: str, fetches: Counter[int]) -> None:
    fill(nodes, name)
    found: list[int] = []
    options: dict[str, Any] = {"client_rack": "r2", "max_partition_fetch_bytes": 2_000}
    with Consumer(nodes[0].bootstrap, **options) as consumer:
        consumer.assign({(name, 0): 0})
        while len(found) < RECORDS // 2:
            found += [record.offset for record in consumer.poll(5, 50)]
        assert fetches[port(nodes[1])] > 3 >= fetches[port(nodes[0])]
        nodes[1].kill()
        while len(found) < RECORDS:
            found += [record.offset for record in consumer.poll(5, 50)]
    assert found == list(range(RECORDS))


def source(nodes: tuple[ApacheKafka, ApacheKafka], topic: str, **options: str) -> StreamSource:
    given = {"kafka.bootstrap.servers": nodes[0].bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    return StreamSource({**given, "kafka.max.partition.fetch.bytes": "2000", **options})


@pytest.mark.parametrize("dies", [False, True])
def test_spark_source_reads_from_its_rack(
    nodes: tuple[ApacheKafka, ApacheKafka], name: str, fetches: Counter[int], dies: bool
) -> None:
    fill(nodes, name)
    made = source(nodes, name, **{"kafka.client.rack": "r2"})
    start = made.initialOffset()
    (part,) = made.partitions(start, made.latestOffset(start, ReadAllAvailable()))
    found: list[int] = []
    for batch in made.read(part):
        found += batch.column("offset").to_pylist()
        if dies and found[0] == 0 and nodes[1].process.popen.poll() is None:
            nodes[1].kill()
    made.stop()
    assert found == list(range(RECORDS))
    if not dies:
        assert fetches[port(nodes[1])] > 3 >= fetches[port(nodes[0])]


def test_spark_source_without_a_rack_reads_from_the_leader(
    nodes: tuple[ApacheKafka, ApacheKafka], name: str, fetches: Counter[int]
) -> None:
    fill(nodes, name)
    made = source(nodes, name)
    start = made.initialOffset()
    (part,) = made.partitions(start, made.latestOffset(start, ReadAllAvailable()))
    assert sum(batch.num_rows for batch in made.read(part)) == RECORDS
    made.stop()
    assert fetches[port(nodes[1])] == 0
