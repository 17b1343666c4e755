"""`oncelog up --console-port`: a console beside the brokers."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from urllib.parse import urlsplit

from support.processes import children, gone, wait_until
from support.servers import OncelogCluster


def console_of(cluster: OncelogCluster) -> str:
    """Return HOST:PORT of the cluster's console, when it answers."""

    def line() -> str:
        return next((each for each in cluster.process.lines() if each.startswith("CONSOLE=")), "")

    cluster.process.wait_for(line, "the console prints CONSOLE=")
    return urlsplit(line().removeprefix("CONSOLE=")).netloc


def brokers_at(host: str) -> int:
    connection = http.client.HTTPConnection(host, timeout=60)
    connection.request("GET", "/?format=json")
    found: int = json.loads(connection.getresponse().read())["brokers"]["total"]
    connection.close()
    return found


def test_console_beside_the_brokers_ends_with_them(new_cluster: Callable[..., OncelogCluster]) -> None:
    cluster = new_cluster(arguments=("--console-port", "0"))
    assert brokers_at(console_of(cluster)) == 1
    all_children = children(cluster.process.pid)
    assert len(all_children) >= 2
    assert cluster.stop() == 0
    wait_until(lambda: all(map(gone, all_children)), "the console has ended")


def test_console_of_secured_brokers_logs_in(new_cluster: Callable[..., OncelogCluster]) -> None:
    cluster = new_cluster(arguments=("--secure", "--console-port", "0"))
    assert brokers_at(console_of(cluster)) == 1


def test_console_ends_if_its_supervisor_is_killed(new_cluster: Callable[..., OncelogCluster]) -> None:
    cluster = new_cluster(arguments=("--console-port", "0"))
    console_of(cluster)
    all_children = children(cluster.process.pid)
    cluster.process.kill()
    wait_until(lambda: all(map(gone, all_children)), "the console has ended")
