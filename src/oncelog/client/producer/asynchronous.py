"""The producer for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

from oncelog import errors
from oncelog.client.durations import ms
from oncelog.client.options import producer_options
from oncelog.client.producer.delivery import OnDelivery, RecordFuture
from oncelog.client.producer.face import ProducerFace, abort_failed, closing_failed
from oncelog.client.producer.prepared import PreparedTransaction
from oncelog.client.producer.resumed import AsyncResumedTransaction
from oncelog.client.producer.sender import Sender
from oncelog.client.records import Text, to_bytes

if TYPE_CHECKING:
    from oncelog.client.producer.tables import TableFuture
    from oncelog.columns.values import Format


class Producer(ProducerFace):
    """Sends records. `async with`, or `await start()` and `await close()`. See `oncelog.Producer`."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.options = producer_options(config, {**options, "bootstrap_servers": bootstrap_servers})

    async def start(self) -> None:
        """Take the running loop; with a transactional id, get producer id and epoch, fencing predecessors."""
        loop = asyncio.get_running_loop()
        self._started = Sender(self.options, loop, clock=lambda: int(loop.time() * 1000))
        if self.options["transactional_id"] is not None:
            try:
                await self._started.init_transactions()
            except BaseException:
                await self._started.close(0)
                raise

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            await self.close()
        except errors.OncelogError as second:
            if error is None:
                raise
            closing_failed(error, second)

    async def close(self, timeout: float | None = None) -> None:
        """As `oncelog.Producer.close`: what failed, and nobody has looked at, is raised here."""
        await self._sender.close(ms(timeout))

    async def detach(self) -> None:
        """As `oncelog.Producer.detach`: hang up, leaving the transaction open."""
        await self._sender.close(detach=True)
        if self._sender.manager is not None:
            self._sender.manager.require_no_error()

    async def send(
        self,
        topic: str,
        value: Text = None,
        key: Text = None,
        *,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        on_delivery: OnDelivery | None = None,
    ) -> RecordFuture:
        """Send a record; await what it returns for the record's place. `on_delivery` as in `oncelog.Producer.send`."""
        sender = self._sender
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.options["max_block_ms"] / 1000
        data, name = to_bytes(value), to_bytes(key)
        while True:
            future = sender.append(topic, data, name, partition, timestamp, headers)
            if future is not None:
                if on_delivery is not None:
                    future.on_delivery(on_delivery)
                return future
            if topic not in sender.counts:
                await sender.learn_topic(topic)
                continue
            left = deadline - loop.time()
            if left <= 0:
                raise self._no_room()
            await sender.memory_freed(min(left, 0.5))

    async def send_table(
        self, topic: str, table: object, *, key: Format | None = None, value: Format | None = None
    ) -> TableFuture:
        """As `oncelog.Producer.send_table`; await what it returns for the offsets."""
        from oncelog.client.producer.tables import send_table_async

        if topic not in self._sender.counts:
            await self._sender.learn_topic(topic)
        return await send_table_async(self._sender, topic, table, self._no_room, key=key, value=value)

    async def flush(self, timeout: float | None = None) -> None:
        """Send everything now and wait for the answers."""
        await self._sender.flush(ms(timeout))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """A transaction around a block: committed at its end, aborted if the block raises or the commit is refused."""
        self.begin_transaction()
        try:
            yield self
            if not self._is_prepared():
                await self.commit_transaction()
        except BaseException as error:
            await self._abort_after(error)
            raise

    async def _abort_after(self, error: BaseException) -> None:
        if not self._may_abort():
            return
        try:
            await self.abort_transaction()
        except errors.KafkaError as second:
            abort_failed(error, second)

    async def commit_transaction(self, timeout: float | None = None) -> None:
        """As `oncelog.Producer.commit_transaction`."""
        await self._sender.commit(ms(timeout))

    async def abort_transaction(self, timeout: float | None = None) -> None:
        """Abort; afterwards another transaction may begin."""
        await self._sender.abort(ms(timeout))

    async def prepare(self, timeout: float | None = None) -> PreparedTransaction:
        """As `oncelog.Producer.prepare`: a handle with which any process can end the transaction."""
        return await self._sender.prepare(ms(timeout))


class Transaction:
    """`async with Transaction.resume(handle, "localhost:9092") as transaction: await transaction.commit()`."""

    @staticmethod
    def resume(
        handle: PreparedTransaction | str,
        bootstrap_servers: str | Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> AsyncResumedTransaction:
        """As `oncelog.Transaction.resume`."""
        return AsyncResumedTransaction(handle, bootstrap_servers, config, options)
