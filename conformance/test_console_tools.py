"""Kafka's own command-line tools against either server."""

from __future__ import annotations

import json
import re

import pytest

from oncelog import Admin, Consumer, Producer
from support.apache_kafka import run_tool
from support.clients.base import Outgoing
from support.clients.confluent import ConfluentClient
from support.servers import Server

TOOLS = "org.apache.kafka.tools"


def tool(server: Server, name: str, *arguments: str, stdin: str = "") -> str:
    """Run one of Kafka's tools against the server, and return its stdout."""
    return run_tool(f"{TOOLS}.{name}", "--bootstrap-server", server.bootstrap, *arguments, stdin=stdin)


def test_topic_command(server: Server, name: str) -> None:
    assert "Created topic" in tool(
        server, "TopicCommand", "--create", "--topic", name, "--partitions", "3", "--config", "retention.ms=77"
    )
    assert name in tool(server, "TopicCommand", "--list").split()
    described = tool(server, "TopicCommand", "--describe", "--topic", name)
    assert "PartitionCount: 3\tReplicationFactor: 1" in described
    assert re.search(r"Configs:.*retention\.ms=77", described)
    assert len(re.findall(r"Leader: 1\tReplicas: 1\tIsr: 1", described)) == 3
    tool(server, "TopicCommand", "--delete", "--topic", name)
    assert name not in tool(server, "TopicCommand", "--list").split()


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_console_producer_and_consumer(server: Server, name: str, codec: str) -> None:
    tool(server, "TopicCommand", "--create", "--topic", name)
    lines = [f"k{i}:value {i}" for i in range(500)]
    separated = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    codec_option = ("--compression-codec", codec)
    tool(server, "ConsoleProducer", "--topic", name, *separated, *codec_option, stdin="\n".join(lines) + "\n")
    shown = tool(
        server, "consumer.ConsoleConsumer", "--topic", name, "--from-beginning", "--max-messages", "500",
        "--isolation-level", "read_committed", "--group", f"{name}-group",
        "--formatter-property", "print.key=true", "--formatter-property", "key.separator=:",
    )  # fmt: skip
    assert shown.splitlines() == lines
    with Consumer(server.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(name, 0)])
        ours: list[str] = []
        while len(ours) < 500:
            ours += [f"{(each.key or b'').decode()}:{(each.value or b'').decode()}" for each in consumer.poll(30)]
    assert ours == lines, "our consumer sees what Java's producer wrote"


def console_consumer(server: Server, group: str, count: int, *arguments: str) -> list[str]:
    """Return the values of the next `count` records that a member of the group reads."""
    shown = run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", server.bootstrap, "--group", group,
        "--consumer-property", "group.protocol=consumer", "--from-beginning", "--max-messages", str(count), *arguments,
    )  # fmt: skip
    return [line for line in shown.splitlines() if not line.startswith("Option --consumer-property is deprecated")]


def test_console_consumer_with_the_consumer_protocol(server: Server, name: str) -> None:
    """It reads a topic, commits, and continues there. `--include` is a pattern of Java, which the client applies."""
    topics = [f"{name}-a", f"{name}-b", f"{name}-c"]
    with Admin(server.bootstrap) as admin, Producer(server.bootstrap) as producer:
        admin.create_topics(topics)

        def send(text: str) -> None:
            for topic in topics:
                producer.send(topic, f"{text} {topic[-1]}")
            producer.flush()

        send("1")
        assert console_consumer(server, name, 1, "--topic", topics[0]) == ["1 a"]
        described = admin.describe_group(name)
        assert (described.type, described.state) == ("Consumer", "Empty")
        assert admin.committed(name) == {(topics[0], 0): 1}
        send("2")
        included = console_consumer(server, name, 3, "--include", f"{name}-(?!c)\\w")
        assert sorted(included) == ["1 b", "2 a", "2 b"]
        assert admin.committed(name) == {(topics[0], 0): 2, (topics[1], 0): 2}


def test_verifiable_producer_and_consumer(server: Server, name: str) -> None:
    tool(server, "TopicCommand", "--create", "--topic", name, "--partitions", "3")
    sent = tool(server, "VerifiableProducer", "--topic", name, "--max-messages", "5000", "--throughput", "-1")
    events = [json.loads(line) for line in sent.splitlines()]
    assert sum(event["name"] == "producer_send_success" for event in events) == 5000
    summary = next(event for event in events if event["name"] == "tool_data")
    assert (summary["sent"], summary["acked"]) == (5000, 5000)
    read = tool(
        server, "VerifiableConsumer", "--topic", name, "--max-messages", "5000", "--group-id", f"{name}-group",
        "--reset-policy", "earliest", "--verbose",
    )  # fmt: skip
    events = [json.loads(line) for line in read.splitlines()]
    values = sorted(int(event["value"]) for event in events if event["name"] == "record_data")
    assert values == list(range(5000))
    assert all(event["success"] for event in events if event["name"] == "offsets_committed")


def test_consumer_group_command(server: Server, name: str) -> None:
    group = f"{name}-group"
    client = ConfluentClient(server.bootstrap)
    client.create_topic(name, 2)
    client.send(name, [Outgoing(b"%d" % i, partition=i % 2) for i in range(40)])
    with client.member(group, name) as member:
        member.take(40)
        member.commit()
        described = tool(server, "consumer.group.ConsumerGroupCommand", "--describe", "--group", group, "--state")
        assert re.search(rf"{group}\s.*\sStable\s+1\b", described)
    client.send(name, [Outgoing(b"more")])
    assert group in tool(server, "consumer.group.ConsumerGroupCommand", "--list").split()
    lags = tool(server, "consumer.group.ConsumerGroupCommand", "--describe", "--group", group)
    assert re.search(rf"{group}\s+{name}\s+0\s+\S*\s*20\s+21\s+1\b", lags), lags
    assert re.search(rf"{group}\s+{name}\s+1\s+\S*\s*20\s+20\s+0\b", lags), lags
    tool(
        server, "consumer.group.ConsumerGroupCommand", "--reset-offsets", "--to-offset", "7", "--group", group,
        "--topic", f"{name}:0", "--execute",
    )  # fmt: skip
    assert client.committed_offsets(group, name, 2) == [7, 20]


