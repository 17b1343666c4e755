"""The loop that sends: turn the accumulator's batches into Produce requests, and the responses into outcomes.

A turn of the sender: expire old batches, settle sequences in doubt, drain batches, send them. Requests to coordinators
(`coordinator_driver`) and lookups of leaders and connections (`routes`) run in tasks beside the turns.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from oncelog import errors
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.discovery.slow_answers import unanswered
from oncelog.client.metrics.sends import Sends
from oncelog.client.producer import produce_requests as produce
from oncelog.client.producer.accumulator import Accumulator
from oncelog.client.producer.batch import Batch
from oncelog.client.producer.buffer import RecordBuffer
from oncelog.client.producer.coordinator_driver import CoordinatorDriver
from oncelog.client.producer.routes import Routes
from oncelog.client.producer.sender_loop import SenderLoop
from oncelog.client.producer.transaction_manager import TransactionManager
from oncelog.client.troubles import SILENT_SECONDS, Troubles
from oncelog.net.connection import NoCommonVersionError
from oncelog.net.failures import ConnectionLostError
from oncelog.protocol.errors import ErrorCode

log = logging.getLogger("oncelog.client.producer")


class Sender:
    """Send batches, on the event loop of `sender_loop` (Kafka's Sender)."""

    def __init__(
        self,
        cluster: ClusterClient,
        options: Mapping[str, Any],
        buffer: RecordBuffer,
        accumulator: Accumulator,
        manager: TransactionManager | None,
        sender_loop: SenderLoop,
        *,
        routes: Routes,
        coordinator: CoordinatorDriver | None,
        sends: Sends,
        troubles: Troubles,
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._buffer = buffer
        self._accumulator = accumulator
        self._manager = manager
        self._sender_loop = sender_loop
        self._routes = routes
        self._coordinator = coordinator
        self._sends = sends
        self._troubles = troubles
        self._acks: int = options["acks"]
        self._max_in_flight: int = options["max_in_flight_requests_per_connection"]
        self.in_flight: dict[int, int] = {}
        """Unanswered requests by broker."""
        self._asked_ms: dict[int, deque[int]] = {}
        """When each unanswered request was sent, by broker, oldest first."""
        self._slow: set[int] = set()
        """Brokers whose missing response is recorded in `troubles`."""
        self._on_wire: dict[Batch, None] = {}
        routes.rejected = self._reject
        sender_loop.start(self._turn)

    # -- turns ----------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        try:
            self._take_turn()
        except Exception as fault:  # noqa: BLE001 without an outcome, every call that waits would wait forever
            self._fail(fault)

    def _fail(self, fault: Exception) -> None:
        log.error("the producer stops, because its sender failed unexpectedly", exc_info=fault)
        why = f"the producer has failed unexpectedly, and these records may or may not be in the log: {fault!r}"
        with self._buffer.settling() as completion:
            completion.fail_all(errors.FatalError(why))
        self._sender_loop.changed()

    def _reject(self, error: errors.AuthenticationError) -> None:
        """Fail all batches, because a broker rejects the login, and will reject it again."""
        why = f"{error.message}; records that were sent before may or may not be in the log"
        with self._buffer.settling() as completion:
            completion.fail_all(errors.AuthenticationError(why, error.code))
        self._sender_loop.changed()

    def _take_turn(self) -> None:
        now = self._sender_loop.now_ms()
        manager = self._manager
        with self._buffer.settling() as completion:
            completion.expire(now, self._on_wire)
            completion.resolve()
            drained = self._accumulator.drain(
                now,
                self._cluster.topology.leader,
                self._may_send,
                (lambda batch: False) if manager is None else manager.holds_back,
                _unnumbered if manager is None else manager.assign,
                mute=self._max_in_flight == 1,
            )
            more = bool(drained.by_node) and self._accumulator.waiting
        for node, batches in drained.by_node.items():
            self._send(node, batches)
        if more:
            self._sender_loop.wake()  # a turn sends at most one batch of each partition
        for topic in drained.unknown:
            self._routes.find_leaders(topic)
        if self._coordinator is not None:
            self._coordinator.run_next_step()
        expiry = self._accumulator.next_expiry_ms()
        times = [at for at in (drained.next_ms, expiry, self._notice_slow(now)) if at is not None]
        if times:
            self._sender_loop.wake_at(max(min(times), now), now)

    def _notice_slow(self, now: int) -> int | None:
        """Record the brokers that do not answer a request for seconds. Return when to look again (ms), or None."""
        next_ms = None
        silent_ms = int(SILENT_SECONDS * 1000)
        for node, asked in self._asked_ms.items():
            if not asked:
                continue
            at = asked[0] + silent_ms
            if at <= now:
                self._slow.add(node)
                seconds = (now - asked[0]) / 1000
                host, port = self._cluster.topology.brokers.get(node, ("?", 0))
                why = unanswered(f"broker {node} ({host}:{port})", "ProduceRequest", seconds)
                self._troubles.waiting(("answer", node), why, lasted_s=seconds)
                at = now + silent_ms
            next_ms = at if next_ms is None else min(next_ms, at)
        return next_ms

    def _may_send(self, node: int) -> bool:
        connection = None
        if self.in_flight.get(node, 0) < self._max_in_flight:
            connection = self._routes.to(node)
        ready = connection is not None and not connection.congested
        if connection is not None and not ready:
            connection.on_writable(self._sender_loop.wake)
        self._routes.set_ready(node, ready=ready)
        return ready

    @property
    def waits_for_responses(self) -> bool:
        """Whether a request has no response yet, even if its batches have their outcomes."""
        return bool(self._on_wire)

    # -- requests -------------------------------------------------------------------------------------------------

    def _send(self, node: int, sent: list[Batch]) -> None:
        connection = self._cluster.open_connection(node, "produce")
        try:
            if connection is None:
                raise ConnectionLostError(f"broker {node} closed the connection")
            encoded = [(batch, batch.wire()) for batch in sent]
            request, version = produce.build(
                encoded,
                self._cluster.topology,
                connection,
                self._options,
                self._manager,
            )
            if self._acks == 0:
                connection.send_unanswered(request, version)
                self._count(encoded)
                self._settle([(batch, ErrorCode.NONE, "", produce.UNANSWERED) for batch in sent])
                return
            future = connection.send(request, version)
        except ConnectionLostError as error:
            self._settle([(batch, ErrorCode.NETWORK_EXCEPTION, str(error), produce.UNANSWERED) for batch in sent])
            return
        except NoCommonVersionError as error:
            self._settle([(batch, ErrorCode.UNSUPPORTED_VERSION, str(error), produce.UNANSWERED) for batch in sent])
            return
        except Exception as error:  # noqa: BLE001 whatever it is: otherwise their futures would never have an outcome
            self._settle([(batch, ErrorCode.UNKNOWN_SERVER_ERROR, repr(error), produce.UNANSWERED) for batch in sent])
            return
        self._count(encoded)
        self.in_flight[node] = self.in_flight.get(node, 0) + 1
        self._asked_ms.setdefault(node, deque()).append(self._sender_loop.now_ms())
        self._on_wire.update(dict.fromkeys(sent))
        future.add_done_callback(lambda done: self._answered(node, sent, done))

    def _count(self, encoded: list[tuple[Batch, bytearray]]) -> None:
        self._sends.sent(encoded, self._sender_loop.now_ms())

    def _answered(self, node: int, sent: list[Batch], future: asyncio.Future[Any]) -> None:
        try:
            self._take_answer(node, sent, future)
        except Exception as fault:  # noqa: BLE001 as in `_turn`
            self._fail(fault)

    def _take_answer(self, node: int, sent: list[Batch], future: asyncio.Future[Any]) -> None:
        self.in_flight[node] -= 1
        self._asked_ms[node].popleft()
        if node in self._slow:
            self._slow.discard(node)
            self._troubles.over(("answer", node))
        for batch in sent:
            self._on_wire.pop(batch, None)
        error = ConnectionLostError("the request was cancelled") if future.cancelled() else future.exception()
        if error is None:
            self._sends.answered(future.result().throttle_time_ms)
            answers = produce.match(sent, future.result(), self._cluster.topology)
        else:
            answers = [(batch, ErrorCode.NETWORK_EXCEPTION, str(error), produce.UNANSWERED) for batch in sent]
        for batch, code, _, _ in answers:
            batch.in_doubt |= code in produce.MAY_BE_APPENDED
        self._settle(answers)

    def _settle(self, answers: Iterable[produce.Answer]) -> None:
        """Process the results in a response: some batches are done, others are sent again."""
        with self._buffer.settling() as completion:
            stale = completion.answers(self._sender_loop.now_ms(), answers)
        for topic in stale:
            self._cluster.topology.forget(topic)
        self._sender_loop.wake()

    def purge(self, *, in_queue: bool, in_flight: bool) -> int:
        """Drop the batches that wait, those in flight, or both. Return the number of their records."""
        with self._buffer.settling() as completion:
            dropped = completion.purge(self._on_wire, in_queue=in_queue, in_flight=in_flight)
        self._sender_loop.wake()
        return dropped

    async def close(self) -> None:
        """Send nothing any more, close the connections, and give every batch its outcome."""
        self._sender_loop.close()
        on_wire = dict(self._on_wire)  # closing the connections ends the requests in flight
        try:
            await self._cluster.close()
        finally:
            with self._buffer.settling() as completion:
                completion.drop_all(on_wire)
            self._sender_loop.changed()


def _unnumbered(batch: Batch) -> None:
    """Drain a batch without idempotence: it gets no sequence."""
    batch.in_retry = False
