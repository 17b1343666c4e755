"""`oncelog topic produce`: partitioner, acks, idempotence and retries."""

from __future__ import annotations

import subprocess
import uuid
from pathlib import Path

import pytest

from support.command_line import ONCELOG, Tool
from support.processes import wait_until


@pytest.fixture
def topic(tool: Tool) -> str:
    """Create a topic of five partitions."""
    name = f"produce-{uuid.uuid4().hex[:8]}"
    tool("topic", "create", name, "-p", "5")
    return name


def ends(tool: Tool, topic: str) -> list[int]:
    (found,) = tool.json("topic", "describe", topic)
    return [each["leo"] for each in found["partitions"]]


def test_produce_in_turn_to_all_partitions(tool: Tool, topic: str) -> None:
    """Each of five partitions gets twelve of sixty lines."""
    tool("topic", "produce", topic, "--partitioner", "round_robin", stdin="".join(f"{n}\n" for n in range(60)))
    assert ends(tool, topic) == [12] * 5


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (
            ("--acks", "1", "--idempotence"),
            "--idempotence cannot be used together with --acks 1: enable_idempotence needs acks = all",
        ),
        (("--retries", "0", "--idempotence"), "--idempotence cannot be used together with --retries 0"),
        (
            ("--transactional-id", "t", "--no-idempotence"),
            "--transactional-id cannot be used together with --no-idempotence",
        ),
        (("--transactional-id", "t", "--acks", "1"), "--transactional-id cannot be used together with --acks 1"),
    ],
)
def test_produce_rejects_options_that_contradict(tool: Tool, topic: str, options: tuple[str, ...], why: str) -> None:
    assert why in tool.fails(2, "topic", "produce", topic, *options, stdin="x\n")
    assert ends(tool, topic) == [0] * 5


@pytest.mark.parametrize("options", [("--acks", "0"), ("--acks", "1"), ("--no-idempotence",), ("--retries", "3")])
def test_produce_with_other_guarantees(tool: Tool, topic: str, options: tuple[str, ...]) -> None:
    tool("topic", "produce", topic, *options, stdin="x\n")
    wait_until(lambda: sum(ends(tool, topic)) == 1, "the record arrives")


def test_produce_without_stdin_is_rejected(tool: Tool, topic: str) -> None:
    command = ["sh", "-c", 'exec "$0" topic produce "$1" <&-', str(ONCELOG), topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=tool.env, check=False)
    assert (done.returncode, "stdin is closed" in done.stderr) == (2, True), done


def test_produce_with_an_empty_key_delimiter_is_rejected(tool: Tool, topic: str) -> None:
    assert "--key-delimiter is empty" in tool.fails(2, "topic", "produce", topic, "-K", "", stdin="a\n")


def test_file_has_options_of_a_producer(tool: Tool, topic: str, tmp_path: Path) -> None:
    """Options of the command override it, and other commands do not use them."""
    path = tmp_path / "client.properties"
    path.write_text(
        f"transactional.id={topic}-file\ntransaction.timeout.ms=7000\nmax.in.flight.requests.per.connection=1\n"
        "compression.type=gzip\n"
    )
    configured = ("topic", "produce", topic, "-p", "0", "--command-config", str(path))
    tool(*configured, stdin="x\n")
    assert tool.json("txn", "describe", f"{topic}-file")["timeout_ms"] == 7000
    tool(*configured, "--transactional-id", f"{topic}-option", stdin="y\n")
    assert tool.json("txn", "describe", f"{topic}-option")["timeout_ms"] == 7000
    assert ends(tool, topic)[0] == 4
    assert {"name": topic, "partitions": 5, "replication_factor": 1, "internal": False} in tool.json(
        "topic", "list", "--command-config", str(path)
    )
    path.write_text("transaction.timeout.ms=x\n")
    assert "transaction.timeout.ms = 'x': it must be" in tool.fails(2, *configured, stdin="x\n")
    path.write_text("transaction.timeout=7000\n")
    assert "did you mean 'transaction.timeout.ms'?" in tool.fails(2, *configured, stdin="x\n")


def test_empty_input_and_a_missing_topic_are_a_remark(tool: Tool) -> None:
    """As with Kafka's console producer, the status is 0, and no topic is created."""
    missing = f"produce-{uuid.uuid4().hex[:8]}"
    done = tool.run("topic", "produce", missing)
    assert (done.returncode, done.stdout) == (0, "")
    assert f"oncelog: topic '{missing}' does not exist, and there was no line to send" in done.stderr
    assert missing not in {row["name"] for row in tool.json("topic", "list")}
