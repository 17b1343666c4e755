"""`--log-format json`: each line on stderr is one JSON object, whatever names clients choose."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from oncelog import Admin, Producer
from support.servers import OncelogCluster

FORGED = 'x"}\n{"level":"FATAL","message":"forged"}\r\u2028\x1b[2J\x7f'


def objects(text: str) -> list[dict[str, Any]]:
    """Parse each line. `splitlines` also splits at U+2028 and others, so they must not be there."""
    found = [json.loads(line) for line in text.splitlines()]
    for each in found:
        assert each.keys() >= {"timestamp", "level", "logger", "message"}
        assert each["timestamp"].endswith("Z")
        assert datetime.fromisoformat(each["timestamp"]).tzinfo is not None
        assert each["level"] in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
    return found


@pytest.mark.parametrize("how", ["option", "variable"])
def test_each_line_of_brokers_and_supervisor_is_an_object(
    new_cluster: Callable[..., OncelogCluster], name: str, how: str
) -> None:
    """The names of clients and transactions cannot forge a line."""
    options: dict[str, Any] = {"arguments": ("--log-format", "json")}
    if how == "variable":
        options = {"env": {"ONCELOG_LOG_FORMAT": "json"}}
    options["env"] = {"ONCELOG_LOG_LEVEL": "DEBUG", **options.get("env", {})}
    cluster = new_cluster(**options)
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics(name)
    with (
        Producer(cluster.bootstrap, client_id=FORGED, transactional_id=FORGED) as producer,
        producer.transaction() as transaction,
    ):
        transaction.send(name, "x")
    cluster.kill()
    cluster.wait_ready()
    assert cluster.stop() == 0
    found = objects(cluster.process.stderr_path.read_text())
    of_broker = [each for each in found if each.get("broker") == 1]
    assert any(each["message"] == "[KafkaServer id=1] started" for each in of_broker)
    assert any(each["logger"].startswith("oncelog.broker") for each in of_broker)
    assert any("ended by signal 9" in each["message"] and "broker" not in each for each in found)
    assert any("forged" in each["message"] for each in of_broker)
    assert not any(each["message"] == "forged" for each in found)


def test_broker_that_cannot_start_says_so_in_an_object(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = subprocess.run(
            [
                *(Path(sys.executable).with_name("oncelog"), "up", "--log-format", "json"),
                *("--data", tmp_path / "data", "--port", str(taken.getsockname()[1])),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=os.environ,
        )
    assert done.returncode == 1
    found = objects(done.stderr)
    assert found[-1]["level"] == "ERROR"
    assert "in use" in found[-1]["message"]


def test_unknown_format_is_refused() -> None:
    for arguments, env in ((["--log-format", "xml"], {}), ([], {"ONCELOG_LOG_FORMAT": "xml"})):
        done = subprocess.run(
            [Path(sys.executable).with_name("oncelog"), *arguments, "topic", "list"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, **env},
        )
        assert done.returncode == 2
        assert "'xml' is not one of 'text', 'json'" in done.stderr