def test_transactions_command(server: Server, name: str) -> None:
    client = ConfluentClient(server.bootstrap)
    client.create_topic(name)
    producer = client.transactions(f"{name}-id")
    producer.begin()
    producer.send(name, [Outgoing(b"open")])

    def described() -> dict[str, str]:
        text = tool(server, "TransactionsCommand", "describe", "--transactional-id", f"{name}-id")
        titles, row = (line.split("\t") for line in text.splitlines()[:2])
        cells = zip(titles, row, strict=True)
        return {title.strip(): cell.strip() for title, cell in cells}

    listed = tool(server, "TransactionsCommand", "list")
    assert re.search(rf"^{name}-id\s.*Ongoing", listed, re.MULTILINE)
    assert described()["TransactionState"] == "Ongoing"
    assert described()["TopicPartitions"] == f"{name}-0"
    producers = tool(server, "TransactionsCommand", "describe-producers", "--topic", name, "--partition", "0")
    assert len(producers.splitlines()) == 2
    assert "None" not in producers.splitlines()[1]
    producer.commit()
    assert described()["TransactionState"] == "CompleteCommit"
    producers = tool(server, "TransactionsCommand", "describe-producers", "--topic", name, "--partition", "0")
    assert producers.splitlines()[1].split()[-1] == "None"
    producer.close()


def test_transactions_command_aborts(server: Server, name: str) -> None:
    """An operator ends a transaction by its first offset, with WriteTxnMarkers."""
    client = ConfluentClient(server.bootstrap)
    client.create_topic(name)
    producer = client.transactions(f"{name}-id")
    producer.begin()
    producer.send(name, [Outgoing(b"hanging")])
    client.send(name, [Outgoing(b"after")])
    assert client.read(name, committed=True) == []
    tool(server, "TransactionsCommand", "abort", "--topic", name, "--partition", "0", "--start-offset", "0")
    assert [record.value for record in client.read(name, committed=True)] == [b"after"]
    producer.close()


@pytest.mark.parametrize("transactional", [False, True], ids=["idempotent", "transactional"])
def test_producer_performance(server: Server, name: str, transactional: bool) -> None:
    tool(server, "TopicCommand", "--create", "--topic", name, "--partitions", "3")
    options = ["--topic", name, "--num-records", "20000", "--record-size", "100", "--throughput", "-1"]
    if transactional:
        options += ["--transactional-id", f"{name}-id", "--transaction-duration-ms", "50"]
    shown = tool(server, "ProducerPerformance", *options)
    assert re.search(r"^20000 records sent, ", shown, re.MULTILINE)
    assert len(ConfluentClient(server.bootstrap).read(name, 3, committed=True)) == 20000


def test_consumer_performance_and_latency(server: Server, name: str) -> None:
    client = ConfluentClient(server.bootstrap)
    client.create_topic(name)
    client.send(name, [Outgoing(b"x" * 100) for _ in range(5000)])
    shown = tool(server, "ConsumerPerformance", "--topic", name, "--num-records", "5000", "--hide-header")
    assert shown.strip().splitlines()[-1].split(",")[4].strip() == "5000"
    shown = tool(
        server, "EndToEndLatency", "--topic", f"{name}-e2e", "--num-records", "300", "--producer-acks", "all",
        "--record-size", "100",
    )  # fmt: skip
    assert re.search(r"Percentiles: 50th = \d+, 99th = \d+", shown)


def test_group_offsets_and_transactions_match_kafkas_formatters(server: Server, name: str) -> None:
    client = ConfluentClient(server.bootstrap)
    client.create_topic(name)
    client.send(name, [Outgoing(b"x")])
    with client.member(f"{name}-group", name) as member:
        member.take(1)
        member.commit()
    producer = client.transactions(f"{name}-id")
    producer.begin()
    producer.send(name, [Outgoing(b"y")])
    producer.commit()
    producer.close()

    def formatted(topic: str, formatter: str) -> list[dict]:
        shown = run_tool(
            f"{TOOLS}.consumer.ConsoleConsumer", "--bootstrap-server", server.bootstrap, "--topic", topic,
            "--from-beginning", "--timeout-ms", "3000", "--formatter", f"{TOOLS}.consumer.{formatter}",
        )  # fmt: skip
        return json.loads(f"[{shown.replace('}{', '},{')}]")

    offsets = formatted("__consumer_offsets", "OffsetsMessageFormatter")
    ours = [entry for entry in offsets if entry["key"]["data"]["group"] == f"{name}-group"]
    assert ours[-1]["key"]["data"] == {"group": f"{name}-group", "topic": name, "partition": 0}
    assert ours[-1]["value"]["data"]["offset"] == 1
    logged = formatted("__transaction_state", "TransactionLogMessageFormatter")
    states = [
        entry["value"]["data"]["transactionStatus"]
        for entry in logged
        if entry["key"]["data"]["transactionalId"] == f"{name}-id"
    ]
    assert states == [0, 1, 2, 4]
