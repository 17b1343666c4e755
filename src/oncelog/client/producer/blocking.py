"""The blocking producer."""

from __future__ import annotations

import atexit
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from oncelog import errors
from oncelog.client.blocking import Blocking, blocking
from oncelog.client.calls import FORKED
from oncelog.client.producer._shared import ProducerBase, abort_failed, closing_failed
from oncelog.client.producer.asynchronous import Producer as Awaited
from oncelog.client.producer.buffer import NoRoomError, NotAddedError
from oncelog.client.producer.core import ProducerCore
from oncelog.client.producer.delivery import OnDelivery, RecordFuture, RecordMetadata
from oncelog.client.producer.prepared import PreparedTransaction
from oncelog.client.producer.resumed import AsyncResumedTransaction, ResumedTransaction
from oncelog.client.records import HeaderData, Text, checked, to_bytes

__all__ = ["Producer", "RecordFuture", "RecordMetadata", "Transaction"]

_MADE_HERE: WeakSet[Producer] = WeakSet()
"""The producers that this process has created."""
_AT_WORK: WeakSet[ProducerCore] = WeakSet()
"""Producers that may still have records to send: one without a reference still sends its records."""

log = logging.getLogger(__name__)


class Producer(ProducerBase, Blocking[Awaited]):
    """Sends records. Thread-safe; use as a context manager, or `close` it.

    `Producer("localhost:9092", transactional_id="etl-1", linger_ms=20)`: options carry Kafka's names with `_` for
    `.`; a mapping with the dotted names may be given as `config`. With a transactional id the producer is initialised
    at once: predecessors with that id are fenced and their open transaction is aborted. Errors: `oncelog.errors`.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(Awaited(bootstrap_servers, config, **options))
        self.options = self._awaited.options
        self._started = self._awaited._started = ProducerCore(self.options, self._thread.loop)
        self._append: Callable[..., RecordFuture | None] = self._core.buffer.append
        _MADE_HERE.add(self)
        _AT_WORK.add(self._started)
        if self.options["transactional_id"] is not None:
            try:
                self._thread.run(self._core.init_transactions())
            except BaseException:
                self.close(0)
                raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except errors.OncelogError as second:
            if error is None:
                raise
            closing_failed(error, second)

    close = blocking(Awaited.close)
    detach = blocking(Awaited.detach)

    # -- records --------------------------------------------------------------------------------------------------

    def send(
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
        """Send a record. Return at once with the future of its `RecordMetadata`.

        `timestamp` is in ms since the epoch, by default the current time. `headers` are pairs (name, value) or a
        mapping; their values may have the types of `value`.

        The client's own thread calls `on_delivery(metadata, error)` with one of both once the outcome is known, in
        order within a partition. Be quick there, and call nothing that waits.

        Block up to max.block.ms for a topic's metadata or for buffer memory, then raise TimedOutError. UsageError names
        an argument of a wrong type. In an error state of the transaction, raise that error.
        """
        try:
            future = self._append(
                topic,
                value if value is None or type(value) is bytes else to_bytes(value),
                key if key is None or type(key) is bytes else to_bytes(key),
                partition,
                timestamp,
                headers,
            )
        except (AttributeError, TypeError, ValueError):
            future = None  # `checked` names the wrong argument
        except NotAddedError as refused:  # `_send_when_possible` waits for memory, and accepts more kinds of headers
            future, partition = None, refused.partition
        if future is None:
            future = self._send_when_possible(topic, value, key, partition, timestamp, headers)
        if on_delivery is not None:
            future.on_delivery(on_delivery)
        return future

    def _send_when_possible(
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
        deadline = time.monotonic() + self.options["max_block_ms"] / 1000
        while True:
            try:
                future = self._append(topic, data, name, partition, timestamp, pairs)
            except NoRoomError as full:
                partition = full.partition
                self._wait_for_room(full, deadline)
                continue
            if future is not None:
                return future
            self._thread.run(self._core.learn_topic(topic, partition))

    def _wait_for_room(self, full: NoRoomError, deadline: float) -> None:
        self._thread.refuse_its_own("waiting for buffer memory in a callback (on_delivery)")
        left = deadline - time.monotonic()
        if left <= 0 or (
            not self._core.buffer.wait_for_memory(min(left, 0.5), full.releases) and time.monotonic() >= deadline
        ):
            raise self._no_room() from None

    def send_table(
        self, topic: str, table: object, *, key: Format | None = None, value: Format | None = None
    ) -> TableFuture:
        """Send the rows of Arrow data: a pyarrow.Table, or an object with the PyCapsule interface (polars, DuckDB).

        The columns are key, value, headers, partition, timestamp; value is enough. `key` and `value` are formats for
        columns of other types, see `oncelog.formats`. No Python object is made for a row. Return the future of
        (partition -> offset of the first row). UsageError, UnknownTopicError, RecordTooLargeError and TimedOutError
        (max.block.ms) are as in `send`. A row that cannot be sent, within a table's first 250 MB, is found before any
        row is sent. After a part is sent, an error is the cause of a PartlySentError, which has that part's future and
        the other rows. In a transaction, the error is raised unchanged, and the transaction can only be aborted.
        """
        from oncelog.client.producer.tables import send_table

        def learn(partition: int | None = None) -> None:
            self._thread.run(self._core.learn_topic(topic, partition))

        if topic not in self._core.counts:
            learn()
        return send_table(self._core, topic, table, self._wait_for_room, learn, key=key, value=value)

    flush = blocking(Awaited.flush)

    def partitions_for(self, topic: str) -> int:
        """Return the number of a topic's partitions. Raises UnknownTopicError."""
        if topic not in self._core.counts:
            self._thread.run(self._core.learn_topic(topic))
        return self._core.counts[topic]

    # -- transactions ---------------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Run a block in a transaction. Commit at its end; abort if the block raises or the commit fails.

        A transaction that the block has prepared stays open.
        """
        self.begin_transaction()
        try:
            yield Transaction(self)
            if not self._is_prepared():
                self.commit_transaction()
        except BaseException as error:
            self._abort_after(error)
            raise

    def _abort_after(self, error: BaseException) -> None:
        if not self._may_abort():
            return
        try:
            self.abort_transaction()
        except errors.KafkaError as second:
            abort_failed(error, second)

    commit_transaction = blocking(Awaited.commit_transaction)
    abort_transaction = blocking(Awaited.abort_transaction)
    prepare = blocking(Awaited.prepare)


class Transaction:
    """The transaction of a block `with producer.transaction() as txn:`."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.send = producer.send
        self.send_table = producer.send_table
        self.send_offsets = producer.send_offsets
        self.prepare = producer.prepare

    @staticmethod
    def resume(
        handle: PreparedTransaction | str,
        bootstrap_servers: str | Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> ResumedTransaction:
        """Open a prepared transaction by its handle (or the handle's text), to commit or abort it.

        `with Transaction.resume(handle, "localhost:9092") as transaction: transaction.commit()`. Options are a
        producer's. Resume it before you create a producer with the same transactional id, which would abort it.
        """
        return ResumedTransaction(AsyncResumedTransaction(handle, bootstrap_servers, config, options))


def _forked() -> None:
    """In a child process, reject records on the parent's producers, because no thread would send them."""
    for producer in _MADE_HERE:
        producer._append = _refuse
    _MADE_HERE.clear()
    _AT_WORK.clear()


def _refuse(*_: object) -> RecordFuture | None:
    raise errors.UsageError(FORKED)


def _warn_of_unsent() -> None:
    """At the end of the process, warn of records that are not acknowledged."""
    count = sum(batch.count for core in _AT_WORK if not core.closed for batch in core.accumulator.incomplete())
    if count:
        log.warning(
            "%d records were not acknowledged when the process ended, and may be lost: close() the producer",
            count,
        )


os.register_at_fork(after_in_child=_forked)
atexit.register(_warn_of_unsent)

if TYPE_CHECKING:
    from oncelog.client.producer.tables import TableFuture
    from oncelog.columns.values import Format
