"""The listeners of a server, and what it allows its clients."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from oncelog.net.admission import ConnectionQuotas

if TYPE_CHECKING:
    from oncelog.net.security import Tls

PLAINTEXT = "PLAINTEXT"
"""The security protocol without TLS and login, and the name of a server's only listener, if it has no other name."""
MAX_REQUEST_BYTES = 100 * 1024 * 1024
"""The largest request by default, as in Kafka."""
WILDCARD = "::"
"""The host of a listener on all addresses, IPv6 and IPv4, as in Kafka."""


@dataclass(frozen=True, slots=True)
class Listener:
    """An address to listen on, and what applies to all connections that are accepted there."""

    host: str = "127.0.0.1"
    """The host name or IP address. If it is empty, the server listens on all IPv4 interfaces. See WILDCARD."""
    port: int = 0
    """The port, or 0 for any free port (see `Server.listeners`)."""
    name: str = PLAINTEXT
    """Clients get the addresses of brokers that belong to the listener of this name."""
    protocol: str = PLAINTEXT
    """The security protocol."""
    protected: bool = False
    """It is for the other brokers. Above `max_connections`, its connections replace idle ones of other listeners."""
    tls: Tls | None = field(default=None, repr=False, compare=False)
    """None without TLS."""
    principal_of: Callable[[bytes], str] | None = field(default=None, repr=False, compare=False)
    """Return the principal of a client from its certificate (DER). None if certificates do not matter.

    Raises ValueError to reject the client."""
    begin_login: Callable[[Any], Any] | None = field(default=None, repr=False, compare=False)
    """Return the state of the login of a new `Session`. None if clients need not log in."""


DEFAULT_LISTENER = Listener()
"""The listener of connections that no server has accepted."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for the clients of a server."""

    max_request_size: int = MAX_REQUEST_BYTES
    """The limit of a frame in bytes for new connections. The server closes a connection if a frame is larger."""
    idle_ms: int = 600_000
    """The server closes connections that are idle for this long. If it is negative, they stay open.

    A connection is idle if it sends neither a whole frame nor a part of a long one, and reads no waiting responses.
    """
    connections: ConnectionQuotas = field(default_factory=ConnectionQuotas)
    """The first limits of the connections. `Server.entrance` applies others."""
    backlog: int = 1024
    """Number of connections that the kernel queues until the server accepts them."""
    drain_ms: int = 500
    """How long `close` waits for requests in progress."""


def plain_host(address: Any) -> str:
    """Return the host of a socket's address. A socket on all IPv6 addresses shows an IPv4 client after a prefix."""
    return str(address[0]).removeprefix("::ffff:")


def wildcard_socket(port: int) -> socket.socket:
    """Return a socket that is bound to a port of all IPv6 and IPv4 addresses. Raises OSError.

    If asyncio bound `::`, the server would accept IPv6 only.
    """
    bound = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind((WILDCARD, port))
    except OSError:
        bound.close()
        raise
    return bound
