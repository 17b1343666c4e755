"""Drive one transaction coordinator as its shell does (append, replay, reply, markers), but in memory and at once.

After each step, a coordinator that reads the log must have the same transactions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from oncelog.coordinator.effects import CoordinatorRecord, Effects, Markers
from oncelog.coordinator.transactions.coordinator import TransactionConfig, TransactionCoordinator
from oncelog.coordinator.transactions.metadata import TransactionMetadata, TransactionState
from oncelog.coordinator.transactions.records import decode_record, transaction_record
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from oncelog.protocol.schema import encode_versioned
from oncelog.protocol.topics import TopicPartition

START_MS = 1_000_000


class Ids:
    """Producer ids from 1000 on; none while `empty`."""

    def __init__(self) -> None:
        self.next = 1000
        self.empty = False

    def take(self) -> int:
        if self.empty:
            raise ProtocolError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "no id")
        self.next += 1
        return self.next - 1


class Driver:
    """Run a coordinator. `log` is the partition; `markers` are pending ones; `refuse` makes the next append fail."""

    def __init__(self, config: TransactionConfig | None = None) -> None:
        self.config = config or TransactionConfig()
        self.ids = Ids()
        self.now_ms = START_MS
        self.epoch = 0
        self.log: list[CoordinatorRecord] = []
        self.markers: list[Markers] = []
        self.refuse: ErrorCode | None = None
        self.fresh: list[CoordinatorRecord] = []
        self.coordinator = self._new()
        self._reader = self._new()
        """A coordinator that only reads the log."""

    def _new(self) -> TransactionCoordinator:
        return TransactionCoordinator(self.epoch, self.ids, self.config)

    def apply(self, effects: Effects, token: Any = None) -> Any:
        """Apply effects, and return the reply to `token`."""
        self.fresh = []
        if effects.records and self.refuse is not None:
            error, self.refuse = self.refuse, None
            raise ProtocolError(error, "the log refuses")
        for record in effects.records:
            self.write(record)
            self.fresh.append(record)
            self.coordinator.replay(record)
        assert self.coordinator.transactions == self._reader.transactions
        self.markers += effects.markers
        replies = [reply.response for reply in effects.replies if reply.token is token]
        assert len(replies) == len(effects.replies) <= 1
        return replies[0] if replies else None

    def write(self, record: CoordinatorRecord) -> None:
        """Append a record to the log."""
        self.log.append(record)
        _read(self._reader, record)

    def reload(self) -> None:
        """Replace the coordinator with a successor, which has only the log."""
        self.epoch += 1
        self.markers = []
        self.coordinator, self._reader = self._new(), self._new()
        for record in self.log:
            _read(self.coordinator, record)
            _read(self._reader, record)
        self.apply(self.coordinator.loaded(self.now_ms))

    def start(self) -> Driver:
        """Load an empty partition."""
        self.apply(self.coordinator.loaded(self.now_ms))
        return self

    # -- requests ------------------------------------------------------------------------------------------------------

    def init(
        self,
        name: str | None = "etl",
        producer: tuple[int, int] = (-1, -1),
        *,
        timeout_ms: int = 60_000,
        version: int = 5,
        **fields: Any,
    ) -> InitProducerIdResponse:
        request = InitProducerIdRequest(
            transactional_id=name,
            transaction_timeout_ms=timeout_ms,
            producer_id=producer[0],
            producer_epoch=producer[1],
            **fields,
        )
        token = object()
        effects = self.coordinator.init_producer_id(request, version, token, self.now_ms)
        response: InitProducerIdResponse = self.apply(effects, token)
        return response

    def session(self, name: str = "etl", **fields: Any) -> tuple[int, int]:
        """Start a new session, with the predecessor's transaction aborted: (producer id, epoch)."""
        response = self.init(name, **fields)
        if response.error_code == ErrorCode.CONCURRENT_TRANSACTIONS:
            self.write_markers()
            response = self.init(name, **fields)
        assert response.error_code == ErrorCode.NONE, response
        return response.producer_id, response.producer_epoch

    def add(
        self, name: str, producer: tuple[int, int], *partitions: TopicPartition, client_version: int = 2
    ) -> ErrorCode:
        token = object()
        effects = self.coordinator.add_partitions(name, *producer, partitions, client_version, token, self.now_ms)
        error: ErrorCode = self.apply(effects, token)
        return error

    def end(self, name: str, producer: tuple[int, int], commit: bool = True, *, version: int = 5) -> EndTxnResponse:
        request = EndTxnRequest(
            transactional_id=name, producer_id=producer[0], producer_epoch=producer[1], committed=commit
        )
        token = object()
        response: EndTxnResponse = self.apply(self.coordinator.end_txn(request, version, token, self.now_ms), token)
        return response

    # -- markers and time ----------------------------------------------------------------------------------------------

    def write_markers(
        self, errors: dict[TopicPartition, ErrorCode] | None = None, deleted: set[TopicPartition] | None = None
    ) -> None:
        """Write the markers. Each partition answers NONE, or as in `errors`; the other markers stay pending."""
        under_way, self.markers = self.markers, []
        for markers in under_way:
            results = {
                partition: (errors or {}).get(partition, ErrorCode.NONE)
                for partition in markers.partitions
                if partition not in (deleted or ())
            }
            self.apply(self.coordinator.markers_written(markers, results, self.now_ms, deleted=deleted or ()))
            if self.coordinator.needs(markers):
                self.markers.append(markers)

    def tick(self, ms: int = 0) -> None:
        """Advance the time, and tick as the shell's timer does."""
        self.now_ms += ms
        while (due_ms := self.coordinator.deadline()) is not None and due_ms <= self.now_ms:
            self.apply(self.coordinator.tick(self.now_ms))

    def state(self, name: str = "etl") -> TransactionMetadata:
        return self.coordinator.transactions[name]


def _read(coordinator: TransactionCoordinator, record: CoordinatorRecord) -> None:
    """Replay the content of a record."""
    key = encode_versioned(record.key, record.key_version)
    value = None if record.value is None else encode_versioned(record.value, record.value_version)
    decoded = decode_record(key, value)
    assert decoded is not None
    coordinator.replay(decoded)


S = TransactionState
NONE = ErrorCode.NONE
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
FENCED = ErrorCode.PRODUCER_FENCED
INVALID_STATE = ErrorCode.INVALID_TXN_STATE
UNKNOWN_ID = ErrorCode.INVALID_PRODUCER_ID_MAPPING
A, B = ("a", 0), ("b", 1)


def open_transaction(driver: Driver, *, client_version: int = 2) -> tuple[int, int]:
    producer = driver.session()
    assert driver.add("etl", producer, A, B, client_version=client_version) == NONE
    return producer


def at_epoch(driver: Driver, epoch: int) -> tuple[int, int]:
    """Return a session of `etl` whose epoch is nearly exhausted."""
    producer_id, _ = driver.session()
    worn = replace(driver.state(), producer_epoch=epoch)
    driver.write(transaction_record(worn, 2))
    driver.coordinator.transactions["etl"] = worn
    return producer_id, epoch
