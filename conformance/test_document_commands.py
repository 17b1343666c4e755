"""The commands of an article on Kafka 1.0.2, as they are today: 60 lines for five partitions, and `__consumer_offsets`.

`docs/documents` explains the article (on replicas, loss and offsets), with the commands of oncelog that show the same.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from oncelog import Admin, Producer
from support.apache_kafka import run_tool
from support.command_line import Tool
from support.servers import Server

TOOLS = "org.apache.kafka.tools"
LINES = [f"hello lagou {number}" for number in range(1, 61)]
ROUND_ROBIN = ("--command-property", "partitioner.class=org.apache.kafka.clients.producer.RoundRobinPartitioner")

GROUP, HOME = "console-consumer-77682", 41
"""The group in the article, and the partition of `__consumer_offsets` that the article computes for it."""

OLD_FORMATTER = "kafka.coordinator.group.GroupMetadataManager$OffsetsMessageFormatter"
CONSUMER = f"{TOOLS}.consumer.ConsoleConsumer"
OFFSETS = ("--topic", "__consumer_offsets", "--from-beginning")
LOCAL = "127.0.0.1:9092"

REMOVED = {
    "create a topic": (f"{TOOLS}.TopicCommand --create --topic t --zookeeper 127.0.0.1:2181/k", "zookeeper is not a"),
    "send lines": (f"{TOOLS}.ConsoleProducer --topic t --broker-list {LOCAL}", "broker-list is not a recognized"),
    "get offsets": (f"kafka.tools.GetOffsetShell --topic t --broker-list {LOCAL} --time -1", "ClassNotFoundException"),
    "show group": (
        f"{CONSUMER} {' '.join(OFFSETS)} --bootstrap-server {LOCAL} --formatter {OLD_FORMATTER}",
        "$Offsets",
    ),
    "show partition": ("kafka.tools.SimpleConsumerShell --topic t --partition 41", "ClassNotFoundException"),
}
"""What the article does -> its command line, and a part of what Kafka 4.3.1 answers."""


def tool(server: Server, name: str, *arguments: str, stdin: str = "") -> str:
    """Run one of Kafka's tools against the server, and return its stdout."""
    return run_tool(f"{TOOLS}.{name}", "--bootstrap-server", server.bootstrap, *arguments, stdin=stdin)


def end_offsets(server: Server, topic: str) -> list[int]:
    """Return the end offset of each partition."""
    with Admin(server.bootstrap) as admin:
        ends = admin.end_offsets([(topic, partition) for partition in range(5)])
    return [ends[topic, partition] for partition in range(5)]


@pytest.mark.parametrize("purpose", REMOVED)
def test_old_command_is_rejected(purpose: str) -> None:
    """The tool of version 4.3.1 rejects the option, or does not exist. It does not connect to a broker."""
    command, answer = REMOVED[purpose]
    with pytest.raises(AssertionError) as caught:
        run_tool(*command.split())
    assert answer in str(caught.value)


def test_lines_without_keys(server: Server, name: str) -> None:
    """In the article, the partitions take turns. Today, all lines go to one of them, because they are one batch."""
    assert "Created topic" in tool(server, "TopicCommand", "--create", "--topic", name, "--partitions", "5")
    lines = "".join(f"{line}\n" for line in LINES)
    tool(server, "ConsoleProducer", "--topic", name, stdin=lines)
    first = end_offsets(server, name)
    assert sorted(first) == [0, 0, 0, 0, 60]
    tool(server, "ConsoleProducer", "--topic", name, *ROUND_ROBIN, stdin=lines)
    second = end_offsets(server, name)
    assert [end - before for end, before in zip(second, first, strict=True)] == [12] * 5
    shown = tool(server, "GetOffsetShell", "--topic", name, "--time", "-1")
    assert shown.splitlines() == [f"{name}:{partition}:{end}" for partition, end in enumerate(second)]
    Tool(server.bootstrap)("topic", "produce", name, "--partitioner", "round_robin", stdin=lines)
    assert [end - before for end, before in zip(end_offsets(server, name), second, strict=True)] == [12] * 5


def test_offsets_of_a_console_consumer(server: Server, name: str, tmp_path: Path) -> None:
    """The group's offsets are in the partition that the article computes from its name.

    In the article, the group has a generated name and commits its offsets. Today, a console consumer without `--group`
    also gets such a name, but commits nothing.
    """
    with Admin(server.bootstrap) as admin, Producer(server.bootstrap) as producer:
        admin.create_topics(name, 5)
        for line in LINES:
            producer.send(name, line.encode())
        producer.flush()
        before = {group.group_id for group in admin.list_groups()}
        read_all = ("consumer.ConsoleConsumer", "--topic", name, "--from-beginning", "--max-messages", "60")
        assert sorted(tool(server, *read_all).splitlines()) == sorted(LINES)
        (generated,) = set(tool(server, "consumer.group.ConsumerGroupCommand", "--list").split()) - before
        assert generated.startswith("console-consumer-")
        assert admin.committed(generated) == {}
    assert sorted(tool(server, *read_all, "--group", GROUP).splitlines()) == sorted(LINES)

    home = ("__consumer_offsets", HOME)
    with Admin(server.bootstrap) as admin:
        entries = admin.end_offsets([home])[home]
    config = tmp_path / "consumer.properties"
    config.write_text("exclude.internal.topics=false\n")
    shown = tool(
        server, "consumer.ConsoleConsumer", *OFFSETS, "--partition", str(HOME), "--command-config", str(config),
        "--formatter", f"{TOOLS}.consumer.OffsetsMessageFormatter",
        "--max-messages", str(entries), "--timeout-ms", "10000",
    )  # fmt: skip
    parsed: list[dict[str, Any]] = json.loads(f"[{shown.replace('}{', '},{')}]")
    ours = [each for each in parsed if each["key"]["data"]["topic"] == name]
    assert {each["key"]["data"]["group"] for each in ours} == {GROUP}
    committed = {each["key"]["data"]["partition"]: each["value"]["data"]["offset"] for each in ours}
    assert [committed[partition] for partition in range(5)] == end_offsets(server, name)
    described = Tool(server.bootstrap).json("group", "describe", GROUP)
    assert described["home_partition"] == f"__consumer_offsets-{HOME}"
