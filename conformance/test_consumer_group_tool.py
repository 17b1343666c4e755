"""Kafka's tool for groups, on a classic group and on one of the consumer protocol (KIP-848), against either server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import confluent_kafka
import pytest

from oncelog import Admin, Producer
from support.apache_kafka import run_tool
from support.servers import Server

PROTOCOLS = ("classic", "consumer")
PARTITIONS = 2
EACH = 3

Row = dict[str, str]


class Tool:
    """The tool, and the two groups: Tool.classic and Tool.consumer."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.bootstrap, self.topic = bootstrap, name
        self.classic, self.consumer = self.both = [f"{name}-{protocol}" for protocol in PROTOCOLS]

    def run(self, *arguments: str) -> str:
        command = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
        return run_tool(command, "--bootstrap-server", self.bootstrap, *arguments)

    def list(self, *arguments: str) -> list[Row]:
        """Return the rows of our groups."""
        return [row for row in rows(self.run("--list", *arguments)) if row["GROUP"] in self.both]

    def describe(self, *arguments: str) -> dict[str, list[Row]]:
        """Return the rows of each group."""
        groups = [word for group in self.both for word in ("--group", group)]
        found = rows(self.run("--describe", *groups, *arguments))
        return {group: [row for row in found if row["GROUP"] == group] for group in self.both}


def rows(text: str) -> list[Row]:
    """Return the rows of all tables: a line of titles, then lines of cells, until an empty line."""
    found: list[Row] = []
    titles: list[str] = []
    for line in text.splitlines():
        cells = line.replace("COORDINATOR (ID)", "COORDINATOR").replace("  (", "(").split()
        if not cells or cells[0] == "GROUP":
            titles = cells
        elif titles:
            found.append(dict(zip(titles, cells, strict=False)))
    return found


@contextlib.contextmanager
def members(tool: Tool) -> Iterator[None]:
    """Run one member of each group, which has read and committed everything."""
    with contextlib.ExitStack() as stack:
        for protocol, group in zip(PROTOCOLS, tool.both, strict=True):
            options = {"group.protocol": protocol, "client.id": f"id-{protocol}", "auto.offset.reset": "earliest"}
            member = confluent_kafka.Consumer(
                {"bootstrap.servers": tool.bootstrap, "group.id": group, "enable.auto.commit": False, **options}
            )
            stack.callback(member.close)
            member.subscribe([tool.topic])
            count = 0
            while count < PARTITIONS * EACH:
                message = member.poll(30)
                assert message is not None
                assert message.error() is None, message.error()
                count += 1
            member.commit(asynchronous=False)
        yield


@pytest.fixture
def tool(server: Server, name: str) -> Tool:
    with Admin(server.bootstrap) as admin, Producer(server.bootstrap) as producer:
        admin.create_topics(name, PARTITIONS)
        for number in range(PARTITIONS * EACH):
            producer.send(name, b"%d" % number, partition=number % PARTITIONS)
    return Tool(server.bootstrap, name)


def test_groups_are_listed(tool: Tool) -> None:
    with members(tool):
        both = [(tool.classic, "Classic"), (tool.consumer, "Consumer")]
        assert sorted((row["GROUP"], row["TYPE"]) for row in tool.list("--type")) == both
        assert tool.list("--type", "consumer") == [{"GROUP": tool.consumer, "TYPE": "Consumer"}]
        stable = tool.list("--type", "classic", "--state", "stable")
        assert stable == [{"GROUP": tool.classic, "TYPE": "Classic", "STATE": "Stable"}]
        assert tool.list("--state", "empty") == []
    assert sorted(row["GROUP"] for row in tool.list("--state", "empty")) == tool.both


