"""The proxy: a listener for each broker, in a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from oncelog.faults.addresses import REWRITTEN, Response, brokers, limit_versions, node_id, topic_names
from oncelog.faults.held import Held, HeldRequests
from oncelog.faults.link import Link
from oncelog.faults.requests import UNREADABLE, Request
from oncelog.faults.rules import PASSED, Action, Fault, Rule, parse_fault
from oncelog.faults.streams import CutError, Stream
from oncelog.protocol.addresses import MOST_PORT, bracketed, parse_address

CONNECT_S = 10.0
"""How long a connection to a broker may take."""
MOST_CONNECTIONS = 2_000
"""Connections of clients at a time. Further ones are closed at once."""
MOST_SEEN, MOST_SEEN_BYTES = 10_000, 64 << 20
"""Requests that `FaultProxy.seen` remembers, and the bytes in them."""
MOST_TOPICS = 100_000
"""Topics whose ids the proxy remembers."""

logger = logging.getLogger("oncelog.faults")

T = TypeVar("T")


class _Route:
    """A listener, and the broker behind it."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.broker: int | None = None
        self.listening = -1
        """The port of the listener."""


class _Behind(NamedTuple):
    """The proxy as the links of one route see it."""

    proxy: FaultProxy
    route: _Route
    hold: Callable[[Held], bool]

    def decide(self, frame: bytes) -> tuple[Request, Fault]:
        return self.proxy.decide(self.route, frame)

    async def rewrite(self, request: Request, frame: bytes, host: str) -> bytes:
        return await self.proxy.rewrite(request, frame, host)


