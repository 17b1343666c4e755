"""The producer for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from oncelog import errors
from oncelog.client.calls import require_loop
from oncelog.client.producer._shared import ProducerBase, abort_failed, closing_failed
from oncelog.client.producer.buffer import NoRoomError, NotAddedError
from oncelog.client.producer.core import ProducerCore
from oncelog.client.producer.delivery import OnDelivery, RecordFuture
from oncelog.client.producer.in_order import InOrder
from oncelog.client.producer.options import producer_options
from oncelog.client.producer.prepared import PreparedTransaction
from oncelog.client.producer.resumed import AsyncResumedTransaction
from oncelog.client.records import HeaderData, check_headers, check_topic, checked, ms, to_bytes

if TYPE_CHECKING:
    from oncelog.client.producer.tables import TableFuture
    from oncelog.columns.values import Format


class Producer(ProducerBase):
    """Send records, as `oncelog.Producer` does. Use `async with`, or `await start()` and `await close()`."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.options = producer_options(config, {**options, "bootstrap_servers": bootstrap_servers})
        self._loop: asyncio.AbstractEventLoop | None = None
        self._in_order = InOrder()

    async def start(self) -> None:
        """Start the producer on the running event loop. With a transactional id, fence earlier producers with it."""
        loop = self._loop = asyncio.get_running_loop()
        self._started = ProducerCore(self.options, loop, clock=lambda: int(loop.time() * 1000))
        if self.options["transactional_id"] is not None:
            try:
                await self._started.init_transactions()
            except BaseException:
                await self._started.close(0)
                raise

    @property
    def _core(self) -> ProducerCore:
        core = super()._core
        require_loop(self._loop)
        return core

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
        """Send the remaining records and close the connections within `timeout` seconds (default: delivery_timeout_ms).

        After that time, the futures of other records fail: with DeliveryTimeoutError if a record may be in the log, and
        with TimedOutError if it is not. A transaction in progress is aborted. A prepared transaction stays open.

        Without transactions, the call raises the first error of a record that your program has not retrieved with
        `result`, `exception` or a callback. So every record is in the log, or your program gets an error.
        """
        await self._core.close(ms(timeout))

    async def detach(self) -> None:
        """Send the remaining records, wait for the responses, and close the connections. Leave the transaction open.

        Until its timeout, a process that knows the transactional id, `producer_id` and `producer_epoch` can end it. If
        the transaction cannot be committed, raise its error, and leave it open as well. `prepare` is the easier way.
        """
        await self._core.close(detach=True)
        if self._core.manager is not None:
            self._core.manager.require_no_error()

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: HeaderData = (),
        on_delivery: OnDelivery | None = None,
    ) -> RecordFuture:
        """Send a record, as `oncelog.Producer.send` does. To get the record's offset, await the future it returns.

        Records to one partition keep the order of the calls, also of several tasks, and while calls wait for memory.

        The serializers run on the event loop. Those that send a request run in a thread, such as `AvroSerializer` for
        its first record. Later sends to the same topic wait for it.
        """
        core, raw = self._core, False
        serializers = core.serializers
        if serializers is not None:
            check_topic(topic)
            headers = check_headers(headers)
            raw = bool(self._in_order.waiting) or not serializers.ready(topic, value, key, headers)
            if not raw:
                value, key = serializers.serialize(topic, value, key, headers)
        future = None
        if not self._in_order.waiting and not raw:
            append: Callable[..., RecordFuture | None] = core.buffer.append
            try:
                future = append(topic, to_bytes(value), to_bytes(key), partition, timestamp, headers)
            except (AttributeError, TypeError, ValueError):
                pass  # `checked` names the wrong argument
            except NotAddedError as refused:  # `_send_in_turn` waits for memory, and accepts more kinds of headers
                partition = refused.partition
        if future is None:
            future = await self._send_in_turn(topic, value, key, partition, timestamp, headers, raw=raw)
        if on_delivery is not None:
            future.on_delivery(on_delivery)
        return future

    async def _send_in_turn(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp: int | None,
        headers: HeaderData,
        *,
        raw: bool,
    ) -> RecordFuture:
        """Check the arguments, wait for earlier sends, for metadata and memory, and send a record.

        `raw`: value and key are not serialized yet.
        """
        check_topic(topic)
        core, lines = self._core, self._in_order
        deadline = asyncio.get_running_loop().time() + self.options["max_block_ms"] / 1000
        async with lines.turn(topic) as line:
            if raw:
                with line.shared():
                    value, key = await self._serialize(topic, value, key, headers)
            data, name, pairs = checked(topic, value, key, partition, timestamp, headers)
            if topic not in core.counts:
                with line.shared():
                    await core.learn_topic(topic)
            append = partial(core.buffer.append, topic, data, name, timestamp=timestamp, headers=pairs)
            if (topic, partition) not in lines.waiting:
                future = await self._add(append, partition, deadline)
                if future is not None:
                    return future
        async with lines.turn((topic, partition)) as line:  # sends to other partitions do not wait for this one
            while True:
                future = await self._add(append, partition, deadline)
                if future is not None:
                    return future
                with line.shared():
                    await core.learn_topic(topic, partition)

    async def _serialize(self, topic: str, value: Any, key: Any, headers: Any) -> tuple[Any, Any]:
        serializers = self._core.serializers
        assert serializers is not None
        if serializers.ready(topic, value, key, headers):
            return serializers.serialize(topic, value, key, headers)
        return await asyncio.to_thread(serializers.serialize, topic, value, key, headers)

    async def _add(
        self, append: Callable[..., RecordFuture | None], partition: int | None, deadline: float
    ) -> RecordFuture | None:
        """Add a record by `append(partition=...)`, and wait for memory. Return None if the partition is unknown."""
        core = self._core
        while True:
            try:
                return append(partition=partition)
            except NoRoomError as full:
                partition = full.partition
                left = deadline - asyncio.get_running_loop().time()
                if left <= 0:
                    raise self._no_room() from None
                core.note_full_buffer(freed=await core.buffer.memory_freed(min(left, 0.5)))

    async def send_table(
        self, topic: str, table: object, *, key: Format | None = None, value: Format | None = None
    ) -> TableFuture:
        """Send the rows of an Arrow table, as `oncelog.Producer.send_table` does. Await the future for the offsets."""
        from oncelog.client.producer.tables import send_table_async

        check_topic(topic)
        async with self._in_order.turn(topic) as line:  # the rows follow the records of earlier calls
            if topic not in self._core.counts:
                with line.shared():
                    await self._core.learn_topic(topic)
        return await send_table_async(self._core, topic, table, self._no_room, key=key, value=value)

    async def flush(self, timeout: float | None = None) -> None:
        """Send all records now, and wait for the responses. Errors of records are in their futures, not raised.

        If `timeout` seconds pass, raise TimedOutError. The records are then still being sent, so you can call it again.
        By default, the wait ends after delivery_timeout_ms, when every record has an outcome.
        """
        await self._core.flush(ms(timeout))

    def purge(self, in_queue: bool = True, in_flight: bool = True) -> int:
        """Drop the records that wait to be sent, those in flight, or both. Return their number. Wait for nothing.

        The futures of records that were never sent fail with PurgedError. Those of other records fail with
        DeliveryTimeoutError, because the broker may still append them. `close` does not raise these errors. In a
        transaction, the futures fail with AbortableError, and the transaction must be aborted. Before
        transaction.version 2, the abort waits until the brokers have answered the requests with purged records.
        """
        return self._core.purge(in_queue=in_queue, in_flight=in_flight)

    async def partitions_for(self, topic: str) -> int:
        """Return the number of a topic's partitions, as `oncelog.Producer.partitions_for` does."""
        if topic not in self._core.counts:
            await self._core.learn_topic(topic)
        return self._core.counts[topic]

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """Run an `async with` block in a transaction. Commit at its end, or abort if the block or the commit fails."""
        self.begin_transaction()
        try:
            yield self
            if self._commits_at_end():
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
        """Send the remaining records, wait for all responses, then commit the transaction.

        Raises AbortableError if it cannot be committed: call `abort_transaction`. Raises FencedError if a newer
        producer with the same transactional id has aborted it. Raises TimedOutError after `timeout` seconds (default:
        max_block_ms): the outcome is not known yet, so call `commit_transaction` again.
        """
        await self._core.commit(ms(timeout))

    async def abort_transaction(self, timeout: float | None = None) -> None:
        """Abort the transaction. After that, you can begin another one.

        Records that are not sent yet are dropped, and their futures fail. Raises TimedOutError after `timeout` seconds
        (default: max_block_ms): call `abort_transaction` again. Raises FatalError if the producer must be closed.
        """
        await self._core.abort(ms(timeout))

    async def prepare(self, timeout: float | None = None) -> PreparedTransaction:
        """Wait until all records of the transaction are acknowledged. Return a handle that any process can end it with.

        After that, no record can be added, and `close` leaves the transaction open. This producer can still commit or
        abort it. Another process calls `Transaction.resume(handle, ...)`. The coordinator aborts the transaction if
        transaction_timeout_ms has passed since its first record, or if a newer producer uses the transactional id. With
        two-phase commit, it has no timeout. A producer with keep_prepared_transaction keeps it.

        Raises TimedOutError after `timeout` seconds (default: max_block_ms): call `prepare` again.
        """
        return await self._core.prepare(ms(timeout))

    async def complete_transaction(
        self, handle: PreparedTransaction | str | None, timeout: float | None = None
    ) -> bool:
        """Commit the open transaction if `handle` belongs to it, otherwise abort it.

        Return whether the transaction of the handle is committed. `handle` is what the other system has stored (a
        `PreparedTransaction` or its text), or None. If no transaction is open, change nothing: look in the log how the
        transaction of the handle has ended, and return False if the log no longer shows it.

        Raises TransactionAbortedError if that transaction was aborted meanwhile. Raises UsageError for an invalid
        handle, one of another cluster or transactional id, or a transaction that is not prepared. The other errors are
        those of `commit_transaction` and `abort_transaction`.
        """
        return await self._core.complete(handle, ms(timeout))


class AsyncTransaction:
    """The class whose `resume` opens a prepared transaction, for asyncio.

    async with Transaction.resume(handle, "localhost:9092") as transaction:
        await transaction.commit()
    """

    @staticmethod
    def resume(
        handle: PreparedTransaction | str,
        bootstrap_servers: str | Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> AsyncResumedTransaction:
        """Open a prepared transaction, as `oncelog.Transaction.resume` does."""
        return AsyncResumedTransaction(handle, bootstrap_servers, config, options)
