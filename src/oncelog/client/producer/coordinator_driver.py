"""Send a producer's requests to its coordinators, one at a time, beside the sender's turns.

`coordinator_requests` decides what to send, and what the responses mean.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from oncelog import errors
from oncelog.client.discovery.cluster import COORDINATOR_MOVED, ClusterClient
from oncelog.client.discovery.slow_answers import noticed
from oncelog.client.guards import Guard
from oncelog.client.producer import coordinator_requests as coordination
from oncelog.client.producer.sender_loop import SenderLoop
from oncelog.client.producer.transaction_manager import TransactionManager
from oncelog.client.troubles import Troubles
from oncelog.net.connection import NoCommonVersionError
from oncelog.net.failures import ConnectionLostError
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from oncelog.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest

_COORDINATOR = object()
"""The subject of `Troubles`: a producer has at most one request to a coordinator."""

CONCURRENT_BACKOFF_MS = 20
"""First delay while the coordinator still ends the previous transaction, which usually takes milliseconds."""


class CoordinatorDriver:
    """Send the requests of one transaction manager, which `lock` guards, on the event loop of `sender_loop`.

    `all_settled()` says whether every batch has its outcome.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        manager: TransactionManager,
        lock: Guard,
        sender_loop: SenderLoop,
        *,
        all_settled: Callable[[], bool],
        troubles: Troubles,
    ) -> None:
        self._cluster = cluster
        self._manager = manager
        self._lock = lock
        self._sender_loop = sender_loop
        self._all_settled = all_settled
        self._going_on = False
        self._troubles = troubles
        self._unknown_since: float | None = None
        """Since when the group's coordinator does not know a topic of `send_offsets`."""

    def run_next_step(self) -> None:
        """Send the next requests, unless a task is already doing so."""
        if not self._going_on and self._next_request() is not None:
            self._going_on = True
            self._sender_loop.spawn(self._send_requests())

    def _next_request(self) -> coordination.CoordinatorRequest | None:
        with self._lock:
            before = self._manager.state
            asked = coordination.next_request(self._manager, drained=self._all_settled())
            changed = self._manager.state is not before
        if changed:
            self._sender_loop.changed()
        return asked

    async def _send_requests(self) -> None:
        backoff = self._cluster.backoff(first_ms=CONCURRENT_BACKOFF_MS)
        try:
            while not self._sender_loop.closed and (asked := self._next_request()) is not None:
                failure = await self._ask(asked)
                self._sender_loop.changed()
                if failure is None:
                    self._troubles.over(_COORDINATOR)
                    backoff.reset()
                    continue
                code, why = failure
                whose = f"the transaction waits for the coordinator of {asked.key!r}"
                if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and isinstance(asked.request, TxnOffsetCommitRequest):
                    topics = ", ".join(repr(topic.name) for topic in asked.request.topics)
                    whose, why = f"the transaction waits for a topic of send_offsets, one of {topics}", code.text
                what = whose if asked.key else "the producer waits for a producer id"
                self._troubles.waiting(_COORDINATOR, f"{what}: {why}", errors.error_for(code, why))
                if code in COORDINATOR_MOVED or code is ErrorCode.NETWORK_EXCEPTION:
                    self._cluster.forget_coordinator("group" if asked.kind == "group" else "transaction", asked.key)
                await asyncio.sleep(backoff.next_s())
            self._troubles.over(_COORDINATOR)
        except Exception as error:  # noqa: BLE001 - end the waiting calls after an internal fault
            with self._lock:
                self._manager.fatal(
                    errors.FatalError(f"the producer's requests to the coordinator failed unexpectedly: {error!r}")
                )
            self._sender_loop.changed()
        finally:
            self._going_on = False
            self._sender_loop.wake()

    async def _ask(self, asked: coordination.CoordinatorRequest) -> tuple[ErrorCode, str] | None:
        """Send a request once. If it has to be sent again, return the error code and the reason."""
        manager = self._manager
        try:
            if asked.kind == "any":
                response = await self._cluster.call_any(asked.request)
            else:
                node = await self._cluster.coordinator(asked.kind, asked.key)
                connection = await self._cluster.connection(node)
                version = min(connection.version_for(type(asked.request)), asked.max_version)
                if version < asked.min_version:
                    raise errors.UnsupportedError(
                        f"{connection.address} does not serve two-phase commit (KIP-939); connect to an oncelog broker "
                        "or omit transaction_two_phase_commit_enable and keep_prepared_transaction"
                    )
                if isinstance(asked.request, InitProducerIdRequest) and asked.kind == "transaction":
                    self._learn_version(manager, connection.features)
                with self._lock:
                    coordination.sent(manager, asked)
                name = type(asked.request).__name__
                with noticed(self._troubles, _COORDINATOR, f"broker {node}", name):
                    response = await connection.call(asked.request, version)
        except errors.RetriableError as error:
            return error.code, error.message
        except ConnectionLostError as error:
            return ErrorCode.NETWORK_EXCEPTION, str(error)
        except (NoCommonVersionError, errors.KafkaError) as error:
            failure = errors.UnsupportedError(str(error)) if isinstance(error, NoCommonVersionError) else error
            with self._lock:
                coordination.not_found(manager, failure)
            return None
        with self._lock:
            code = coordination.handle(manager, asked, response)
        if isinstance(asked.request, TxnOffsetCommitRequest):
            await self._check_topics(asked.request, code)
        return None if code is None else (code, f"{type(asked.request).__name__}: {code.text}")

    async def _check_topics(self, request: TxnOffsetCommitRequest, code: ErrorCode | None) -> None:
        """If a topic of the offsets was deleted, require an abort after `missing_topic_ms`.

        Wait that long, because a coordinator may not know a new topic yet.
        """
        if code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            self._unknown_since = None
            return
        now = asyncio.get_running_loop().time()
        self._unknown_since = now if self._unknown_since is None else self._unknown_since
        with contextlib.suppress(errors.KafkaError):  # the next attempt looks again
            await self._cluster.refresh([topic.name for topic in request.topics])
        lacks = self._cluster.topology.lacks
        asked = [(topic.name, item.partition_index) for topic in request.topics for item in topic.partitions]
        gone = ", ".join(f"{topic}-{partition}" for topic, partition in asked if lacks(topic, partition))
        if gone and now - self._unknown_since >= self._cluster.missing_topic_ms / 1000:
            self._unknown_since = None
            about = f"send_offsets of {self._manager.transactional_id!r}: {gone} does not exist any more"
            with self._lock:
                self._manager.offsets.clear()
                self._manager.abortable(errors.error_for(code, about))

    @staticmethod
    def _learn_version(manager: TransactionManager, features: Mapping[str, int]) -> None:
        manager.set_version(min(features.get("transaction.version", 0), 2))
