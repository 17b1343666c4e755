"""A coordinator that is silent or down does not show its transactions: they do not hang."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from oncelog import Admin, Producer, errors
from oncelog.coordinator.partitioning import partition_for
from oncelog.protocol.topics import TRANSACTION_STATE
from support.command_line import Tool
from support.servers import OncelogCluster
from support.transactions import LONG_AGO
from support.wire import until

COORDINATORS = 12
SETTINGS = {
    "transaction.state.log.num.partitions": str(COORDINATORS),
    "transaction.state.log.replication.factor": "1",
    "broker.session.timeout.ms": "3000",
}
OFFLINE = "transaction coordinators are offline, so it is not known which transactions hang"


def coordinator_and_leader(admin: Admin, name: str) -> tuple[int, int]:
    """Return the brokers that decide about the transaction, and that have its partition."""
    admin.fence_producers(name)
    states = admin.describe_topics(TRANSACTION_STATE)[0].partitions
    return states[partition_for(name, COORDINATORS)].leader, admin.describe_topics(name)[0].partitions[0].leader


def refusal(bootstrap: str, name: str) -> str:
    """Search, which must fail, and return why."""
    with (
        Admin(bootstrap, request_timeout_ms=1_000, default_api_timeout_ms=1_000) as admin,
        pytest.raises(errors.KafkaError) as raised,
    ):
        admin.find_hanging_transactions(name)
    return str(raised.value)


def test_transaction_of_a_coordinator_that_is_down_does_not_hang(new_cluster: Callable[..., OncelogCluster]) -> None:
    cluster = new_cluster(settings=SETTINGS, arguments=("--brokers", "3"))
    tool, name, number = Tool(cluster.bootstrap), "t", 0
    with Admin(cluster.bootstrap) as admin:
        controller = admin.describe_cluster().controller_id
        admin.create_topics(name, partitions=1, replication_factor=1)
        victim, leader = coordinator_and_leader(admin, name)
        while victim in (leader, controller):
            number += 1
            name = f"t-{number}"
            admin.create_topics(name, partitions=1, replication_factor=1)
            victim, leader = coordinator_and_leader(admin, name)
    producer = Producer(cluster.bootstrap, transactional_id=name, transaction_timeout_ms=600_000)
    producer.begin_transaction()
    producer.send(name, b"x", partition=0, timestamp=LONG_AGO)
    producer.flush()
    pid = cluster.broker_pid(victim)
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: refusal(cluster.bootstrap, name), lambda said: OFFLINE in said, "the broker is silent, then down")
        for command in (["find-hanging", "--topic", name], ["abort", name, "-p", "0", "--start-offset", "0"]):
            assert OFFLINE in tool.fails(1, "txn", *command)
    finally:
        os.kill(pid, signal.SIGCONT)
    producer.commit_transaction()
    producer.close()
    with Admin(cluster.bootstrap) as admin:
        until(
            lambda: admin.offsets({(name, 0): -1}, committed_only=True)[name, 0],
            lambda stable: stable >= 2,  # the coordinator may write its marker again
            "the record is committed",
        )
        assert admin.find_hanging_transactions(name) == []
