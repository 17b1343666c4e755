"""The lag of a group whose member is Kafka's console consumer reaches zero on a transactional topic."""

from __future__ import annotations

from pathlib import Path

from oncelog import Admin, Producer
from support.apache_kafka import held_ports, port_of, run_tool
from support.scrapes import wait_for_lag
from support.servers import OncelogCluster

RECORDS = 4


def test_java_client(tmp_path: Path, name: str) -> None:
    port = port_of(held_ports(1)[0])
    cluster = OncelogCluster(tmp_path, settings={"metrics.port": str(port)})
    try:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topics(name)
        with Producer(cluster.bootstrap, transactional_id=name) as producer, producer.transaction() as transaction:
            for number in range(RECORDS):
                transaction.send(name, str(number))
        run_tool(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--bootstrap-server", cluster.bootstrap, "--topic", name, "--group", name, "--from-beginning"),
            *("--isolation-level", "read_committed", "--max-messages", str(RECORDS)),
        )
        wait_for_lag(port, name, name, 0)
    finally:
        cluster.stop()
