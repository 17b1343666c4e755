"""Ports that a test holds for a server that starts later."""

from __future__ import annotations

import socket

import pytest

from support.apache_kafka import held_ports, port_of


def test_server_that_reuses_addresses_listens_on_a_held_port() -> None:
    (held,) = held_ports(1)
    with held, socket.create_server(("127.0.0.1", port_of(held))) as server:
        socket.create_connection(server.getsockname(), timeout=30).close()


def test_held_port_refuses_connections_before_its_server_starts() -> None:
    (held,) = held_ports(1)
    with held, pytest.raises(ConnectionRefusedError):
        socket.create_connection(held.getsockname(), timeout=30)


def test_held_ports_differ() -> None:
    held = held_ports(20)
    assert len({port_of(each) for each in held}) == 20
    for each in held:
        each.close()
