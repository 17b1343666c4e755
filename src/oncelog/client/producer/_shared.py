"""What the blocking producer and the one for asyncio share: the methods that need not wait."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from oncelog import errors
from oncelog.client.calls import FORKED
from oncelog.client.producer.core import ProducerCore
from oncelog.client.producer.transaction_manager import ManagerState
from oncelog.client.types import TopicPartition

if TYPE_CHECKING:
    from oncelog.client.group_offsets import GroupMetadata, Positioned


class ProducerBase:
    """The methods that need not wait. They raise UsageError before the producer has started, and after a fork."""

    options: dict[str, Any]
    _started: ProducerCore | None = None

    @property
    def _core(self) -> ProducerCore:
        if self._started is None:
            raise errors.UsageError("start() the producer first, or use it as `async with`")
        if self._started.cluster.calls.forked:
            raise errors.UsageError(FORKED)
        return self._started

    @property
    def producer_id(self) -> int:
        """The producer id, -1 while there is none."""
        return -1 if self._core.manager is None else self._core.manager.producer_id

    @property
    def producer_epoch(self) -> int:
        """The producer's epoch, -1 while there is none."""
        return -1 if self._core.manager is None else self._core.manager.producer_epoch

    @property
    def first_offsets(self) -> dict[TopicPartition, int]:
        """(topic, partition) -> first offset of the current (or last) transaction there, as far as acknowledged."""
        return {} if self._core.manager is None else dict(self._core.manager.first_offsets)

    def begin_transaction(self) -> None:
        """Begin a transaction; `transaction()` is the shorter way."""
        self._core.begin()

    def send_offsets(
        self, source: Positioned | GroupMetadata | str, offsets: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """Commit consumed offsets with the transaction.

        `source` is a consumer without auto-commit (default: its positions; AbortableError when a rebalance took some of
        them away), group metadata, or a bare group id (without the protection against zombie consumers, KIP-447);
        `offsets`: (topic, partition) -> next offset to be read.
        """
        from oncelog.client.group_offsets import group_and_offsets

        group, found = group_and_offsets(source, offsets)
        self._core.add_offsets(group, found)

    def _may_abort(self) -> bool:
        manager = self._core.manager
        if manager is None or self._core.closing:
            return False
        return manager.state in (ManagerState.IN_TRANSACTION, ManagerState.ABORTABLE_ERROR)

    def _is_prepared(self) -> bool:
        manager = self._core.manager
        return manager is not None and manager.state is ManagerState.PREPARED

    def _no_room(self) -> errors.TimedOutError:
        return errors.TimedOutError(
            f"no room for a record in buffer_memory = {self.options['buffer_memory']} after "
            f"max_block_ms = {self.options['max_block_ms']}"
        )


def abort_failed(error: BaseException, second: errors.KafkaError) -> None:
    """Note in `error` that the abort for it failed, too. Raise `second` if it is worse: fatal after abortable."""
    if isinstance(second, errors.FatalError) and isinstance(error, errors.AbortableError):
        raise second from error
    error.add_note(f"aborting the transaction failed: {second}")


def closing_failed(error: BaseException, second: errors.OncelogError) -> None:
    """Note in `error`, which has ended a `with` block, why closing the producer failed."""
    error.add_note(f"closing the producer: {second}")
    for note in getattr(second, "__notes__", ()):
        error.add_note(f"closing the producer: {note}")