class FaultProxy:
    """Stand between Kafka clients and one broker or a cluster, and make the faults that rules ask for.

        with FaultProxy("localhost:9092", "lose-answer Produce:1") as faults:
            run_my_service(faults.bootstrap_servers)

    `rules` are texts, see `oncelog.faults.rules`: the first one with a fault for a request applies. Responses name the
    proxy's addresses instead of the brokers', so that clients reach each broker through it. A client that uses TLS
    cannot be read, and is disconnected. Connections with SASL_PLAINTEXT work.

    `listen` is the address for `bootstrap_servers`; port 0 is any free port. Raises RuleError for an invalid rule, and
    OSError if the address is not free.
    """

    def __init__(self, bootstrap_servers: str, *rules: str, listen: str = "127.0.0.1:0") -> None:
        self._targets = [_address(text) for text in bootstrap_servers.split(",")]
        self._listen = _address(listen)
        self._rules = [Rule(text) for text in rules]
        self.rule: Callable[[Request], str | Fault | None] | None = None
        """A function that is asked first. It returns a fault, also as a text without API, or None. It must be fast,
        because all connections wait for it."""
        self._seen: deque[tuple[Request, Fault]] = deque()
        self._seen_bytes = 0
        self._counts: dict[int, int] = {}
        self._topic_names: dict[UUID, str] = {}
        self._routes: list[_Route] = []
        self._servers: list[asyncio.Server] = []
        self._clients: dict[Stream, asyncio.Task[None]] = {}
        self._held = HeldRequests()
        self._lock = threading.RLock()
        """Guards the rules, and what is seen."""
        self._listening = asyncio.Lock()
        """Held while a listener starts, so that a broker gets one."""
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread | None = None

    # -- what a test calls --------------------------------------------------------------------------------------------

    def __enter__(self) -> FaultProxy:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Listen. `bootstrap_servers` is known afterwards."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="oncelog-faults", daemon=True)
        self._thread.start()
        try:
            self._call(self._start())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close all connections. Held requests are lost."""
        if self._thread is not None:
            self._call(self._stop())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._thread = None
            self._loop.close()

    @property
    def bootstrap_servers(self) -> str:
        """The addresses that clients connect to."""
        return ",".join(
            f"{bracketed(self._listen[0])}:{route.listening}" for route in self._routes[: len(self._targets)]
        )

    @property
    def seen(self) -> list[Request]:
        """The requests so far, in the order of their arrival; at most the last 10,000, and 64 MiB of them."""
        with self._lock:
            return [request for request, _ in self._seen]

    @property
    def made(self) -> list[tuple[Request, Fault]]:
        """Those of `seen` that met a fault."""
        with self._lock:
            return [(request, fault) for request, fault in self._seen if fault.action is not Action.PASS]

    def add(self, rule: str) -> None:
        """Add a rule after the others. Its numbers count from now on. Raises RuleError."""
        made = Rule(rule)
        with self._lock:
            self._rules.append(made)

    def clear(self) -> None:
        """Remove all rules, and `rule`."""
        with self._lock:
            self._rules.clear()
            self.rule = None

    def release(self) -> int:
        """Let the held requests arrive, one after the other. Return how many the brokers have answered."""
        return self._call(self._held.release())

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        done: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return done.result()

    # -- what a link calls --------------------------------------------------------------------------------------------

    def decide(self, route: _Route, frame: bytes) -> tuple[Request, Fault]:
        """Return the request in a frame, and its fault."""
        request = Request(frame, route.broker, self._topic_names)
        with self._lock:
            if request.api is not None:
                request.number = self._counts[request.api] = self._counts.get(request.api, 0) + 1
            fault = self._fault(request)
            self._seen.append((request, fault))
            self._seen_bytes += len(frame)
            while len(self._seen) > MOST_SEEN or (self._seen_bytes > MOST_SEEN_BYTES and len(self._seen) > 1):
                self._seen_bytes -= len(self._seen.popleft()[0].frame)
        if fault is not PASSED:
            logger.info("%s: %s", fault.action, request)
        return request, fault

    def _fault(self, request: Request) -> Fault:
        faults = [rule.fault(request) for rule in self._rules]  # each one counts
        try:
            chosen = None if self.rule is None else self.rule(request)
            chosen = parse_fault(chosen) if isinstance(chosen, str) else chosen
        except Exception as error:  # a test wants to read it
            raise CutError(f"the function `rule` has failed for {request}: {error!r}") from error
        return next((fault for fault in (chosen, *faults) if fault is not None), PASSED)

    async def rewrite(self, request: Request, frame: bytes, host: str) -> bytes:
        """Return a response with the proxy's addresses. One that cannot be read stays as it is."""
        if request.api not in REWRITTEN:
            return frame
        try:
            response = Response(frame, request.api, request.version)
        except UNREADABLE:
            return frame
        self._topic_names.update(topic_names(response.message))
        if len(self._topic_names) > MOST_TOPICS:
            self._topic_names.clear()
        changed = limit_versions(response.message)
        ours = {(host, route.listening) for route in self._routes}
        for broker in brokers(response.message):
            if (broker.host, broker.port) in ours:  # the broker advertises the proxy
                continue
            route = await self._route(node_id(broker), (broker.host, broker.port))
            broker.host, broker.port = host, route.listening
            changed = True
        return response.encode() if changed else frame

    # -- on the event loop --------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        port = self._listen[1]
        for host, target in self._targets:
            route = _Route(host, target)
            await self._serve(route, port)
            port = 0

    async def _serve(self, route: _Route, port: int) -> None:
        self._routes.append(route)

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            client = Stream(reader, writer)
            if len(self._clients) >= MOST_CONNECTIONS:
                client.abort()
                return
            task = self._clients[client] = self._loop.create_task(self._link(route, client))
            task.add_done_callback(lambda _: self._ended(client))

        server = await asyncio.start_server(accept, self._listen[0], port)
        self._servers.append(server)
        route.listening = server.sockets[0].getsockname()[1]

    async def _route(self, broker: int, address: tuple[str, int]) -> _Route:
        """Return the route to a broker, at its newest address. Listen for a broker that is new."""
        async with self._listening:
            known = next((route for route in self._routes if route.broker == broker), None)
            known = known or next((route for route in self._routes if (route.host, route.port) == address), None)
            if known is None:
                known = _Route(*address)
                await self._serve(known, 0)
            known.broker = broker
            known.host, known.port = address
            return known

    async def _link(self, route: _Route, client: Stream) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                upstream = Stream(*await asyncio.open_connection(route.host, route.port))
        except (OSError, TimeoutError):
            return  # the connection closes, so the client sees what it would see without the proxy: no broker
        reason = await Link(_Behind(self, route, self._held.keep), client, upstream).run()
        if reason:
            logger.warning("closed a connection: %s", reason)

    def _ended(self, client: Stream) -> None:
        del self._clients[client]
        client.close()

    async def _stop(self) -> None:
        for server in self._servers:
            server.close()
        for client in self._clients:
            client.abort()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._held.close()
        await asyncio.sleep(0)  # the sockets close


def _address(text: str) -> tuple[str, int]:
    address = parse_address(text.strip())
    if address is None or not address[0]:
        raise ValueError(f"{text!r} is not an address; write HOST:PORT, with a port of at most {MOST_PORT}")
    return address
