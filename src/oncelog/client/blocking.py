"""From blocking code to the asyncio client: one background thread a process runs the event loop for all clients.

A process that was forked (PySpark's daemon does) finds its parent's thread gone: the next client made gets a fresh one.
Clients made before the fork belong to the parent and must not be used by the child.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from oncelog import errors
from oncelog.client.cluster import ClusterClient, gather_brokers
from oncelog.client.topology import Partition, Topic, Topology
from oncelog.protocol.schema import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")


class LoopThread:
    """An event loop in a daemon thread; `LoopThread.shared()` is the process's."""

    _shared: ClassVar[LoopThread | None] = None
    _guard: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        self.process_id = os.getpid()
        self.loop = _new_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), name="oncelog-client", daemon=True)
        self._thread.start()
        started.wait()

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.call_soon(started.set)
        self.loop.run_forever()

    @classmethod
    def shared(cls) -> LoopThread:
        """This process's loop, started when first asked for (and anew after a fork)."""
        with cls._guard:
            if cls._shared is None or cls._shared.process_id != os.getpid():
                cls._shared = LoopThread()
            return cls._shared

    @classmethod
    def _forked(cls) -> None:
        cls._guard = threading.Lock()
        cls._shared = None

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the loop and return its result; an interrupt (Ctrl-C) cancels it."""
        try:
            self.refuse_its_own("a blocking call")
        except errors.UsageError:
            work.close()
            raise
        future = self.start(work)
        try:
            return future.result(timeout)
        except concurrent.futures.CancelledError:
            raise errors.UsageError("the client was closed while this call waited") from None
        except BaseException:
            future.cancel()
            raise

    def start(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Have a coroutine run on the loop while this thread goes on; UsageError in a forked child."""
        if self.process_id != os.getpid():
            work.close()
            raise errors.UsageError("this client was made before a fork: make a new one in the child process")
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def refuse_its_own(self, what: str) -> None:
        """UsageError on the loop's own thread: what waits there waits for ever."""
        if threading.current_thread() is self._thread:
            raise errors.UsageError(f"{what} inside the client's own event loop: use oncelog.aio there")

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Have a plain function called on the loop soon."""
        with contextlib.suppress(RuntimeError):  # the loop is gone: the interpreter is shutting down
            self.loop.call_soon_threadsafe(function, *args)


os.register_at_fork(after_in_child=LoopThread._forked)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class BlockingCluster:
    """`ClusterClient` for blocking code: same names, same arguments. Use as a context manager."""

    def __init__(self, bootstrap_servers: str | Iterable[str], **options: Any) -> None:
        self._thread = LoopThread.shared()
        self.cluster = ClusterClient(bootstrap_servers, **options)

    def __enter__(self) -> BlockingCluster:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up everywhere."""
        self._thread.run(self.cluster.close())

    @property
    def topology(self) -> Topology:
        """What is known of brokers and topics."""
        return self.cluster.topology

    def reach(self, timeout_ms: float) -> None:
        """See `ClusterClient.reach`."""
        self._thread.run(self.cluster.reach(timeout_ms))

    def features(self) -> dict[str, int]:
        """See `ClusterClient.features`."""
        return self._thread.run(self.cluster.features())

    def refresh(
        self, topics: Iterable[str] | None = None, *, create: bool = False, patient: bool = False
    ) -> None:
        """See `ClusterClient.refresh`."""
        self._thread.run(self.cluster.refresh(topics, create=create, patient=patient))

    def topic(self, name: str, *, create: bool = False, timeout_ms: float | None = None) -> Topic:
        """See `ClusterClient.topic`."""
        return self._thread.run(self.cluster.topic(name, create=create, timeout_ms=timeout_ms))

    def partition(self, topic: str, partition: int) -> Partition:
        """See `ClusterClient.partition`."""
        return self._thread.run(self.cluster.partition(topic, partition))

    def topics(self, *, internal: bool = False) -> dict[str, Topic]:
        """See `ClusterClient.topics`."""
        return self._thread.run(self.cluster.topics(internal=internal))

    def brokers(self) -> dict[int, tuple[str, int]]:
        """See `ClusterClient.brokers`."""
        return self._thread.run(self.cluster.brokers())

    def coordinator(self, kind: str, key: str) -> int:
        """See `ClusterClient.coordinator`."""
        return self._thread.run(self.cluster.coordinator(kind, key))

    def call_any(self, request: Message, version: int | None = None, *, timeout_ms: float | None = None) -> Any:
        """See `ClusterClient.call_any`."""
        return self._thread.run(self.cluster.call_any(request, version, timeout_ms=timeout_ms))

    def call_broker(
        self, node_id: int, request: Message, version: int | None = None, *, timeout_ms: float | None = None
    ) -> Any:
        """See `ClusterClient.call_broker`."""
        return self._thread.run(self.cluster.call_broker(node_id, request, version, timeout_ms=timeout_ms))

    def call_brokers(self, make: Callable[[], Message], nodes: Sequence[int] | None = None) -> dict[int, Any]:
        """One request to every broker (or to `nodes`), at the same time: response by node id."""
        return self._thread.run(gather_brokers(self.cluster, make, nodes))

    def call_controller(
        self, request: Message, version: int | None = None, *, timeout_ms: float | None = None
    ) -> Any:
        """See `ClusterClient.call_controller`."""
        return self._thread.run(self.cluster.call_controller(request, version, timeout_ms=timeout_ms))

    def call_leader(
        self,
        topic: str,
        partition: int,
        request: Message,
        version: int | None = None,
        *,
        timeout_ms: float | None = None,
    ) -> Any:
        """See `ClusterClient.call_leader`."""
        return self._thread.run(
            self.cluster.call_leader(topic, partition, request, version, timeout_ms=timeout_ms)
        )

    def call_coordinator(
        self,
        kind: str,
        key: str,
        request: Message,
        version: int | None = None,
        *,
        timeout_ms: float | None = None,
    ) -> Any:
        """See `ClusterClient.call_coordinator`."""
        return self._thread.run(
            self.cluster.call_coordinator(kind, key, request, version, timeout_ms=timeout_ms)
        )

    def start(self, call: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Begin a call of `self.cluster`; its result, or exception, comes with the future."""
        return self._thread.start(call)

    def run_many(self, calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Run coroutines of `self.cluster` at the same time; their results in order, or the first exception."""
        return self._thread.run(_together(calls))


async def _together(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    return list(await asyncio.gather(*calls))
