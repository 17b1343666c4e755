"""One broker of three is silent: the pages show what the other two know, and what is missing.

The broker is stopped by a signal, so its connections stay open. While the others still count it as a member, every
request to it waits.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from oncelog import Admin, Producer
from support.consoles import ConsoleProcess
from support.servers import ReplicatedCluster

PARTITIONS = 6
SESSION_S = 60
"""So long is a silent broker a member of the cluster."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicatedCluster]:
    made = ReplicatedCluster(
        tmp_path_factory.mktemp("silent"), settings={"broker.session.timeout.ms": str(SESSION_S * 1000)}
    )
    yield made
    made.stop()


@contextmanager
def silent(cluster: ReplicatedCluster, node: int) -> Iterator[None]:
    pid = cluster.broker_pid(node)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_pages_show_what_the_other_brokers_know(
    cluster: ReplicatedCluster, start_console: Callable[..., ConsoleProcess], name: str
) -> None:
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics(name, partitions=PARTITIONS, replication_factor=1)
        leaders = {each.partition: each.leader for each in admin.describe_topics(name)[0].partitions}
        groups = [f"{name}-{number}" for number in range(12)]
        for group in groups:
            admin.set_offsets(group, {(name, number): 0 for number in range(PARTITIONS)})
        coordinators = {each.group_id: each.coordinator for each in admin.list_groups() if each.group_id in groups}
        controller = admin.describe_cluster().controller_id
    with Producer(cluster.bootstrap) as producer:
        for number in range(PARTITIONS):
            producer.send(name, b"v", partition=number).result()
    victim = next(node for node in sorted({*leaders.values()}) if node != controller)
    unknown = sorted(number for number, leader in leaders.items() if leader == victim)
    known = sorted(set(leaders) - set(unknown))
    living = next(group for group, node in coordinators.items() if node != victim)
    console = start_console(cluster.bootstrap)
    assert console.json(f"/topics/{name}")["unread"] == []
    with silent(cluster, victim):
        pages: dict[str, dict[str, Any]] = {
            page: console.json(page)
            for page in (
                *("/", "/topics", f"/topics/{name}", f"/topics/{name}/{known[0]}", "/transactions", "/groups"),
                *(f"/producers?topic={name}", f"/group?id={living}", "/sinks"),
            )
        }
        assert all(page["error"] is None for page in pages.values()), pages
        for address, page in pages.items():
            assert any(f"broker {victim}" in text for text in page["unread"]), (address, page["unread"])
        rows = {row["partition"]: row for row in pages[f"/topics/{name}"]["partitions"]["rows"]}
        assert [rows[number]["leo"] for number in known] == [1] * len(known)
        assert [rows[number]["leo"] for number in unknown] == [None] * len(unknown)
        assert {row["partition"] for row in pages[f"/producers?topic={name}"]["producers"]["rows"]} == set(known)
        offsets = {row["partition"]: row["lag_hw"] for row in pages[f"/group?id={living}"]["offsets"]["rows"]}
        assert offsets == {**dict.fromkeys(known, 1), **dict.fromkeys(unknown, None)}
        row = next(row for row in pages["/groups"]["groups"]["rows"] if row["group"] == living)
        assert (row["lag_hw"], row["uncounted"]) == (len(known), len(unknown))
        assert f"broker {victim}" in pages["/transactions"]["not_searched"]
        assert pages["/transactions"]["transactions"]["total"] is None, "the silent broker may have some"
        assert "No transaction is open" not in console.get("/transactions").text
        shown = console.get(f"/topics/{name}")
        assert f"broker {victim}" in shown.text
