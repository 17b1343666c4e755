"""Kafka's own tools with the client's file that `oncelog up --secure` creates, and with the users that they add."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.apache_kafka import run_tool
from support.servers import OncelogCluster

ADDED = "SCRAM-SHA-256=[iterations=5000,password=hunter2]"


@pytest.mark.parametrize("folder", ["data", "my data \u00e9"])
def test_kafka_tools_take_the_file(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir()
    cluster = OncelogCluster(tmp_path / folder, arguments=("--secure",))
    try:
        at = (
            "--bootstrap-server",
            cluster.bootstrap,
            "--command-config",
            cluster.data / "secure" / "client.properties",
        )
        run_tool("org.apache.kafka.tools.TopicCommand", *at, "--create", "--topic", "t")
        assert "t" in run_tool("org.apache.kafka.tools.TopicCommand", *at, "--list").split()
        named = ("--entity-type", "users", "--entity-name", "alice")
        run_tool("kafka.admin.ConfigCommand", *at, "--alter", "--add-config", ADDED, *named)
        assert "SCRAM-SHA-256=iterations=5000" in run_tool("kafka.admin.ConfigCommand", *at, "--describe", *named)
    finally:
        cluster.stop()
