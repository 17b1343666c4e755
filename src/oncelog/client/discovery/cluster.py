"""A cluster as a client sees it: bootstrap, metadata, and requests to the broker that they are for.

`ClusterClient` is what producer, consumer, admin, the Spark shell and the command line stand on. Its `call_*` methods
take a request message (`ByVersion` where its form depends on the receiver's version) and return the response message;
errors that pass by themselves (a leader or coordinator that moves, a lost connection, a transaction that is still being
ended) are tried again, with back-off, until time is up. Other error codes stay in the response:
`oncelog.client.response_errors.raise_for_error` turns them into exceptions.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from oncelog import errors
from oncelog.client.calls import Calls
from oncelog.client.connections.backoff import Backoff
from oncelog.client.connections.pool import Connections, Outage, parse_bootstrap
from oncelog.client.connections.versions import Request, for_connection
from oncelog.client.discovery.topology import Partition, Topic, Topology
from oncelog.client.response_errors import first_error
from oncelog.net.connection import ClientConnection, ConnectionLostError, NoCommonVersionError
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.find_coordinator import FindCoordinatorRequest
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

if TYPE_CHECKING:
    from types import TracebackType

T = TypeVar("T")

GROUP = 0
"""Kind of coordinator: of consumer groups."""
TRANSACTION = 1
"""Kind of coordinator: of transactional ids."""
KINDS = {"group": GROUP, "transaction": TRANSACTION}

MISSING_TOPIC_MS = 5_000
"""How long a topic that nobody knows is asked for again: one just created is not known everywhere yet."""

COORDINATOR_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
LEADER_MOVED = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)
"""Errors that mean that our metadata may be old."""

NO_SUCH_TOPIC = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
"""From a leader: metadata are old. From anybody else: an answer."""


class ClusterClient:
    """Connections to the brokers of one cluster, created on demand, and a cache of its topics.

    Use as `async with ClusterClient("localhost:9092") as cluster`, in a single event loop. `api_timeout_ms` bounds each
    `call_*` with all its attempts, unless the call has its own `timeout_ms`. Until a broker has answered for the first
    time, the bound is `first_contact_ms`, because no broker answers at a mistyped address. If no broker knows a topic,
    the client retries for `missing_topic_ms`. `chance` returns random numbers in [0, 1).
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str],
        *,
        client_id: str = "oncelog",
        request_timeout_ms: int = 30_000,
        api_timeout_ms: int = 60_000,
        connect_timeout_ms: int = 10_000,
        retry_backoff_ms: int = 50,
        retry_backoff_max_ms: int = 1_000,
        metadata_max_age_ms: int = 300_000,
        reconnect_backoff_ms: int = 50,
        reconnect_backoff_max_ms: int = 1_000,
        connections_max_idle_ms: int = 540_000,
        first_contact_ms: int | None = None,
        missing_topic_ms: int = MISSING_TOPIC_MS,
        what: str = "client",
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.calls = Calls(what)
        """Calls of the client's user that `close` ends."""
        self.bootstrap = parse_bootstrap(bootstrap_servers)
        self.client_id = client_id
        self.request_timeout_ms = request_timeout_ms
        self.api_timeout_ms = api_timeout_ms
        self.connect_timeout_ms = connect_timeout_ms
        self.first_contact_ms = api_timeout_ms if first_contact_ms is None else first_contact_ms
        self.missing_topic_ms = missing_topic_ms
        self._backoff = (retry_backoff_ms, retry_backoff_max_ms)
        self._max_age = metadata_max_age_ms / 1000
        self.topology = Topology()
        self._connections = Connections(
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            connect_timeout_ms=connect_timeout_ms,
            reconnect_backoff_ms=reconnect_backoff_ms,
            reconnect_backoff_max_ms=reconnect_backoff_max_ms,
            max_idle_ms=connections_max_idle_ms,
            chance=chance,
        )
        self._chance = chance
        self._coordinators: dict[tuple[int, str], int] = {}
        self._refreshing: dict[tuple[frozenset[str] | None, bool], asyncio.Task[None]] = {}
        self._refreshed_at = float("-inf")
        self._outage = Outage()

    async def __aenter__(self) -> ClusterClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End all calls in progress, and close all connections."""
        self.calls.close()
        await self._connections.close(self._refreshing.values())

    # -- connections ----------------------------------------------------------------------------------------------

    async def connection(self, node_id: int, purpose: str = "") -> ClientConnection:
        """A live connection to a broker; those of different `purpose` (a consumer's waiting fetches, its group) differ.

        ConnectionFailedError when the broker cannot be reached or is not known.
        """
        self.calls.check()
        found = self.open_connection(node_id, purpose)
        if found is not None:
            return found
        address = self.topology.brokers.get(node_id)
        if address is None:
            raise errors.ConnectionFailedError(f"broker {node_id} is not in the cluster's metadata")
        try:
            return await self._connections.get((node_id, purpose), address)
        except ConnectionLostError as error:
            raise errors.ConnectionFailedError(f"broker {node_id}: {error}") from error

    def open_connection(self, node_id: int, purpose: str = "") -> ClientConnection | None:
        """The connection to a broker if there is one already."""
        return self._connections.find((node_id, purpose))

    async def _any_connection(self) -> ClientConnection:
        """Return a connection to any broker: the least loaded open one, otherwise a new one.

        So different brokers answer, and the client does not ask the same slow broker each time.
        """
        self.calls.check()
        found = self._connections.least_loaded()
        if found is not None:
            self._outage.over()
            return found
        try:
            found = await self._connections.get_any((-1, ""), [*self.topology.brokers.values(), *self.bootstrap])
        except ConnectionLostError as error:
            what = f"no broker can be reached: {error}"
            self._outage.failed(what, asyncio.get_running_loop().time())
            raise errors.ConnectionFailedError(what) from error
        self._outage.over()
        return found

    @property
    def unreachable(self) -> str:
        """Why the last attempt to reach a broker failed; empty if it succeeded."""
        return self._outage.reason

    async def reach(self, timeout_ms: float) -> None:
        """Be connected to some broker within this time; ConnectionFailedError names addresses."""
        await self._retry(self._any_connection, timeout_ms)

    async def features(self) -> dict[str, int]:
        """The cluster's finalized features, as `{"transaction.version": 2, ...}`."""
        return (await self._retry(self._any_connection, None)).features

    # -- metadata -------------------------------------------------------------------------------------------------

    async def refresh(
        self, topics: Iterable[str] | None = None, *, create: bool = False, patient: bool = False
    ) -> None:
        """Ask for brokers and some topics (None: all); equal calls at a time are one; topics' errors are kept.

        ConnectionFailedError at once when no broker can be reached; `patient`: after api_timeout_ms of trying.
        """
        key = (None if topics is None else frozenset(topics), create)
        if patient:
            await self._retry(lambda: self.refresh(key[0], create=create), None)
            return
        task = self._refreshing.get(key)
        if task is None:
            task = asyncio.ensure_future(self._refresh(key[0], create))
            self._refreshing[key] = task
            task.add_done_callback(lambda done: self._refreshed(key, done))
        await asyncio.shield(task)

    def _refreshed(self, key: tuple[frozenset[str] | None, bool], task: asyncio.Task[None]) -> None:
        self._refreshing.pop(key, None)
        if not task.cancelled():
            task.exception()  # whoever waited may have had no more time for it

    async def _refresh(self, topics: frozenset[str] | None, create: bool) -> None:
        wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in sorted(topics)]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=create)
        connection = await self._any_connection()
        try:
            response: MetadataResponse = await connection.call(request)
        except ConnectionLostError as error:
            raise errors.ConnectionFailedError(str(error)) from error
        self.topology.update(response, everything=topics is None)
        self._refreshed_at = asyncio.get_running_loop().time()

    async def topic(
        self,
        name: str,
        *,
        create: bool = False,
        timeout_ms: float | None = None,
        missing_ms: float | None = None,
        partition: int = 0,
    ) -> Topic:
        """Return a topic with this partition. Request metadata if it is unknown. Raises UnknownTopicError and others.

        If a broker answers that the topic or partition does not exist, retry for `missing_ms` from that answer on
        (default: as for all topics).
        """
        now = asyncio.get_running_loop().time
        found = self.topology.topics.get(name)
        if found is not None and partition in found.partitions and now() - self._refreshed_at < self._max_age:
            return found
        missing_ms = self.missing_topic_ms if missing_ms is None else missing_ms
        begun = now()
        limit = begun + (self.api_timeout_ms if timeout_ms is None else timeout_ms) / 1000
        answered = None
        backoff = self._new_backoff()
        while True:
            await self._retry(lambda: self.refresh([name], create=create), timeout_ms, begun)
            answered = now() if answered is None else answered
            found = self.topology.topics.get(name)
            if found is not None and partition in found.partitions:
                return found
            code = self.topology.failures.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            delay = backoff.next_ms(self._chance()) / 1000
            if not code.retriable or now() + delay > min(limit, answered + missing_ms / 1000):
                if found is not None:
                    last = len(found.partitions) - 1
                    raise errors.UnknownTopicError(f"topic {name!r} has partitions 0 to {last}, not {partition}")
                raise errors.error_for(code, f"topic {name!r}: {code.text}")
            await asyncio.sleep(delay)

    async def partition(self, topic: str, partition: int, *, timeout_ms: float | None = None) -> Partition:
        """Return leader and epoch of a partition. Raises UnknownTopicError if the topic has no such partition."""
        return (await self.topic(topic, timeout_ms=timeout_ms, partition=partition)).partitions[partition]

    async def topics(self, *, internal: bool = False) -> dict[str, Topic]:
        """All topics by name."""
        await self._retry(self.refresh, None)
        return {name: topic for name, topic in self.topology.topics.items() if internal or not topic.internal}

    async def brokers(self) -> dict[int, tuple[str, int]]:
        """Address by node id of all brokers."""
        await self._retry(lambda: self.refresh([]), None)
        return dict(self.topology.brokers)

    async def require_broker(self, node_id: int) -> None:
        """RequestError (BROKER_ID_NOT_REGISTERED) at once if the cluster has no such broker, or it is away."""
        known = await self.brokers()
        if node_id not in known:
            there = ", ".join(map(str, sorted(known)))
            raise errors.error_for(
                ErrorCode.BROKER_ID_NOT_REGISTERED, f"there is no broker {node_id}, or it is away; there are: {there}"
            )

    # -- calls ----------------------------------------------------------------------------------------------------

    async def call_any(self, request: Request, version: int | None = None, *, timeout_ms: float | None = None) -> Any:
        """The response of whichever broker answers."""
        return await self._answered(request, self._any_connection, version, timeout_ms)

    async def call_broker(
        self, node_id: int, request: Request, version: int | None = None, *, timeout_ms: float | None = None
    ) -> Any:
        """One broker's response; one that is away is waited for, wherever it comes back."""
        lost = False

        async def where() -> ClientConnection:
            if lost or node_id not in self.topology.brokers:
                await self.refresh([])
            return await self.connection(node_id)

        def failed(code: ErrorCode) -> None:
            nonlocal lost
            lost = code is ErrorCode.NETWORK_EXCEPTION

        return await self._answered(request, where, version, timeout_ms, failed)

    async def call_controller(
        self, request: Request, version: int | None = None, *, timeout_ms: float | None = None
    ) -> Any:
        """The response of the controller (in KRaft, of a broker that passes the request on)."""

        async def where() -> ClientConnection:
            if self.topology.controller_id not in self.topology.brokers:
                await self.refresh([])
            return await self.connection(self.topology.controller_id)

        def moved(code: ErrorCode) -> None:
            if code is ErrorCode.NOT_CONTROLLER:
                self.topology.controller_id = -1

        return await self._answered(request, where, version, timeout_ms, moved)

    async def call_leader(
        self,
        topic: str,
        partition: int,
        request: Request,
        version: int | None = None,
        *,
        timeout_ms: float | None = None,
    ) -> Any:
        """The response of a partition's leader to a request about that partition."""

        async def where() -> ClientConnection:
            leader = (await self.partition(topic, partition)).leader
            if leader < 0:
                self.topology.forget(topic)
                raise errors.error_for(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{partition} has no leader")
            return await self.connection(leader)

        def moved(code: ErrorCode) -> None:
            if code in LEADER_MOVED or code is ErrorCode.NETWORK_EXCEPTION:
                self.topology.forget(topic)

        return await self._answered(request, where, version, timeout_ms, moved, about_topic=True)

    async def call_coordinator(
        self,
        kind: str,
        key: str,
        request: Request,
        version: int | None = None,
        *,
        timeout_ms: float | None = None,
    ) -> Any:
        """The response of the coordinator (`kind` "group" or "transaction") of a group or transactional id."""
        slot = (KINDS[kind], key)

        async def where() -> ClientConnection:
            return await self.connection(await self.coordinator(kind, key))

        def moved(code: ErrorCode) -> None:
            if code in COORDINATOR_MOVED or code is ErrorCode.NETWORK_EXCEPTION:
                self._coordinators.pop(slot, None)

        return await self._answered(request, where, version, timeout_ms, moved)

    async def coordinator(self, kind: str, key: str) -> int:
        """Node id of the coordinator of a group or transactional id, one attempt; KafkaError."""
        found = self.known_coordinator(kind, key)
        if found is not None:
            return found
        connection = await self._any_connection()
        request = FindCoordinatorRequest(key_type=KINDS[kind])
        version = connection.version_for(FindCoordinatorRequest)
        if version < 4:
            request.key = key
        else:
            request.coordinator_keys = [key]
        try:
            response = await connection.call(request, version)
        except ConnectionLostError as error:
            raise errors.ConnectionFailedError(str(error)) from error
        answer = response if version < 4 else response.coordinators[0]
        if answer.error_code:
            raise errors.error_for(answer.error_code, f"coordinator of {kind} {key!r}: {answer.error_message or ''}")
        self.learn_coordinator(kind, key, answer)
        return int(answer.node_id)

    def known_coordinator(self, kind: str, key: str) -> int | None:
        """Return the cached node id of the coordinator, if any."""
        found = self._coordinators.get((KINDS[kind], key))
        return found if found in self.topology.brokers else None

    def learn_coordinator(self, kind: str, key: str, answer: Any) -> None:
        """Cache a coordinator and its address from an answer to FindCoordinator."""
        self.topology.brokers[answer.node_id] = (answer.host, answer.port)
        self._coordinators[KINDS[kind], key] = answer.node_id

    def forget_coordinator(self, kind: str, key: str) -> None:
        """Look the coordinator up again before its next request."""
        self._coordinators.pop((KINDS[kind], key), None)

    # -- retries --------------------------------------------------------------------------------------------------

    def _new_backoff(self) -> Backoff:
        return Backoff(*self._backoff)

    def patience(self, timeout_ms: float | None) -> float:
        """Seconds for which what fails is tried again."""
        if timeout_ms is None:
            timeout_ms = self.api_timeout_ms
            if not self._outage.reached:
                timeout_ms = min(timeout_ms, self.first_contact_ms)
        return timeout_ms / 1000

    async def _answered(
        self,
        request: Request,
        where: Callable[[], Awaitable[ClientConnection]],
        version: int | None,
        timeout_ms: float | None,
        moved: Callable[[ErrorCode], None] | None = None,
        *,
        about_topic: bool = False,
    ) -> Any:
        """The response, once it is there without an error that passes by itself, or when time is up with it."""
        now = asyncio.get_running_loop().time
        begun = now()
        limit = begun + (self.api_timeout_ms if timeout_ms is None else timeout_ms) / 1000
        backoff = self._new_backoff()
        failure: errors.KafkaError | None = None
        while True:
            response: Any = None
            try:
                connection = await self._in_time(where, timeout_ms, begun, failure)
                left = max(1.0, min((limit - now()) * 1000, self.request_timeout_ms))
                message, chosen = for_connection(request, version, connection)
                response = await connection.call(message, chosen, timeout_ms=left)
                code = first_error(response)
                if not code.retriable or (code in NO_SUCH_TOPIC and not about_topic):
                    return response
                failure = errors.error_for(code, f"{type(message).__name__}: {code.text}")
            except ConnectionLostError as error:
                failure = errors.ConnectionFailedError(str(error))
            except NoCommonVersionError as error:
                raise errors.UnsupportedError(str(error)) from error
            except errors.UnknownTopicError:
                raise
            except errors.RetriableError as error:
                failure = error
            if moved is not None:
                moved(failure.code)
            delay = backoff.next_ms(self._chance()) / 1000
            if now() + delay >= begun + self.patience(timeout_ms):
                if response is not None:
                    return response
                raise failure
            await asyncio.sleep(delay)

    async def _retry(
        self, attempt: Callable[[], Awaitable[T]], timeout_ms: float | None, begun: float | None = None
    ) -> T:
        now = asyncio.get_running_loop().time
        begun = now() if begun is None else begun
        backoff = self._new_backoff()
        failure: errors.KafkaError | None = None
        while True:
            try:
                return await self._in_time(attempt, timeout_ms, begun, failure)
            except errors.ConnectionFailedError as error:
                failure = error
                delay = backoff.next_ms(self._chance()) / 1000
                if now() + delay >= begun + self.patience(timeout_ms):
                    raise
                await asyncio.sleep(delay)

    async def _in_time(
        self,
        attempt: Callable[[], Awaitable[T]],
        timeout_ms: float | None,
        begun: float,
        failure: errors.KafkaError | None,
    ) -> T:
        """What an attempt finds; when a caller's time is over the `failure` before it, or ConnectionFailedError: an
        address that swallows packets would take as long as it may take to connect.
        """
        try:
            async with asyncio.timeout_at(None if timeout_ms is None else begun + timeout_ms / 1000) as scope:
                return await attempt()
        except TimeoutError:
            if not scope.expired():
                raise
            known = dict.fromkeys([*self.bootstrap, *self.topology.brokers.values()])
            names = ", ".join(f"{host}:{port}" for host, port in known)
            what = self.unreachable or f"no connection in {timeout_ms:.0f} ms; known brokers: {names}"
            raise failure or errors.ConnectionFailedError(what) from None
