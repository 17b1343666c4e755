"""The addresses of `oncelog up`: ports in use, advertised addresses, several listeners, IPv4 and IPv6."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from oncelog.cli.broker_settings import of_broker, with_address
from support.command_line import errors_of, run
from support.processes import accepts
from support.servers import OncelogCluster

NewCluster = Callable[..., OncelogCluster]


def test_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, out, err = run("up", "--port", str(port), "--data", tmp_path / "data")
    assert (status, out) == (1, "")
    hint = "choose another with --port (0: any free port)"
    assert err == f"oncelog: cannot listen on 127.0.0.1:{port}, because the port is in use; {hint}\n"


def test_port_in_use_for_one_of_three_brokers_starts_none(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, out, err = run("up", "--brokers", "3", "--port", str(port - 2), "--data", tmp_path / "data")
    assert (status, out) == (1, "")
    assert re.fullmatch(r"oncelog: cannot listen on 127\.0\.0\.1:\d+, because the port is in use; choose .*\n", err), (
        err
    )
    assert not list((tmp_path / "data").glob("broker-*"))


@pytest.mark.parametrize(
    ("given", "address"),
    [("box", "box:0"), ("box:9", "box:9"), ("::1", "[::1]:0"), ("[::1]", "[::1]:0"), ("[::1]:9", "[::1]:9")],
)
def test_advertise_option(given: str, address: str) -> None:
    settings = with_address({}, host=None, port=None, advertise=given)
    assert settings["advertised.listeners"] == f"PLAINTEXT://{address}"


INNER = {"listeners": "INNER://127.0.0.1:1", "listener.security.protocol.map": "INNER:PLAINTEXT,OUTER:PLAINTEXT"}


def test_options_keep_the_name_of_the_listener() -> None:
    settings = with_address(INNER, host="::1", port=None, advertise="box")
    assert settings["listeners"] == "INNER://[::1]:1"
    assert settings["advertised.listeners"] == "INNER://box:0"


def test_options_are_rejected_with_several_listeners() -> None:
    settings = {**INNER, "listeners": "INNER://127.0.0.1:1,OUTER://127.0.0.1:2"}
    assert with_address(settings, host=None, port=None, advertise=None) == settings
    with pytest.raises(click.UsageError, match="the settings have INNER, OUTER"):
        with_address(settings, host=None, port=3, advertise=None)


@pytest.mark.parametrize("given", ["box:nine", "box:99999", ":9", "box:"])
def test_invalid_advertised_address_is_rejected(given: str) -> None:
    with pytest.raises(click.UsageError, match="--advertise takes HOST"):
        with_address({}, host=None, port=None, advertise=given)


def test_each_of_several_brokers_listens_on_the_next_ports() -> None:
    listeners = {"listeners": "INNER://127.0.0.1:9092,OUTER://[::1]:0", "advertised.listeners": "INNER://box:100"}
    settings = {**INNER, **listeners}
    assert of_broker(settings, 1) == settings
    third = of_broker(settings, 3)
    assert third["listeners"] == "INNER://127.0.0.1:9094,OUTER://[::1]:0"
    assert third["advertised.listeners"] == "INNER://box:102"
    assert of_broker({}, 2)["listeners"] == "PLAINTEXT://127.0.0.1:9093"
    with pytest.raises(click.UsageError, match="broker 2 would listen on port 65536"):
        of_broker({"listeners": "PLAINTEXT://127.0.0.1:65535"}, 2)


def test_brokers_with_overlapping_ports_are_rejected(tmp_path: Path) -> None:
    listeners = "listeners=INNER://127.0.0.1:9092,OUTER://127.0.0.1:9093"
    protocols = f"listener.security.protocol.map={INNER['listener.security.protocol.map']}"
    status, out, err = run("up", "--brokers", "2", "--set", listeners, "--set", protocols, cwd=tmp_path)
    assert (status, out) == (2, "")
    assert "brokers 1 and 2 would both listen on port 9093" in err


@pytest.mark.parametrize("host", ["::", "0.0.0.0", "127.0.0.1"])
def test_up_on_all_addresses_warns_once_and_accepts_ipv4(new_cluster: NewCluster, host: str) -> None:
    """As Kafka with [::], which accepts IPv6 and IPv4."""
    cluster = new_cluster(arguments=("--host", host))
    port = int(cluster.bootstrap.rpartition(":")[2])
    for address in ("127.0.0.1", *(("::1",) if host == "::" else ())):
        socket.create_connection((address, port), 60).close()
    assert accepts(cluster.bootstrap)
    assert errors_of(cluster).count("requires no login") == (0 if host == "127.0.0.1" else 1)
    cluster.kill()  # it listens on the same addresses again
    cluster.process.wait_for(lambda: errors_of(cluster).count("started") == 2, "the broker is restarted")
    socket.create_connection(("127.0.0.1", port), 60).close()


def test_several_brokers_without_a_listener_for_brokers_are_rejected(tmp_path: Path) -> None:
    own = {"listeners": "OUTER://127.0.0.1:0", "listener.security.protocol.map": "OUTER:PLAINTEXT"}
    given = [part for name, text in own.items() for part in ("--set", f"{name}={text}")]
    status, out, err = run("up", "--brokers", "2", *given, "--data", tmp_path / "data")
    assert (status, out) == (2, "")
    assert "Set inter.broker.listener.name to one of the listeners (OUTER)" in err
