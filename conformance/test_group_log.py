"""Compare `oncelog group log` with Kafka's own formatters of `__consumer_offsets`, on either server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.apache_kafka import run_tool
from support.command_line import Tool
from support.groups import simple_commit, stable
from support.servers import Server
from support.wire import Wire

TOOLS = "org.apache.kafka.tools.consumer"


def as_kafka_shows(server: Server, formatter: str, patience_ms: int) -> list[dict[str, Any]]:
    """Return the output of the console consumer, which writes documents without a separator."""
    shown = run_tool(
        f"{TOOLS}.ConsoleConsumer", "--bootstrap-server", server.bootstrap, "--topic", "__consumer_offsets",
        "--from-beginning", "--timeout-ms", str(patience_ms), "--formatter", f"{TOOLS}.{formatter}",
    )  # fmt: skip
    decoder, found, at = json.JSONDecoder(), [], 0
    shown = shown.strip()
    while at < len(shown):
        entry, end = decoder.raw_decode(shown, at)
        found.append(entry)
        at = end + len(shown[end:]) - len(shown[end:].lstrip())
    return found


@pytest.mark.parametrize(
    ("options", "formatter"), [([], "OffsetsMessageFormatter"), (["--groups"], "GroupMetadataMessageFormatter")]
)
def test_our_json_lines_equal_kafkas(server: Server, name: str, options: list[str], formatter: str) -> None:
    with Wire(server.bootstrap) as wire:
        wire.create_topic(name, 2)
        simple_commit(wire, name, name, {0: 1, 1: 2}, metadata="note")
        simple_commit(wire, name, name, {0: 3}, version=2, retention_time_ms=3_600_000)
        (member,) = stable(server.bootstrap, name, group_instance_id="one")
        member.leave()
    tool = Tool(server.bootstrap)
    ours = [json.loads(line) for line in tool("group", "log", name, *options).splitlines()]
    assert len(ours) >= 2
    for patience_ms in (3_000, 30_000):  # the console consumer ends if nothing arrives for this long
        kafka = [e for e in as_kafka_shows(server, formatter, patience_ms) if e["key"]["data"]["group"] == name]
        if len(kafka) >= len(ours):
            break
    assert ours == kafka
