"""The producer for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

from oncelog import errors
from oncelog.client.producer._shared import ProducerBase, abort_failed, closing_failed
from oncelog.client.producer.buffer import NoRoomError, NotAddedError
from oncelog.client.producer.core import ProducerCore
from oncelog.client.producer.delivery import OnDelivery, RecordFuture
from oncelog.client.producer.options import producer_options
from oncelog.client.producer.prepared import PreparedTransaction
from oncelog.client.producer.resumed import AsyncResumedTransaction
from oncelog.client.records import HeaderData, Text, checked, ms, to_bytes

if TYPE_CHECKING:
    from oncelog.client.producer.tables import TableFuture
    from oncelog.columns.values import Format


class Producer(ProducerBase):
    """Sends records. `async with`, or `await start()` and `await close()`. See `oncelog.Producer`."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.options = producer_options(config, {**options, "bootstrap_servers": bootstrap_servers})

    async def start(self) -> None:
        """Use the running loop. With a transactional id, get producer id and epoch, and fence predecessors."""
        loop = asyncio.get_running_loop()
        self._started = ProducerCore(self.options, loop, clock=lambda: int(loop.time() * 1000))
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
        """Send the remaining records and close the connections within `timeout` seconds (default delivery.timeout.ms).

        The futures of other records fail: DeliveryTimeoutError if a record may be in the log, TimedOutError if it is
        not. A transaction in progress is aborted, a prepared one stays open. Without transactions, raise the first
        failure of a record that no caller has retrieved (`result`, `exception`, a callback), with a note of their
        number. So each record is in the log, or a caller gets its error.
        """
        await self._core.close(ms(timeout))

    async def detach(self) -> None:
        """Send the remaining records, wait for the answers, and close the connections. Leave the transaction open.

        A process that knows (transactional id, `producer_id`, `producer_epoch`) can end it, until its time-out. Raise
        the error of a transaction that cannot be committed, and leave that one open, too.
        """
        await self._core.close(detach=True)
        if self._core.manager is not None:
            self._core.manager.require_no_error()

    async def send(
        self,
        topic: str,
        value: Text = None,
        key: Text = None,
        *,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: HeaderData = (),
        on_delivery: OnDelivery | None = None,
    ) -> RecordFuture:
        """Send a record. Await its future for the record's place. `on_delivery` as in `oncelog.Producer.send`."""
        append: Callable[..., RecordFuture | None] = self._core.buffer.append
        try:
            future = append(topic, to_bytes(value), to_bytes(key), partition, timestamp, headers)
        except (AttributeError, TypeError, ValueError):
            future = None  # `checked` names the wrong argument
        except NotAddedError as refused:  # `_send_when_possible` waits for memory, and accepts more kinds of headers
            future, partition = None, refused.partition
        if future is None:
            future = await self._send_when_possible(topic, value, key, partition, timestamp, headers)
        if on_delivery is not None:
            future.on_delivery(on_delivery)
        return future

    async def _send_when_possible(
        self,
        topic: str,
        value: Text,
        key: Text,
        partition: int | None,
        timestamp: int | None,
        headers: HeaderData,
    ) -> RecordFuture:
        """Check the arguments, wait for metadata and memory, and send a record."""
        data, name, pairs = checked(topic, value, key, partition, timestamp, headers)
        core = self._core
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.options["max_block_ms"] / 1000
        while True:
            try:
                future = core.buffer.append(topic, data, name, partition, timestamp, pairs)
            except NoRoomError as full:
                partition = full.partition
                left = deadline - loop.time()
                if left <= 0:
                    raise self._no_room() from None
                await core.buffer.memory_freed(min(left, 0.5))
                continue
            if future is not None:
                return future
            await core.learn_topic(topic, partition)

    async def send_table(
        self, topic: str, table: object, *, key: Format | None = None, value: Format | None = None
    ) -> TableFuture:
        """As `oncelog.Producer.send_table`. Await its future for the offsets."""
        from oncelog.client.producer.tables import send_table_async

        if topic not in self._core.counts:
            await self._core.learn_topic(topic)
        return await send_table_async(self._core, topic, table, self._no_room, key=key, value=value)

    async def flush(self, timeout: float | None = None) -> None:
        """Send all records now and wait for the answers, up to `timeout` seconds (default: until delivery.timeout.ms).

        The futures have the failures. After TimedOutError, no record is given up: call it again.
        """
        await self._core.flush(ms(timeout))

    async def partitions_for(self, topic: str) -> int:
        """As `oncelog.Producer.partitions_for`."""
        if topic not in self._core.counts:
            await self._core.learn_topic(topic)
        return self._core.counts[topic]

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """Run a block in a transaction. Commit at its end; abort if the block raises or the commit fails."""
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
        """Wait for every record's answer, then commit. FencedError: a newer producer has aborted the transaction.

        AbortableError: abort. TimedOutError (`timeout` seconds, default max.block.ms): the outcome is open, call it
        again.
        """
        await self._core.commit(ms(timeout))

    async def abort_transaction(self, timeout: float | None = None) -> None:
        """Abort. After that, another transaction may begin."""
        await self._core.abort(ms(timeout))

    async def prepare(self, timeout: float | None = None) -> PreparedTransaction:
        """Wait until the whole transaction is acknowledged. Return a handle with which any process can end it.

        No record can be added any more. `close` leaves the transaction open. This producer may still commit or abort
        it; other processes call `Transaction.resume(handle, ...)`. The coordinator aborts it if transaction.timeout.ms
        has passed since its first record, or if a newer producer uses the transactional id. May be repeated after
        TimedOutError.
        """
        return await self._core.prepare(ms(timeout))


class AsyncTransaction:
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
