"""`oncelog up --console-port`: a console beside the brokers."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from support.command_line import ONCELOG
from support.processes import children, gone, wait_until
from support.servers import OncelogCluster


def console_of(cluster: OncelogCluster) -> str:
    """Return HOST:PORT of the cluster's console, when it answers."""

    def line() -> str:
        return next((each for each in cluster.process.lines() if each.startswith("CONSOLE=")), "")

    cluster.process.wait_for(line, "the console prints CONSOLE=")
    return urlsplit(line().removeprefix("CONSOLE=")).netloc


def brokers_at(host: str, cookie: str = "") -> int:
    connection = http.client.HTTPConnection(host, timeout=60)
    connection.request("GET", "/?format=json", headers={"Cookie": cookie})
    answer = connection.getresponse()
    found: int = json.loads(answer.read())["brokers"]["total"] if answer.status == 200 else -answer.status
    connection.close()
    return found


def cookie_for(host: str, token: str) -> str:
    """Log in, and return what the browser sends from then on."""
    connection = http.client.HTTPConnection(host, timeout=60)
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Origin": f"http://{host}"}
    connection.request("POST", "/login", urlencode({"token": token}), headers)
    answer = connection.getresponse()
    connection.close()
    assert answer.status == 303
    return (answer.getheader("Set-Cookie") or "").partition(";")[0]


def test_console_beside_the_brokers_ends_with_them(new_cluster: Callable[..., OncelogCluster]) -> None:
    cluster = new_cluster(arguments=("--console-port", "0"))
    assert brokers_at(console_of(cluster)) == 1
    all_children = children(cluster.process.pid)
    assert len(all_children) >= 2
    assert cluster.stop() == 0
    wait_until(lambda: all(map(gone, all_children)), "the console has ended")


def test_console_of_secured_brokers_logs_in(new_cluster: Callable[..., OncelogCluster]) -> None:
    """Its users log in, too: they act with its permissions, and the machine may have other users."""
    token = "a token of the test"
    cluster = new_cluster(arguments=("--secure", "--console-port", "0"), env={"ONCELOG_CONSOLE_TOKEN": token})
    host = console_of(cluster)
    assert brokers_at(host) == -401
    assert brokers_at(host, cookie_for(host, token)) == 1


def test_console_ends_if_its_supervisor_is_killed(new_cluster: Callable[..., OncelogCluster]) -> None:
    cluster = new_cluster(arguments=("--console-port", "0"))
    console_of(cluster)
    all_children = children(cluster.process.pid)
    cluster.process.kill()
    wait_until(lambda: all(map(gone, all_children)), "the console has ended")


def test_used_port_is_an_error_before_a_broker_starts(
    new_cluster: Callable[..., OncelogCluster], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        command: list[str | Path] = [ONCELOG, "up", "--port", "0", "--data", tmp_path / "data"]
        command += ["--console-port", str(port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"127.0.0.1:{port}" in done.stderr
    assert "choose another port" in done.stderr
    assert not (tmp_path / "data").exists()


def test_console_that_ends_is_started_again_at_its_address(new_cluster: Callable[..., OncelogCluster]) -> None:
    cluster = new_cluster(arguments=("--console-port", "0"))
    host = console_of(cluster)
    victim = next(pid for pid in children(cluster.process.pid) if b"--parent-pid" in command_of(pid))
    os.kill(victim, signal.SIGKILL)
    cluster.process.wait_for(
        lambda: "the console has ended with exit status -9" in cluster.process.output(), "the end is reported"
    )
    assert brokers_at(host) == 1


def command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()
