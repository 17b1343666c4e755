"""Three brokers of ours with TLS and logins, each with all listeners of `SecuredOncelog`."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path

from support.apache_kafka import port_of
from support.secured_oncelog import PASSWORD, PROTOCOLS, USER, add_scram_user, certificates, secured_settings
from support.servers import REPLICATED, OncelogCluster

BROKERS = 3


class SecuredOncelogs:
    """Three brokers. `addresses` has the addresses of each listener by name."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self.certificates = certificates(folder)
        self._held = [each for _ in PROTOCOLS for each in _neighbours(BROKERS)]
        ports = dict(zip(PROTOCOLS, map(port_of, self._held[::BROKERS]), strict=True))
        self.addresses = {
            name: ",".join(f"127.0.0.1:{port + number}" for number in range(BROKERS)) for name, port in ports.items()
        }
        given = {
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
            "listener.security.protocol.map": ",".join(f"{name}:{each}" for name, each in PROTOCOLS.items()),
            "listener.name.mutual.ssl.client.auth": "required",
            **REPLICATED,
            **secured_settings(self.certificates),
            **(settings or {}),
        }
        self._cluster = OncelogCluster(folder, settings=given, arguments=("--brokers", str(BROKERS)))
        add_scram_user(self.addresses["PLAINTEXT"], USER, PASSWORD)

    def stop(self) -> None:
        self._cluster.stop()
        for each in self._held:
            each.close()


def _neighbours(count: int) -> list[socket.socket]:
    """Hold consecutive ports, as `held_ports` does: broker N listens N - 1 ports above the first one."""
    while True:
        found: list[socket.socket] = []
        try:
            for number in range(count):
                found.append(socket.socket())
                found[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                found[-1].bind(("127.0.0.1", port_of(found[0]) + number if number else 0))
        except (OSError, OverflowError):
            for each in found:
                each.close()
            continue
        return found
