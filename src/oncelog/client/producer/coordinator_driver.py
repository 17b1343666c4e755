"""A producer's conversation with its coordinators: one request at a time, beside the sender's turns.

What is said, and what answers mean, is `coordinator_requests`'; this carries it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING

from oncelog import errors
from oncelog.client.connections.backoff import Backoff
from oncelog.client.discovery.cluster import COORDINATOR_MOVED
from oncelog.client.producer import coordinator_requests as coordination
from oncelog.client.producer.transaction_manager import TransactionManager
from oncelog.net.connection import ConnectionLostError, NoCommonVersionError
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest

if TYPE_CHECKING:
    from oncelog.client.producer.send_loop import SendLoop

CONCURRENT_BACKOFF_MS = 20
"""First wait while the former transaction is still being ended: mostly a matter of milliseconds."""


class CoordinatorDriver:
    """Of one sender, for its transaction manager. Runs on the sender's loop."""

    def __init__(self, sender: SendLoop, manager: TransactionManager) -> None:
        self._sender = sender
        self._manager = manager
        self._cluster = sender.cluster
        self._going_on = False
        self.trouble = ""
        """Why the last request went without an answer that settles it; empty if it got one."""

    def go_on(self) -> None:
        """Say what there is to say, unless that is being done."""
        if not self._going_on and self._next_request() is not None:
            self._going_on = True
            self._sender.spawn(self._talk())

    def _next_request(self) -> coordination.CoordinatorRequest | None:
        with self._sender.lock:
            before = self._manager.state
            asked = coordination.next_request(self._manager, drained=self._sender.accumulator.empty)
            changed = self._manager.state is not before
        if changed:
            self._sender.changed()
        return asked

    async def _talk(self) -> None:
        backoff = Backoff(CONCURRENT_BACKOFF_MS, self._sender.options["retry_backoff_max_ms"])
        try:
            while not self._sender.closed and (asked := self._next_request()) is not None:
                code = await self._ask(asked)
                self._sender.changed()
                if code is None:
                    backoff.reset()
                    continue
                if code in COORDINATOR_MOVED or code is ErrorCode.NETWORK_EXCEPTION:
                    self._cluster.forget_coordinator("group" if asked.kind == "group" else "transaction", asked.key)
                await asyncio.sleep(backoff.next_ms(random.random()) / 1000)
        except Exception as error:  # noqa: BLE001 a fault of ours must not be asked for again and again, unheard
            with self._sender.lock:
                self._manager.fatal(errors.FatalError(f"the talk with the coordinator failed: {error!r}"))
            self._sender.changed()
        finally:
            self._going_on = False
            self._sender.wake()

    async def _ask(self, asked: coordination.CoordinatorRequest) -> ErrorCode | None:
        """Send a request once. Return the error code if it has to be sent again."""
        manager = self._manager
        try:
            if asked.kind == "any":
                response = await self._cluster.call_any(asked.request)
            else:
                connection = await self._cluster.connection(await self._cluster.coordinator(asked.kind, asked.key))
                version = min(connection.version_for(type(asked.request)), asked.max_version)
                if isinstance(asked.request, InitProducerIdRequest) and asked.kind == "transaction":
                    self._learn_version(manager, connection.features)
                with self._sender.lock:
                    coordination.sent(manager, asked)
                response = await connection.call(asked.request, version)
        except errors.RetriableError as error:
            self.trouble = error.message
            return error.code
        except ConnectionLostError as error:
            self.trouble = str(error)
            return ErrorCode.NETWORK_EXCEPTION
        except (NoCommonVersionError, errors.KafkaError) as error:
            failure = errors.UnsupportedError(str(error)) if isinstance(error, NoCommonVersionError) else error
            with self._sender.lock:
                coordination.not_found(manager, failure)
            return None
        with self._sender.lock:
            code = coordination.handle(manager, asked, response)
        self.trouble = "" if code is None else f"{type(asked.request).__name__}: {code.text}"
        return code

    @staticmethod
    def _learn_version(manager: TransactionManager, features: Mapping[str, int]) -> None:
        manager.set_version(min(features.get("transaction.version", 0), 2))
