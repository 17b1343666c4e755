"""Keep the ports of brokers while they restart, so that other processes cannot get them."""

from __future__ import annotations

import contextlib
import errno
import socket
import sys

import msgspec

from oncelog.broker.config.listeners import ListenerConfig
from oncelog.broker.config.settings import load
from oncelog.broker.folder_locks import StartError
from oncelog.broker.process import Launch
from oncelog.protocol.addresses import bracketed


class KeptPorts:
    """The ports of all brokers. They are bound without listening: Linux lets a second socket listen on them.

    On other systems, nothing is bound, and port 0 stays 0. Use it as a context manager.
    """

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._ports: dict[tuple[str, str, str, int], int] = {}
        """The bound port of each listener, by broker and the listener's name, host and port."""

    def __enter__(self) -> KeptPorts:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def bind(self, launch: Launch) -> Launch:
        """Return the launch with numbers of bound ports: those of a former launch if its listeners are the same.

        Raises StartError if a port is in use, ConfigError.
        """
        addresses = (
            f"{listener.name}://{bracketed(listener.host)}:{self._port(launch.settings['node.id'], listener)}"
            for listener in load(launch.settings).client_listeners
        )
        return msgspec.structs.replace(launch, settings={**launch.settings, "listeners": ",".join(addresses)})

    def _port(self, broker: str, listener: ListenerConfig) -> int:
        if sys.platform != "linux":
            return listener.port
        key = broker, listener.name, listener.host, listener.port
        if key not in self._ports:
            same = [port for (other, _, *at), port in self._ports.items() if (other, *at) == (broker, *key[2:])]
            self._ports[key] = same[0] if same and listener.port else _bound(listener, self._stack)
        return self._ports[key]


def _bound(listener: ListenerConfig, stack: contextlib.ExitStack) -> int:
    """Bind the port of a listener until the stack is closed, and return it. Raises StartError."""
    family, kind, protocol, _, address = _resolve(listener)
    keeper = stack.enter_context(socket.socket(family, kind, protocol))
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if listener.host == "::":
        keeper.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # the broker accepts IPv4, too
    try:
        keeper.bind(address)
    except OSError as error:
        where = f"{listener.host or '0.0.0.0'}:{listener.port}"
        if error.errno == errno.EADDRINUSE:
            hint = "choose another with --port (0: any free port)"
            raise StartError(f"cannot listen on {where}, because the port is in use; {hint}") from error
        raise StartError(f"cannot listen on {where}: {error.strerror}") from error
    return int(keeper.getsockname()[1])


def _resolve(listener: ListenerConfig) -> tuple[int, int, int, str, tuple[object, ...]]:
    try:
        found = socket.getaddrinfo(listener.host or "0.0.0.0", listener.port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise StartError(f"cannot listen on {listener.host!r}: {error.strerror}") from error
    return found[0]
