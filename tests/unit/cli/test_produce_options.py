"""`oncelog topic produce`: partitioner, acks, idempotence and retries."""

from __future__ import annotations

import subprocess
import uuid

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
        (("--acks", "1", "--idempotence"), "enable_idempotence needs acks = all, but acks = 1"),
        (("--retries", "0", "--idempotence"), "enable_idempotence needs retries = more than 0, but retries = 0"),
        (("--transactional-id", "t", "--no-idempotence"), "transactional_id needs enable_idempotence = true"),
        (("--transactional-id", "t", "--acks", "1"), "transactional_id needs acks = all, but acks = 1"),
    ],
)
def test_produce_rejects_options_that_contradict(tool: Tool, topic: str, options: tuple[str, ...], why: str) -> None:
    assert why in tool.fails(1, "topic", "produce", topic, *options, stdin="x\n")
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