def test_groups_with_members_are_described_and_kept(tool: Tool) -> None:
    with members(tool):
        described = tool.describe("--members", "--verbose")
        (old,), (new,) = described[tool.classic], described[tool.consumer]
        both = f"{tool.topic}:0,1"
        assert (old["CLIENT-ID"], old["#PARTITIONS"], old["CURRENT-ASSIGNMENT"]) == ("id-classic", "2", both)
        assert (old["CURRENT-EPOCH"], old["TARGET-EPOCH"], old["TARGET-ASSIGNMENT"]) == ("-", "-", "-")
        assert (new["CLIENT-ID"], new["#PARTITIONS"], new["CURRENT-ASSIGNMENT"]) == ("id-consumer", "2", both)
        assert (new["TARGET-EPOCH"], new["TARGET-ASSIGNMENT"]) == (new["CURRENT-EPOCH"], both)
        assert old["HOST"] == new["HOST"] == "/127.0.0.1"

        states = tool.describe("--state", "--verbose")
        (old,), (new,) = states[tool.classic], states[tool.consumer]
        assert (old["ASSIGNMENT-STRATEGY"], old["STATE"], old["#MEMBERS"]) == ("range", "Stable", "1")
        assert (old["GROUP-EPOCH"], old["TARGET-ASSIGNMENT-EPOCH"]) == ("-", "-")
        assert (new["ASSIGNMENT-STRATEGY"], new["STATE"], new["#MEMBERS"]) == ("uniform", "Stable", "1")
        assert new["TARGET-ASSIGNMENT-EPOCH"] == new["GROUP-EPOCH"]

        offsets = tool.describe("--offsets", "--verbose")
        for group, protocol in zip(tool.both, PROTOCOLS, strict=True):
            assert [row["PARTITION"] for row in offsets[group]] == ["0", "1"]
            for row in offsets[group]:
                assert (row["CURRENT-OFFSET"], row["LOG-END-OFFSET"], row["LAG"]) == ("3", "3", "0")
                assert (row["LEADER-EPOCH"], row["CLIENT-ID"]) == ("0", f"id-{protocol}")

        for group in tool.both:
            scope = ("--group", group, "--topic", tool.topic)
            refused = tool.run("--reset-offsets", *scope, "--to-earliest", "--execute")
            assert f"if the group '{group}' is inactive, but the current state is Stable" in refused
            kept = tool.run("--delete-offsets", "--group", group, "--topic", f"{tool.topic}:1")
            assert "GroupSubscribedToTopicException" in kept
        kept = tool.run("--delete", "--group", tool.classic, "--group", tool.consumer)
        assert kept.count("GroupNotEmptyException") == 2


def test_groups_without_members_are_changed_and_deleted(tool: Tool) -> None:
    with members(tool):
        pass
    assert tool.describe("--members") == {tool.classic: [], tool.consumer: []}
    states = tool.describe("--state")
    (old,), (new,) = states[tool.classic], states[tool.consumer]
    assert [(row["STATE"], row["#MEMBERS"]) for row in (old, new)] == [("Empty", "0")] * 2
    for group in tool.both:
        scope = ("--group", group, "--topic", tool.topic)
        moved = rows(tool.run("--reset-offsets", *scope, "--shift-by", "-1", "--execute"))
        assert sorted((row["PARTITION"], row["NEW-OFFSET"]) for row in moved) == [("0", "2"), ("1", "2")]
        deleted = tool.run("--delete-offsets", "--group", group, "--topic", f"{tool.topic}:1")
        assert f"Request succeeded for deleting offsets from group {group}" in deleted
    for described in tool.describe("--offsets").values():
        assert [(row["PARTITION"], row["CURRENT-OFFSET"], row["LAG"]) for row in described] == [("0", "2", "1")]
    deleted = tool.run("--delete", "--group", tool.classic, "--group", tool.consumer)
    assert "was successful" in deleted
    assert all(group in deleted for group in tool.both)
    assert tool.list() == []
    gone = tool.run("--delete", "--group", tool.consumer)
    assert "GroupIdNotFoundException: The group id does not exist." in gone
    gone = tool.run("--describe", "--group", tool.consumer)
    assert f"GroupIdNotFoundException: Group {tool.consumer} not found." in gone


def test_epochs_of_a_new_group(server: Server, tool: Tool) -> None:
    """Kafka 4.3.1 creates a group at epoch 1, and its first member raises it."""
    with members(tool):
        (state,) = tool.describe("--state", "--verbose")[tool.consumer]
        (member,) = tool.describe("--members", "--verbose")[tool.consumer]
        assert state["GROUP-EPOCH"] == member["CURRENT-EPOCH"] == "2"
