"""The commands against a running broker: their output, as text and as JSON, and their errors."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import socket
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from oncelog.cli import common
from oncelog.cli.app import oncelog as app
from oncelog.cli.app import run
from oncelog.cli.replication import summarize
from oncelog.client.admin.replication import PartitionReplication
from oncelog.net.connection import connect
from oncelog.spark.writing import driver
from oncelog.version import __version__
from support.command_line import ONCELOG, Tool
from support.processes import wait_until
from support.servers import OncelogCluster, Server
from support.wire import until


@pytest.fixture
def topic(tool: Tool) -> str:
    name = f"cli-{uuid.uuid4().hex[:8]}"
    tool("topic", "create", name, "-p", "2")
    return name


# -- topics -----------------------------------------------------------------------------------------------------------


def test_create_list_describe_delete(tool: Tool) -> None:
    name = f"cli-{uuid.uuid4().hex[:8]}"
    made = tool.json("topic", "create", name, "-p", "3", "-r", "1", "-c", "retention.ms=60000")
    assert made == {"name": name, "created": True, "partitions": 3, "replication_factor": 1}
    assert {"name": name, "partitions": 3, "replication_factor": 1, "internal": False} in tool.json("topic", "list")
    (found,) = tool.json("topic", "describe", name)
    assert found["configs"] == {"retention.ms": "60000"}
    assert [item["partition"] for item in found["partitions"]] == [0, 1, 2]
    first = found["partitions"][0]
    assert {key: first[key] for key in ("leader", "replicas", "isr", "start", "lso", "hw", "leo")} == {
        "leader": 1,
        "replicas": [1],
        "isr": [1],
        "start": 0,
        "lso": 0,
        "hw": 0,
        "leo": 0,
    }
    assert tool.json("topic", "delete", name, "--yes") == [{"name": name, "deleted": True}]
    assert name not in {item["name"] for item in tool.json("topic", "list")}


def test_text_output(tool: Tool, topic: str) -> None:
    lines = tool("topic", "list").splitlines()
    assert lines[0].split() == ["NAME", "PARTITIONS", "REPLICATION", "FACTOR"]
    assert [topic, "2", "1"] in [line.split() for line in lines]
    lines = tool("topic", "describe", topic).splitlines()
    assert lines[0].startswith(f"{topic}  id ")
    assert lines[2].split() == ["0", "1", "0", "1", "1", "0", "0", "0", "0"]


def test_topic_errors_are_sentences(tool: Tool, topic: str) -> None:
    assert f"opic '{topic}' already exists (TOPIC_ALREADY_EXISTS)." in tool.fails(1, "topic", "create", topic)
    assert tool.json("topic", "create", topic, "--if-not-exists") == {"name": topic, "created": False}
    assert "(INVALID_CONFIG)" in tool.fails(1, "topic", "create", f"{topic}-2", "-c", "retention.mss=1")
    assert "--config takes KEY=VALUE" in tool.fails(2, "topic", "create", "x", "-c", "retention.ms")
    for verb in (
        ["describe"],
        ["delete", "--yes"],
        ["alter", "--config", "retention.ms=1"],
        ["alter", "-p", "3"],
        ["consume"],
    ):
        message = tool.fails(1, "topic", *verb, "no-such-topic")
        assert "no-such-topic" in message
        assert message.count("\n") == 1
        assert ("reate the topic" in message) == (verb == ["consume"]), message
    message = tool.fails(1, "topic", "create", "a/b")
    assert "a retry fails again" not in message


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["topic", "delete", "a", "b"], "this deletes topics 'a', 'b' with all records"),
        (["topic", "delete-records", "a", "--all"], "this deletes all records of topic 'a'"),
        (
            ["topic", "delete-records", "a", "-p", "0", "--before", "9"],
            "this deletes the records before offset 9 of topic 'a' in partition 0",
        ),
        (["group", "delete", "a"], "this deletes group 'a'"),
        (["group", "delete", "a", "-t", "t:0"], "this deletes the offsets of t:0 in group 'a'"),
    ],
)
def test_commands_that_destroy_need_a_confirmation(tool: Tool, arguments: list[str], what: str) -> None:
    assert f"{what}; add --yes to confirm" in tool.fails(2, *arguments)


def test_command_that_destroys_asks_on_a_terminal(tool: Tool, server: Server, topic: str) -> None:
    def delete(answer: bytes) -> tuple[int, bytes]:
        ours, theirs = pty.openpty()
        command = [ONCELOG, "topic", "delete", topic, "-b", server.bootstrap]
        with subprocess.Popen(command, stdin=theirs, stdout=subprocess.DEVNULL, stderr=theirs) as process:
            os.close(theirs)
            shown = b""
            while b"Continue?" not in shown:
                shown += os.read(ours, 1000)
            os.write(ours, answer)
            status = process.wait(60)
        os.close(ours)
        return status, shown

    status, shown = delete(b"n\n")
    assert (status, f"this deletes topic '{topic}' with all records" in shown.decode()) == (130, True)
    assert topic in tool("topic", "list")
    assert delete(b"y\n")[0] == 0
    assert topic not in tool("topic", "list")


def test_topic_is_altered(tool: Tool, topic: str) -> None:
    done = tool.json("topic", "alter", topic, "-p", "3", "--config", "retention.ms=60000", "--config", "flush.ms=9")
    settings = {"retention.ms": "60000", "flush.ms": "9"}
    assert done == {"name": topic, "partitions": 3, "set": settings, "unset": [], "altered": True}
    until(lambda: described(tool, topic), lambda found: found == (settings, 3), "altered")
    assert tool.json("topic", "alter", topic, "--unset", "flush.ms", "--dry-run")["altered"] is False
    assert "ALTERED" in tool("topic", "alter", topic, "--unset", "flush.ms")
    until(lambda: described(tool, topic), lambda found: found == ({"retention.ms": "60000"}, 3), "unset")
    message = tool.fails(1, "topic", "alter", topic, "--config", "retention.ms=-7", "-p", "9")
    assert "retention.ms" in message
    assert "(INVALID_CONFIG)" in message
    assert "(INVALID_PARTITIONS)" in tool.fails(1, "topic", "alter", topic, "--partitions", "2")
    assert described(tool, topic) == ({"retention.ms": "60000"}, 3)
    assert "nothing to change" in tool.fails(2, "topic", "alter", topic)
    assert "--config takes KEY=VALUE" in tool.fails(2, "topic", "alter", topic, "--config", "x")


def described(tool: Tool, topic: str) -> tuple[dict[str, str], int]:
    """Return the settings of a topic and its number of partitions."""
    (found,) = tool.json("topic", "describe", topic)
    return found["configs"], len(found["partitions"])


def test_deletion_may_be_forbidden(new_cluster: Callable[..., OncelogCluster]) -> None:
    cluster = new_cluster(settings={"delete.topic.enable": "false"}, arguments=("--topic", "kept"))
    tool = Tool(cluster.bootstrap)
    assert "delete.topic.enable is false (TOPIC_DELETION_DISABLED)" in tool.fails(1, "topic", "delete", "kept", "--yes")
    assert [item["name"] for item in tool.json("topic", "list")] == ["kept"]


def test_unreachable_broker() -> None:
    message = Tool("127.0.0.1:1").fails(1, "topic", "list")
    assert message.startswith("oncelog: no broker can be reached: 127.0.0.1:1: ")
    assert message.count("\n") == 1
    assert "Check -b (or ONCELOG_BROKERS)" in message
    for verb in (["topic", "list"], ["sink", "list", "some-prefix"]):
        wrong = Tool("nonsense").fails(2, *verb)
        assert "'-b' / '--bootstrap-server': 'nonsense' is not HOST:PORT" in wrong
        assert "ONCELOG_BROKERS" in wrong


# -- produce and consume ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_produced_lines_are_consumed(tool: Tool, topic: str, codec: str) -> None:
    tool("topic", "produce", topic, "-p", "1", "-z", codec, "-K", ":", stdin="a:1\nb:2\n:3\nd:")
    assert tool("topic", "consume", topic, "-e", "-K", "=") == "a=1\nb=2\n=3\nd=\n"
    assert tool("topic", "consume", topic, "-e") == "1\n2\n3\n\n"
    assert tool("topic", "consume", topic, "-e", "-p", "0") == ""


def test_produce_reports_errors(tool: Tool, topic: str) -> None:
    assert tool.json("topic", "produce", topic, stdin="x\ny\n") == {"topic": topic, "records": 2, "sent_again": 0}
    assert "line 2 has no key delimiter ':'" in tool.fails(1, "topic", "produce", topic, "-K", ":", stdin="a:1\nb\n")
    warning, error = tool.fails(1, "topic", "produce", topic, "-p", "9", stdin="x\n").splitlines()
    assert warning.endswith("has partitions 0 to 1, not 9; still retrying")
    assert error.startswith("oncelog: topic")
    assert "'bz2'" in tool.fails(2, "topic", "produce", topic, "-z", "bz2")


def test_null_and_headers(tool: Tool, topic: str) -> None:
    tool("topic", "produce", topic, "-p", "0", "-K", ":", "-Z", "-H", "h=1", "-H", "n", stdin=":\nk:v\n")
    lines = tool("topic", "consume", topic, "-e", "--format", "json").splitlines()
    first, second = map(json.loads, lines)
    assert (first["key"], first["value"], first["headers"]) == (None, None, [["h", "1"], ["n", None]])
    assert (second["key"], second["value"], second["offset"]) == ("k", "v", 1)


def test_start_offsets_of_consume(tool: Tool, topic: str) -> None:
    tool("topic", "produce", topic, "-p", "0", stdin="".join(f"{number}\n" for number in range(10)))
    stamp = json.loads(tool("topic", "consume", topic, "-p", "0", "-c", "1", "--format", "json"))["timestamp"]

    def read(*where: str) -> list[str]:
        return tool("topic", "consume", topic, "-p", "0", "-e", *where).split()

    everything = [str(number) for number in range(10)]
    assert read() == read("-o", "beginning") == read("-o", "0") == read("-o", "-100") == read("-o", "s@0") == everything
    assert read("-o", "7") == read("-o", "-3") == ["7", "8", "9"]
    assert read("-o", "end") == read("-o", f"s@{stamp + 10_000_000}") == []
    assert read("-o", "3", "-c", "2") == ["3", "4"]
    assert "it must be beginning, end, stored, N, -N, s@MS or e@MS, not" in tool.fails(
        2, "topic", "consume", topic, "-o", "later"
    )
    assert "OFFSET_OUT_OF_RANGE" in tool.fails(1, "topic", "consume", topic, "-p", "0", "-o", "99", "-c", "1")


def test_follow_prints_new_records_until_ctrl_c(tool: Tool, topic: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with out.open("wb") as file:
        process = subprocess.Popen([str(ONCELOG), "topic", "consume", topic], stdout=file, env=tool.env)
    try:
        for line in ("first", "second"):
            tool("topic", "produce", topic, stdin=f"{line}\n")
            wait_until(lambda line=line: line in out.read_text(), f"{line} is printed")  # type: ignore[misc]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()


def test_closed_output_pipe_is_not_an_error(tool: Tool, topic: str) -> None:
    tool("topic", "produce", topic, stdin="x\n" * 20_000)
    command = f"'{ONCELOG}' topic consume {topic} -e | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, env=tool.env, check=True)
    assert (done.stdout, done.stderr) == ("x\n0\n", "")


# -- transactions -----------------------------------------------------------------------------------------------------


def test_transaction_becomes_visible_as_a_whole(tool: Tool, topic: str) -> None:
    tool("topic", "produce", topic, "-p", "0", "--transactional-id", f"{topic}-txn", stdin="1\n2\n")
    committed = ("topic", "consume", topic, "-e", "--read-committed")
    assert tool(*committed) == "1\n2\n"
    failing = tool.run(
        "topic", "produce", topic, "-p", "0", "-K", ":", "--transactional-id", f"{topic}-txn", stdin="a:3\nbroken\n"
    )
    assert failing.returncode == 1
    assert tool(*committed) == "1\n2\n"
    markers = ("topic", "consume", topic, "-p", "0", "-e", "--print-control-records", "-f", "%o %s\\n")
    lines = tool(*markers).splitlines()
    assert lines[:2] == ["0 1", "1 2"]
    assert lines[2].startswith("2 COMMIT producer ")
    if len(lines) > 3:  # the failed one had sent its first line before it read the second
        assert lines[-1].split()[1] == "ABORT"
    states = {item["transactional_id"]: item["state"] for item in tool.json("txn", "list", "--all")}
    assert states[f"{topic}-txn"] in ("CompleteCommit", "CompleteAbort", "Empty")
    described = tool.json("txn", "describe", f"{topic}-txn")
    assert described["partitions"] == []
    assert described["timeout_ms"] == 60_000
    assert "TRANSACTIONAL_ID_NOT_FOUND" in tool.fails(1, "txn", "describe", "unknown")
    said = tool.fails(2, "txn", "list", "--state", "Nonsense")
    assert "unknown transaction state 'Nonsense'; the states are Empty, Ongoing, " in said


def test_open_transaction_is_listed_and_its_records_are_hidden(tool: Tool, topic: str, server: Server) -> None:
    from oncelog import Producer

    with Producer(server.bootstrap, transactional_id=f"{topic}-open") as producer:
        producer.begin_transaction()
        producer.send(topic, b"open", partition=0)
        producer.flush()
        ongoing = tool.json("txn", "list", "--state", "ongoing")
        assert f"{topic}-open" in {item["transactional_id"] for item in ongoing}
        assert tool.json("txn", "describe", f"{topic}-open")["partitions"] == [f"{topic}-0"]
        hidden = tool.run("topic", "consume", topic, "-e", "--read-committed")
        assert (hidden.returncode, hidden.stdout) == (0, "")
        assert tool("topic", "consume", topic, "-e") == "open\n"
        (shown,) = tool.json("topic", "describe", topic)
        assert (shown["partitions"][0]["lso"], shown["partitions"][0]["hw"]) == (0, 1)
        producer.abort_transaction()
    assert tool("topic", "consume", topic, "-e", "--read-committed") == ""
    (shown,) = tool.json("topic", "describe", topic)
    assert (shown["partitions"][0]["lso"], shown["partitions"][0]["hw"]) == (2, 2)


# -- other commands ---------------------------------------------------------------------------------------------------


def test_cluster(tool: Tool, server: Server) -> None:
    found = tool.json("cluster", "describe", "--configs")
    (broker,) = found["brokers"]
    assert f"{broker['host']}:{broker['port']}" == server.bootstrap
    assert (found["controller"], broker["id"], broker["controller"]) == (1, 1, True)
    assert found["features"]["transaction.version"] == 2
    assert broker["configs"]["num.partitions"] == "1"
    text = tool("cluster", "describe", "--configs")
    assert f"cluster {found['cluster_id']}\n" in text
    assert "  num.partitions=1\n" in text


def test_alter_brokers(tool: Tool) -> None:
    key = "log.flush.interval.messages"

    def shown() -> str:
        value: str = tool.json("cluster", "describe", "--configs")["brokers"][0]["configs"][key]
        return value

    before = shown()
    done = tool.json("cluster", "alter", "--config", f"{key}=77777")
    assert done == {"broker": None, "set": {key: "77777"}, "unset": [], "altered": True}
    until(shown, lambda found: found == "77777", "set for all")
    tool("cluster", "alter", "--broker", "1", "--config", f"{key}=88888")
    until(shown, lambda found: found == "88888", "set for one")
    tool("cluster", "alter", "--broker", "1", "--unset", key)
    tool("cluster", "alter", "--unset", key)
    until(shown, lambda found: found == before, "as before")
    assert "num.partitions" in tool.fails(1, "cluster", "alter", "--config", "num.partitions=2")
    assert "nothing to change" in tool.fails(2, "cluster", "alter")


def test_groups(tool: Tool, topic: str, server: Server) -> None:
    from oncelog.protocol.messages.offset_commit import (
        OffsetCommitRequest,
        OffsetCommitRequestPartition,
        OffsetCommitRequestTopic,
    )

    tool("topic", "produce", topic, "-p", "1", stdin="1\n2\n3\n")
    assert "GROUP_ID_NOT_FOUND" in tool.fails(1, "group", "describe", f"{topic}-missing")
    group = f"{topic}-group"
    partition = OffsetCommitRequestPartition(partition_index=1, committed_offset=1)
    request = OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequestTopic(name=topic, partitions=[partition])])

    async def commit() -> None:
        host, _, port = server.bootstrap.rpartition(":")
        connection = await connect(host, int(port))
        response = await connection.call(request, 8)
        assert response.topics[0].partitions[0].error_code == 0
        connection.close()

    asyncio.run(commit())
    assert group in {item["group"] for item in tool.json("group", "list")}
    shown = tool.json("group", "describe", group)
    assert (shown["state"], shown["members"]) == ("Empty", [])
    row = {"topic": topic, "partition": 1, "committed": 1, "end": 3, "lag": 2, "member_id": None, "metadata": ""}
    assert shown["offsets"] == [row]
    assert "2" in tool("group", "describe", group).splitlines()[-1].split()


def test_group_continues_at_its_offset(tool: Tool, topic: str) -> None:
    tool("topic", "produce", topic, "-p", "0", stdin="1\n2\n3\n")
    member = ("topic", "consume", topic, "--group", f"{topic}-readers")
    assert tool(*member, "-c", "2") == "1\n2\n"
    shown = tool.json("group", "describe", f"{topic}-readers")["offsets"]
    assert [(row["committed"], row["end"], row["lag"]) for row in shown] == [(2, 3, 1), (0, 0, 0)]
    assert tool(*member, "-e") == "3\n"
    assert tool(*member, "-e") == ""
    assert tool("topic", "consume", topic, "--group", f"{topic}-late", "-o", "end", "-e") == ""
    assert "with --group, -o must be stored, beginning or end" in tool.fails(2, *member, "-o", "5")


@pytest.mark.parametrize("verb", [["topic", "list"], ["txn", "list"], ["sink", "list", "some-prefix"]], ids=" ".join)
def test_port_without_a_listener_is_reported_at_once(
    verb: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the wait for the first contact counts.

    Otherwise, this client waits indefinitely for an answer, and Spark's driver fails.
    """
    monkeypatch.setattr(common, "CONTACT_WAIT_MS", 100)
    monkeypatch.setattr(common, "ANSWER_WAIT_MS", 10**9)
    monkeypatch.setattr(driver, "look", lambda options: pytest.fail("a minute is how long Spark's driver waits"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(SystemExit) as ended:
            run([*verb, "-b", address])
    assert ended.value.code == 1
    assert f"no broker can be reached: {address}" in capsys.readouterr().err


def test_empty_list_has_its_headings(tool: Tool) -> None:
    assert tool("txn", "list", "--state", "Dead").split()[:2] == ["TRANSACTIONAL", "ID"]
    assert tool.json("txn", "list", "--state", "Dead") == []


def test_usage_errors(tool: Tool) -> None:
    assert "No such command 'nonsense'." in tool.fails(2, "nonsense")
    assert "No such command 'lst'. Did you mean 'list'?" in tool.fails(2, "topic", "lst")
    assert "No such option '--lst'" in tool.fails(2, "topic", "--lst").replace("option: --lst", "option '--lst'")
    for before in ([], ["topic"]):
        assert "-b comes after the command" in tool.fails(2, *before, "-b", "127.0.0.1:1", "list")
    assert "after the command" not in tool.fails(2, "--nonsense", "topic", "list")
    assert "after the command" not in tool.fails(2, "up", "-b", "127.0.0.1:1")
    for word in ("produce", "consume"):
        said = tool.fails(2, "topic", word, "x", "--log-level", "DEBUG")
        assert f"--log-level comes before the command: `oncelog --log-level LEVEL topic {word} ...`" in said
    assert "'x' is not a whole number" in tool.fails(2, "topic", "consume", "y", "-p", "x")
    assert "Missing argument" in tool.fails(2, "topic", "create")
    for count in ("0", "-1"):
        assert "not in the range" in tool.fails(2, "topic", "create", "x", "-p", count)
    assert "unknown token %q" in tool.fails(2, "topic", "consume", "x", "-f", "%q")
    assert "--format json cannot be used together with -f" in tool.fails(
        2, "topic", "consume", "x", "-f", "%s", "--format", "json"
    )
    assert "--group cannot be used together with --partition" in tool.fails(
        2, "topic", "consume", "x", "--group", "g", "-p", "0"
    )


def every_command(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of each command and group."""
    yield path
    with click.Context(group) as context:
        for word in group.list_commands(context):
            command = group.get_command(context, word)
            if isinstance(command, click.Group):
                yield from every_command(command, (*path, word))
            else:
                yield (*path, word)


def test_every_command_has_help() -> None:
    commands = list(every_command(app))
    assert {("topic", "alter"), ("group", "log"), ("txn", "find-hanging"), ("cluster", "feature")} <= set(commands)
    for command in commands:
        done = CliRunner().invoke(app, [*command, "--help"])
        assert (done.exit_code, done.output.startswith("Usage: ")) == (0, True), command


def test_version_option(tool: Tool) -> None:
    assert tool("--version") in (f"oncelog {__version__} (pure Python)\n", f"oncelog {__version__} (compiled)\n")


def test_worst_partitions_of_internal_topics_come_after_those_of_other_topics() -> None:
    def reduced(topic: str, partition: int, leader: int = 1) -> PartitionReplication:
        return PartitionReplication(topic, partition, leader, (1, 2, 3), (1, 3), 2)

    internal = [reduced("__consumer_offsets", index) for index in range(50)]
    offline = reduced("__transaction_state", 7, leader=-1)
    found = summarize([*internal, offline, reduced("orders", 0), reduced("orders", 1)], running=[1, 3])
    assert len(found["problems"]) == 20
    shown = [(row["topic"], row["partition"]) for row in found["problems"]][:4]
    assert shown == [("__transaction_state", 7), ("orders", 0), ("orders", 1), ("__consumer_offsets", 0)]
