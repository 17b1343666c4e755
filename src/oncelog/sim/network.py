"""A network in memory. Its streams have latency, and deliver bytes in order, but in random pieces.

To asyncio's protocols (plain and buffered), it behaves like TCP. `cut` holds bytes back until `heal`, as if TCP then
retransmitted them. `reset` ends connections with an error on both sides. Bytes of different connections overtake each
other. A machine without power answers nothing: neither bytes nor attempts to connect.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import deque
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

from oncelog.sim.links import Link
from oncelog.sim.loop import Process, SimLoop, context_of, current_process
from oncelog.sim.pages import pages_of

Address = tuple[str, int]

HIGH_WATER = 64 * 1024
"""If more unread bytes than this are in flight, a protocol has to pause. This is asyncio's default."""

FIRST_FREE_PORT = 20_000
"""The first of the ports that are assigned for port 0."""


class Network:
    """The network of all machines of a world. A piece of a stream takes from `fastest` to `slowest` seconds.

    `stream(name)` returns the random generator of that name.
    """

    def __init__(
        self,
        loop: SimLoop,
        stream: Callable[[str], random.Random],
        *,
        fastest: float = 0.000_05,
        slowest: float = 0.002,
    ) -> None:
        self.loop = loop
        self.fastest = fastest
        self.slowest = slowest
        self.trace: Callable[[str], None] = lambda _: None
        self.on_bus_error: Callable[[Process | None], None] = lambda _: None
        """Called if a process sends mapped pages that its file no longer has. It has to die."""
        self._stream = stream
        self._links: dict[tuple[str, str], Link] = {}
        self._off: dict[str, list[asyncio.Future[None]]] = {}
        self._listeners: dict[Address, Listener] = {}
        self._next_port = FIRST_FREE_PORT
        self._transports: dict[SimTransport, None] = {}

    # -- faults --------------------------------------------------------------------------------------------------------

    def link(self, source: str, target: str) -> Link:
        """Return the link from one host to another."""
        found = self._links.get((source, target))
        if found is None:
            rng = self._stream(f"net {source} -> {target}")
            found = self._links[source, target] = Link(rng, self.fastest, self.slowest)
        return found

    def links(self, source: str, target: str, *, both_ways: bool = True) -> list[Link]:
        """Return the links between two hosts, by default those of both directions."""
        return [self.link(source, target), *([self.link(target, source)] if both_ways and source != target else [])]

    def cut(self, source: str, target: str, *, both_ways: bool = True) -> None:
        """Hold back all bytes from one host to another, by default in both directions."""
        self.trace(f"cut {source} -> {target}{' and back' if both_ways else ''}")
        for link in self.links(source, target, both_ways=both_ways):
            link.cut = True

    def slow(self, source: str, target: str, seconds: float, *, both_ways: bool = True) -> None:
        """Let each piece between two hosts take up to `seconds` longer."""
        self.trace(f"slow {source} -> {target} by {seconds} s{' and back' if both_ways else ''}")
        for link in self.links(source, target, both_ways=both_ways):
            link.slow_s = seconds

    def limit(self, source: str, target: str, bytes_per_s: float, *, both_ways: bool = True) -> None:
        """Let all connections between two hosts share this bandwidth in each direction."""
        self.trace(f"limit {source} -> {target} to {bytes_per_s} bytes/s{' and back' if both_ways else ''}")
        for link in self.links(source, target, both_ways=both_ways):
            link.bytes_per_s = bytes_per_s

    def heal(self, source: str | None = None, target: str | None = None, *, both_ways: bool = True) -> None:
        """End the faults of the links between two hosts, or of all links. Deliver what was held back."""
        if source is None or target is None:
            links = list(self._links.values())
        else:
            links = self.links(source, target, both_ways=both_ways)
        self.trace(f"heal {'everything' if source is None else f'{source} -> {target}'}")
        for link in links:
            link.heal()
        for transport in tuple(self._transports):
            if transport.link in links:
                transport.pump()

    def reset(self, host: str | None = None) -> None:
        """End all connections, or only those of one host, with an error on both sides."""
        for transport in tuple(self._transports):
            if host is None or host in (transport.host, transport.peer.host):
                transport.lose(ConnectionResetError(104, "connection reset by the network"))

    def drop(self, process: Process) -> None:
        """Free the ports of a dead process, and reset its connections."""
        self._close_listeners(lambda listener: listener.process is process)
        for transport in tuple(self._transports):
            if transport.process is process:
                transport.vanish()
                self.send_reset(transport)

    def power_off(self, host: str) -> None:
        """Disconnect a machine. Its peers notice nothing until they write after the next start."""
        self._close_listeners(lambda listener: listener.address[0] == host)
        self._off.setdefault(host, [])
        for transport in tuple(self._transports):
            if transport.host == host:
                transport.vanish()

    def power_on(self, host: str) -> None:
        """Connect a machine again. It resets the connections whose peers have sent bytes meanwhile."""
        waiters = self._off.pop(host, None)
        if waiters is None:
            return
        for transport in tuple(self._transports):
            if transport.peer.host == host and transport.peer.vanished and transport.get_write_buffer_size():
                self.send_reset(transport.peer)
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def has_power(self, host: str) -> bool:
        """Return whether a machine has power. Between `power_off` and `power_on`, it has none."""
        return host not in self._off

    def _close_listeners(self, closes: Callable[[Listener], bool]) -> None:
        for listener in tuple(self._listeners.values()):
            if closes(listener):
                self.close_listener(listener)

    def shut_down(self) -> None:
        """Mark all connections as lost, without calls to their protocols, because the world has ended."""
        for transport in self._transports:
            transport._lost = transport._closing = True

    # -- called by the loop --------------------------------------------------------------------------------------------

    def listen(self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> Listener:
        """Accept connections. Raises OSError if the address is in use."""
        process = current_process()
        if process is not None:
            host = process.host
        if port == 0:
            port = self._next_port
            self._next_port += 1
        if (host, port) in self._listeners:
            raise OSError(98, f"address already in use: {host}:{port}")
        listener = self._listeners[host, port] = Listener(self, process, factory, (host, port))
        return listener

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connect. During a cut, or if the target has no power, this waits.

        Raises ConnectionRefusedError if there is no listener at the address.
        """
        process = current_process()
        source = process.host if process is not None else "nowhere"
        there, back = self.link(source, host), self.link(host, source)
        await asyncio.sleep(there.latency())
        while there.cut or back.cut or host in self._off:
            await there.passable()
            await back.passable()
            if host in self._off:
                waiter = self.loop.create_future()
                self._off[host].append(waiter)
                await waiter
        listener = self._listeners.get((host, port))
        if listener is None or not listener.serving:
            raise ConnectionRefusedError(111, f"connection refused: {host}:{port}")
        self._next_port += 1
        protocol = factory()
        near = SimTransport(self, process, (source, self._next_port), protocol)
        far = SimTransport(self, listener.process, listener.address, listener.factory())
        near.join(far)
        far.join(near)
        self._transports[near] = self._transports[far] = None
        self.trace(f"connect {source} -> {host}:{port}")
        self.loop.call_soon(far.start, context=far.context)
        near.start()
        return near, protocol

    def close_listener(self, listener: Listener) -> None:
        """Free the address of a listener."""
        if self._listeners.get(listener.address) is listener:
            del self._listeners[listener.address]

    def forget(self, transport: SimTransport) -> None:
        """Remove one end of a connection."""
        self._transports.pop(transport, None)

    def read_changed(self, sender: SimTransport, part: memoryview) -> bool:
        """Handle the read of mapped pages whose content has changed. Return whether their process survives it."""
        pages = pages_of(part)
        assert pages is not None
        if pages.there == len(pages):
            self.trace(f"{sender.host} sends a part of a file that has changed")
            return True
        self.trace(f"{sender.host} reads beyond the end of a file: SIGBUS")
        self.on_bus_error(sender.process)
        return False

    def send_reset(self, end: SimTransport) -> None:
        """Reset the other end of a broken connection. During a cut, hold the reset back until `heal`."""
        link = end.peer.link
        if link.cut:
            link.held_resets.append(end.peer.receive_reset)
        else:
            end.peer.receive_reset()


class _Socket:
    """The part of a socket that callers use."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def getsockname(self) -> Address:
        """Return (host, port)."""
        return self._address


class Listener:
    """Replaces `asyncio.Server`."""

    def __init__(
        self,
        network: Network,
        process: Process | None,
        factory: Callable[[], asyncio.BaseProtocol],
        address: Address,
    ) -> None:
        self.network = network
        self.process = process
        self.factory = factory
        self.address = address
        self.sockets = (_Socket(address),)
        self.serving = False

    async def start_serving(self) -> None:
        """Accept connections from now on."""
        self.serving = True

    def close(self) -> None:
        """Stop accepting connections, and free the address."""
        self.network.close_listener(self)

    def is_serving(self) -> bool:
        """Return whether the listener accepts connections."""
        return self.serving and self.network._listeners.get(self.address) is self

    async def wait_closed(self) -> None:
        """Return at once."""


class SimTransport(asyncio.Transport):
    """One end of a connection."""

    peer: SimTransport
    link: Link
    """The link from the peer to this end."""

    def __init__(
        self, network: Network, process: Process | None, address: Address, protocol: asyncio.BaseProtocol
    ) -> None:
        super().__init__()
        self.process = process
        self.host = address[0]
        self.context = contextvars.copy_context() if process is None else context_of(process)
        self._network = network
        self._loop = network.loop
        self._address = address
        self._protocol: Any = protocol
        self._inbox: deque[tuple[float, bytes | None, memoryview | None]] = deque()
        """(arrival time, bytes or None for the end of the stream, mapped pages that the sender still reads or None)."""
        self._timer: asyncio.TimerHandle | None = None
        self._last_arrival = 0.0
        self._closing = False
        self._lost = False
        self.vanished = False
        """Whether the process of this end has died."""
        self._reading = True
        self._paused_writing = False

    def join(self, peer: SimTransport) -> None:
        """Connect this end to the other one."""
        self.peer = peer
        self.link = self._network.link(peer.host, self.host)

    def start(self) -> None:
        """Call the protocol's `connection_made`, unless the connection is lost already."""
        if not self._lost:
            self._protocol.connection_made(self)

    # -- writing -------------------------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send a copy of `data`. Mapped pages of a file are read when they arrive, as from a buffer that waits."""
        if self._closing or self._lost or not data:
            return
        pages = data if isinstance(data, memoryview) and pages_of(data) is not None else None
        self.peer.accept(bytes(data), pages)
        if self.peer.vanished and self._network.has_power(self.peer.host):
            self._network.send_reset(self.peer)
        if not self._paused_writing and self.get_write_buffer_size() > HIGH_WATER:
            self._paused_writing = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send a copy of all pieces."""
        for mapped, pieces in groupby(list_of_data, lambda piece: pages_of(piece) is not None):
            if mapped:
                for piece in pieces:
                    self.write(piece)
            else:
                self.write(b"".join(pieces))

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that the other side has not read."""
        return sum(len(data) for _, data, _ in self.peer._inbox if data is not None)

    def can_write_eof(self) -> bool:
        """Return False, because half-closed connections are not simulated."""
        return False

    def drained(self) -> None:
        """Let the protocol resume writing if the other side has read enough."""
        if self._paused_writing and not self._lost and self.get_write_buffer_size() <= HIGH_WATER // 4:
            self._paused_writing = False
            self._loop.call_soon(self._protocol.resume_writing, context=self.context)

    # -- reading -------------------------------------------------------------------------------------------------------

    def accept(self, data: bytes | None, pages: memoryview | None = None) -> None:
        """Deliver bytes, which may be mapped pages, to this end after a latency. None is the end of the stream."""
        size = 0 if data is None else len(data)
        self._last_arrival = max(self._last_arrival, self.link.arrival(self._loop.now, size))
        self._inbox.append((self._last_arrival, data, pages))
        self.pump()

    def pump(self) -> None:
        """Schedule the delivery of the next piece, if none is scheduled."""
        if self._timer is None and self._inbox and not self._lost:
            when = max(self._inbox[0][0], self._loop.now)
            self._timer = self._loop.call_at_world(when, self._arrive, context=self.context)

    def _arrive(self) -> None:
        self._timer = None
        if self._lost or not self._reading or self.link.cut:
            return
        _, data, pages = self._inbox.popleft()
        if pages is not None and (found := bytes(pages)) != data:
            if not self._network.read_changed(self.peer, pages):
                return
            data = found
        if data is None:
            self._network.trace(f"end of stream {self.peer.host} -> {self.host}")
            self._protocol.eof_received()
            self._inbox.clear()
            self._finish(None)
            return
        if len(data) > 1 and self.link.rng.random() < 0.1:
            split = self.link.rng.randrange(1, len(data))
            self._inbox.appendleft((self._loop.now, data[split:], pages and pages[split:]))
            data = data[:split]
        self._network.trace(f"{len(data)} bytes {self.peer.host} -> {self.host}")
        self._deliver(data)
        self.peer.drained()
        self.pump()

    def _deliver(self, data: bytes) -> None:
        if not isinstance(self._protocol, asyncio.BufferedProtocol):
            self._protocol.data_received(data)
            return
        while data and not self._lost:
            buffer = memoryview(self._protocol.get_buffer(len(data)))
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            data = data[size:]
            self._protocol.buffer_updated(size)
            if data and not self._reading:
                self._inbox.appendleft((self._loop.now, data, None))
                return

    def pause_reading(self) -> None:
        """Deliver no more bytes until reading resumes."""
        self._reading = False

    def resume_reading(self) -> None:
        """Deliver the waiting bytes, and further ones."""
        self._reading = True
        self.pump()

    def is_reading(self) -> bool:
        """Return whether bytes are delivered to the protocol."""
        return self._reading

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close this end. The other side gets all bytes that were sent, then the end of the stream."""
        if not self._closing and not self._lost:
            self._closing = True
            self.peer.accept(None)
            self._loop.call_soon(self._finish, None, context=self.context)

    def abort(self) -> None:
        """End the connection at once. The other side may lose the bytes that it has not read."""
        if not self._lost:
            self.lose(None)

    def lose(self, error: Exception | None) -> None:
        """Break the connection. The other side gets a reset after a latency."""
        self.peer.discard_pages()
        self._loop.call_soon(self._finish, error, context=self.context)
        self._network.send_reset(self)

    def discard_pages(self) -> None:
        """Drop the bytes that the peer still had to read from mapped pages, and all bytes after them."""
        for index, (_, _, pages) in enumerate(self._inbox):
            if pages is not None:
                while len(self._inbox) > index:
                    self._inbox.pop()
                return

    def vanish(self) -> None:
        """Remove this end without a call to its protocol, because its process is dead. The other end remains."""
        if not self._lost:
            self._lost = self._closing = self.vanished = True
            self._inbox.clear()
            self.peer.discard_pages()
            self._network.forget(self)

    def receive_reset(self) -> None:
        """End the connection with a ConnectionResetError after a latency."""
        self._loop.call_at_world(
            self._loop.now + self.link.latency(),
            self._finish,
            ConnectionResetError(104, "connection reset by peer"),
            context=self.context,
        )

    def _finish(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = self._closing = True
        self._inbox.clear()
        self._network.forget(self)
        self._network.trace(f"{self.host} lost its connection to {self.peer.host}: {error}")
        self._protocol.connection_lost(error)

    def is_closing(self) -> bool:
        """Return whether the connection is closing or has ended."""
        return self._closing

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol of this end."""
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Replace the protocol of this end."""
        self._protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the address for `sockname` and `peername`, and `default` for any other name."""
        return {"sockname": self._address, "peername": self.peer._address}.get(name, default)
