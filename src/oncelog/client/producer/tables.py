"""Send Arrow tables. In the producer, only this module and `table_batches` need pyarrow and numpy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from oncelog import errors
from oncelog.client import table_kernels
from oncelog.client.producer.buffer import NoRoomError
from oncelog.client.producer.table_batches import MissingPartitionError, TableBatches, Target
from oncelog.client.serialization.functions import require_formats
from oncelog.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from oncelog.client.producer.core import ProducerCore
    from oncelog.client.producer.delivery import Delivery
    from oncelog.columns.values import Format


class TableFuture:
    """The outcome of a table. Call `result()` to wait for it, or `await` it with `oncelog.aio.Producer`.

    `rows` is the number of rows that were sent.
    """

    def __init__(self, deliveries: list[Delivery], rows: int) -> None:
        self._deliveries = deliveries
        self.rows = rows

    def done(self) -> bool:
        """Return whether every batch has its outcome."""
        return all(delivery.ready for delivery in self._deliveries)

    def result(self, timeout: float | None = None) -> dict[TopicPartition, int]:
        """Return (topic, partition) -> offset of the table's first row there.

        Wait up to `timeout` seconds for all batches (default: no limit). If batches failed, raise the KafkaError of the
        first one. Raises TimedOutError if there is no outcome yet.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        for delivery in self._deliveries:
            if not delivery.wait(None if deadline is None else max(deadline - time.monotonic(), 0)):
                raise errors.TimedOutError(f"a table for topic {delivery.tp[0]!r} has no outcome after {timeout} s")
        return self._outcome()

    def _outcome(self) -> dict[TopicPartition, int]:
        first: dict[TopicPartition, int] = {}
        for delivery in self._deliveries:
            delivery.seen = True
        for delivery in self._deliveries:
            if delivery.error is not None:
                raise delivery.error.with_traceback(None)
            first.setdefault(delivery.tp, delivery.base_offset)
        return first

    def __await__(self) -> Generator[object, None, dict[TopicPartition, int]]:
        loop = asyncio.get_running_loop()
        for delivery in self._deliveries:
            if not delivery.ready:
                delivery.check_possible()
                waiter: asyncio.Future[None] = loop.create_future()
                delivery.when_ready(partial(loop.call_soon_threadsafe, _wake, waiter))
                yield from waiter.__await__()
        return self._outcome()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _target(core: ProducerCore, topic: str, key: Format | None, value: Format | None) -> Target:
    require_formats(core.options, "send_table", key, value)
    return Target(topic, core.counts[topic], core.buffer.partitioner, core.options, key, value, _now_ms)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class _Sending:
    """A table whose rows the producer adds to the accumulator."""

    def __init__(self, table: object, batches_of: Callable[[object], TableBatches]) -> None:
        self.deliveries: list[Delivery] = []
        self._batches_of = batches_of
        self.batches = batches_of(table)
        self._rows_before = 0

    @property
    def rows(self) -> int:
        """Return how many rows were sent."""
        return self._rows_before + self.batches.rows

    def divide_again(self) -> None:
        """Distribute the remaining rows over the topic's current partitions."""
        self._rows_before = self.rows
        self.batches = self._batches_of(self.batches.unsent())

    def future(self) -> TableFuture:
        """Return the future of the rows that were sent."""
        return TableFuture(self.deliveries, self.rows)


@contextmanager
def _reporting_a_part(core: ProducerCore, sending: _Sending) -> Iterator[None]:
    """If sending a table fails after some rows were sent, report those rows in the error.

    In a transaction, raise the error itself, and make the transaction abortable. Without one, raise PartlySentError,
    because sending the table again would duplicate the rows.
    """
    try:
        yield
    except BaseException as error:
        if not sending.deliveries:
            raise
        if core.manager is not None and core.manager.transactional:
            core.fail_transaction(f"only part of a table was sent: {error}")
            raise
        about = f"{sending.rows} rows of a table were sent before this error: {error}"
        if not isinstance(error, Exception):  # raise an interrupt unchanged
            error.add_note(about)
            raise
        raise errors.PartlySentError(about, sending.future(), sending.batches.unsent()) from error


def send_table(
    core: ProducerCore,
    topic: str,
    table: object,
    wait_for_room: Callable[[NoRoomError, float], None],
    learn: Callable[[int], None],
    *,
    key: Format | None = None,
    value: Format | None = None,
) -> TableFuture:
    """Encode a table piece by piece, and add its encoded batches to the accumulator.

    `learn(partition)` waits until the topic has that partition.
    """
    sending = _Sending(table, lambda data: TableBatches(data, _target(core, topic, key, value)))
    with _reporting_a_part(core, sending):
        while True:
            try:
                for tp, data in sending.batches:
                    deadline = time.monotonic() + core.options["max_block_ms"] / 1000
                    sending.deliveries.append(_append(core, tp, data, wait_for_room, deadline))
                return sending.future()
            except MissingPartitionError as error:
                missing = error.partition
            learn(missing)
            sending.divide_again()


def _append(
    core: ProducerCore,
    tp: TopicPartition,
    data: bytearray,
    wait_for_room: Callable[[NoRoomError, float], None],
    deadline: float,
) -> Delivery:
    while True:
        try:
            return core.buffer.append_encoded(tp, data).delivery
        except NoRoomError as full:
            wait_for_room(full, deadline)


async def send_table_async(
    core: ProducerCore,
    topic: str,
    table: object,
    no_room: Callable[[], errors.TimedOutError],
    *,
    key: Format | None = None,
    value: Format | None = None,
) -> TableFuture:
    """Do the same as `send_table` on the event loop, and let other tasks run before each batch."""
    await table_kernels.load()
    sending = _Sending(table, lambda data: TableBatches(data, _target(core, topic, key, value)))
    with _reporting_a_part(core, sending):
        while True:
            try:
                for tp, data in sending.batches:
                    await asyncio.sleep(0)
                    sending.deliveries.append(await _append_async(core, tp, data, no_room))
                return sending.future()
            except MissingPartitionError as error:
                missing = error.partition
            await core.learn_topic(topic, missing)
            sending.divide_again()


async def _append_async(
    core: ProducerCore, tp: TopicPartition, data: bytearray, no_room: Callable[[], errors.TimedOutError]
) -> Delivery:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + core.options["max_block_ms"] / 1000
    while True:
        try:
            return core.buffer.append_encoded(tp, data).delivery
        except NoRoomError:
            left = deadline - loop.time()
            if left <= 0:
                raise no_room() from None
            core.note_full_buffer(freed=await core.buffer.memory_freed(min(left, 0.5)))
