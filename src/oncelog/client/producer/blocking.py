"""The blocking producer."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from oncelog import errors
from oncelog.client.blocking import Blocking, blocking, on_loop
from oncelog.client.calls import FORKED
from oncelog.client.producer._shared import ProducerBase, abort_failed, closing_failed
from oncelog.client.producer.asynchronous import Producer as Awaited
from oncelog.client.producer.buffer import NoRoomError, NotAddedError
from oncelog.client.producer.core import ProducerCore
from oncelog.client.producer.delivery import OnDelivery, RecordFuture, RecordMetadata
from oncelog.client.producer.prepared import PreparedTransaction
from oncelog.client.producer.resumed import AsyncResumedTransaction, ResumedTransaction
from oncelog.client.records import HeaderData, Text, check_headers, check_topic, checked, to_bytes

__all__ = ["Producer", "RecordFuture", "RecordMetadata", "Transaction"]

_MADE_HERE: WeakSet[Producer] = WeakSet()
"""The producers that this process has created."""

log = logging.getLogger("oncelog.client.producer")


class Producer(ProducerBase, Blocking[Awaited]):
    """Send records, with or without transactions, as Kafka's KafkaProducer does. Threads may share a producer.

        with Producer("localhost:9092", transactional_id="etl-1") as producer, producer.transaction() as txn:
            txn.send("orders", b"value", b"key")

    Use it as a context manager, or call `close`. `bootstrap_servers` is "HOST:PORT,..." or a list of such strings.
    Options have Kafka's names with `_` for `.`. `config` takes a mapping with the dotted names.

    With the option transactional_id, the constructor initialises the producer: it fences earlier producers with the
    same id, and aborts their open transaction. Timeouts are in seconds. Errors are in `oncelog.errors`.
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
        self._serializers = self._core.serializers
        _MADE_HERE.add(self)
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
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: HeaderData = (),
        on_delivery: OnDelivery | None = None,
    ) -> RecordFuture:
        """Send a record in the background. Return the future of its `RecordMetadata`.

        `value` and `key` are bytes, a string (sent as UTF-8) or None. With value_serializer and key_serializer, they
        are what the serializers accept. Without `partition`, the partitioner chooses one, by the hash of the key if
        there is a key. `timestamp` is in ms since the epoch, by default the current time. `headers` are pairs (name,
        value) or a mapping. Their values are bytes, a string or None.

        When the outcome is known, the client's thread calls `on_delivery(metadata, None)`, or `on_delivery(None,
        error)`. Within a partition, the calls are in the order of the records. The callback must not block.

        The call blocks up to max_block_ms (60 s) for the topic's metadata or for free buffer memory, then raises
        TimedOutError. It raises UsageError for a wrong argument, SerializationError, RegistryError,
        RecordTooLargeError, and UnknownTopicError. If the transaction cannot be committed, it raises the AbortableError
        or FatalError of the transaction.
        """
        if self._serializers is not None:
            check_topic(topic)
            headers = check_headers(headers)
            if not self._serializers.ready(topic, value, key, headers):
                self._thread.refuse_its_own("a request to the schema registry (in on_delivery)")
            value, key = self._serializers.serialize(topic, value, key, headers)
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
        self._thread.refuse_its_own("a wait for buffer memory (in on_delivery)")
        left = deadline - time.monotonic()
        freed = left > 0 and self._core.buffer.wait_for_memory(min(left, 0.5), full.releases)
        self._core.note_full_buffer(freed=freed)
        if not freed and time.monotonic() >= deadline:
            raise self._no_room() from None

    def send_table(
        self, topic: str, table: object, *, key: Format | None = None, value: Format | None = None
    ) -> TableFuture:
        """Send the rows of an Arrow table as records. Return a `TableFuture`, whose result has the offsets.

        `table` is a pyarrow.Table or an object with Arrow's PyCapsule interface (polars, DuckDB, pandas). Its columns
        are key, value, headers, partition and timestamp. Only value or key is required. `key` and `value` are formats
        of `oncelog.formats` for columns of other types, such as `Json()`. No Python object is created for a row. Needs
        `oncelog[arrow]`.

        The errors are those of `send`. A row that cannot be sent is found before any row is sent, if it is in the
        table's first 250 MB. If an error occurs after some rows are sent, PartlySentError has their future and the
        other rows. In a transaction, the error itself is raised, and the transaction must be aborted.
        """
        from oncelog.client.producer.tables import send_table

        def learn(partition: int | None = None) -> None:
            self._thread.run(self._core.learn_topic(topic, partition))

        if topic not in self._core.counts:
            learn()
        return send_table(self._core, topic, table, self._wait_for_room, learn, key=key, value=value)

    flush = blocking(Awaited.flush)
    purge = on_loop(Awaited.purge)

    def partitions_for(self, topic: str) -> int:
        """Return the number of a topic's partitions. Raises UnknownTopicError, and TimedOutError after max_block_ms."""
        if topic not in self._core.counts:
            self._thread.run(self._core.learn_topic(topic))
        return self._core.counts[topic]

    # -- transactions ---------------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Run a `with` block in a transaction. Commit at its end, or abort if the block raises or the commit fails.

        If the block has called `prepare`, the transaction stays open. The block may also call `commit_transaction` or
        `abort_transaction`, after which it cannot send. To continue after an abort, call
        `consumer.seek_to_committed()` on the consumer whose records the block has processed.
        """
        self.begin_transaction()
        try:
            yield Transaction(self)
            if self._commits_at_end():
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
    complete_transaction = blocking(Awaited.complete_transaction)


class Transaction:
    """The transaction of a block `with producer.transaction() as txn:`. Its methods are those of the producer."""

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
        """Open a prepared transaction from any process, to commit or abort it.

            with Transaction.resume(handle, "localhost:9092") as transaction:
                transaction.commit()

        `handle` is the result of `prepare`, or its text. Options are those of a producer. Resume the transaction before
        you create a producer with the same transactional id, because that would abort it. Raises UsageError for a wrong
        handle, and ConfigError.
        """
        return ResumedTransaction(AsyncResumedTransaction(handle, bootstrap_servers, config, options))


def _forked() -> None:
    """In a forked child process, reject records on the parent's producers, because no thread would send them."""
    for producer in _MADE_HERE:
        producer._append = _refuse
    _MADE_HERE.clear()


def _refuse(*_: object) -> RecordFuture | None:
    raise errors.UsageError(FORKED)


os.register_at_fork(after_in_child=_forked)

if TYPE_CHECKING:
    from oncelog.client.producer.tables import TableFuture
    from oncelog.columns.values import Format
