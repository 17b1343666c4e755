"""The methods that the blocking producer and the one for asyncio share, because they do not wait."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from oncelog import errors
from oncelog.client.calls import FORKED
from oncelog.client.notebooks import client_html
from oncelog.client.other_names import PRODUCER, OtherNames
from oncelog.client.producer.core import ProducerCore
from oncelog.client.producer.transaction_states import ManagerState
from oncelog.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from oncelog.client.group_offsets import GroupMetadata, Positioned
    from oncelog.client.metrics.results import ProducerMetrics


class ProducerBase(OtherNames):
    """The methods that do not wait. They raise UsageError before the producer is started, and in a forked child."""

    _other_names = PRODUCER
    options: dict[str, Any]
    _started: ProducerCore | None = None

    @property
    def _core(self) -> ProducerCore:
        if self._started is None:
            raise errors.UsageError("the producer is not started; await start() first, or use `async with`")
        if self._started.cluster.calls.forked:
            raise errors.UsageError(FORKED)
        return self._started

    @property
    def producer_id(self) -> int:
        """The producer id from the broker, or -1 if the producer has none yet."""
        return -1 if self._core.manager is None else self._core.manager.producer_id

    @property
    def producer_epoch(self) -> int:
        """The producer's epoch from the broker, or -1 if the producer has none yet."""
        return -1 if self._core.manager is None else self._core.manager.producer_epoch

    @property
    def kept_transaction(self) -> bool:
        """Whether the producer keeps a transaction of the former producer, which `complete_transaction` ends."""
        return self._core.manager is not None and self._core.manager.kept is not None

    @property
    def first_offsets(self) -> dict[TopicPartition, int]:
        """(topic, partition) -> first acknowledged offset of the current transaction there, or of the last one."""
        return {} if self._core.manager is None else dict(self._core.manager.first_offsets)

    def metrics(self) -> ProducerMetrics:
        """Return what this producer counts: records, batches, requests, retries, errors, latencies, buffer memory.

        Sends no request. Any thread may call this, also after `close`.
        """
        return self._core.metrics()

    def _repr_html_(self) -> str:
        return client_html(self)

    def begin_transaction(self) -> None:
        """Begin a transaction. `with producer.transaction()` is shorter, and commits or aborts automatically.

        Raises UsageError without the option transactional_id, or if a transaction is in progress.
        """
        self._core.begin()

    def send_offsets(
        self, source: Positioned | GroupMetadata | str, offsets: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """Add consumed offsets to the transaction (Kafka's sendOffsetsToTransaction). They are committed with it.

        `source` is the consumer, its `group_metadata()`, or a group id. With a consumer, `offsets` defaults to its
        positions. Otherwise, `offsets` maps (topic, partition) to the next offset to read. With a group id alone, the
        broker cannot reject the offsets of a consumer that has left the group (KIP-447).

        The consumer must not use enable_auto_commit. Raises UsageError outside a transaction or for wrong arguments.
        Raises AbortableError if a rebalance has revoked partitions whose records may be in the transaction.
        """
        from oncelog.client.group_offsets import group_and_offsets

        group, found = group_and_offsets(source, offsets)
        self._core.add_offsets(group, found)

    def _may_abort(self) -> bool:
        manager = self._core.manager
        if manager is None or self._core.closing:
            return False
        return manager.state in (ManagerState.IN_TRANSACTION, ManagerState.ABORTABLE_ERROR)

    def _commits_at_end(self) -> bool:
        """Return whether the end of a block must commit, because the block has not prepared or ended it."""
        manager = self._core.manager
        return manager is not None and manager.state not in (ManagerState.PREPARED, ManagerState.READY)

    def _no_room(self) -> errors.TimedOutError:
        self._core.sends.exhausted += 1
        return errors.TimedOutError(
            f"the record buffer is full (buffer_memory = {self.options['buffer_memory']}), and no memory became free "
            f"within max_block_ms = {self.options['max_block_ms']}"
        )


def abort_failed(error: BaseException, second: errors.KafkaError) -> None:
    """Add a note to `error`: the abort failed, too. If `second` is fatal and `error` is not, raise `second` instead."""
    if isinstance(second, errors.FatalError) and isinstance(error, errors.AbortableError):
        raise second from error
    error.add_note(f"the abort of the transaction failed as well: {second}")


def closing_failed(error: BaseException, second: errors.OncelogError) -> None:
    """Add a note to `error`, which has ended a `with` block: why closing the producer failed."""
    error.add_note(f"closing the producer failed as well: {second}")
    for note in getattr(second, "__notes__", ()):
        error.add_note(f"closing the producer failed as well: {note}")
