"""Check a Produce before its records are appended: as a whole, and the transactions of its partitions."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

from oncelog.cluster.replica import Replica
from oncelog.log.validate import ValidBatches
from oncelog.protocol.errors import ErrorCode, ProtocolError, Refusal
from oncelog.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from oncelog.protocol.records import ATTRIBUTES_LOW, BatchHeader, iter_batches

ALL = -1
"""acks=all"""
_WITH_GENERIC_ERROR = 11  # TRANSACTION_ABORTABLE (KIP-890, part 1)
WITH_IMPLICIT_ADD = 12  # the produce request itself adds the partition (KIP-890, part 2)
_TRANSACTIONAL = 0x10

# Errors of the coordinator that older clients do not know. They get NOT_ENOUGH_REPLICAS, and retry (as in Kafka).
_AS_NOT_ENOUGH_REPLICAS = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


class Target:
    """One partition of the request."""

    __slots__ = (
        "data",
        "guard",
        "last_offset",
        "log_start_offset",
        "record_errors",
        "refusal",
        "replica",
        "topic",
        "validated",
        "verified",
    )

    def __init__(self, topic: str, data: PartitionProduceData) -> None:
        self.topic = topic
        self.data = data
        self.replica: Replica | None = None
        self.refusal: Refusal | None = None
        self.verified = False
        self.guard: int | None = None
        self.last_offset = -1
        self.validated: ValidBatches | None = None
        self.log_start_offset = -1
        self.record_errors: Sequence[BatchIndexAndErrorMessage] = ()


class Admitted:
    """The partitions of a request in its order, and the state that their appends need."""

    __slots__ = ("items", "slow", "topics", "transactional")

    def __init__(self) -> None:
        self.topics: list[tuple[TopicProduceData, list[Target]]] = []
        self.items = 0
        """The number of items of a turn that all appends together count as."""
        self.slow: list[Target] = []
        """Partitions whose records take long to validate."""
        self.transactional: Target | None = None
        """The first partition whose first batch is transactional."""

    def targets(self) -> Iterator[Target]:
        """Yield all partitions."""
        for _, targets in self.topics:
            yield from targets

    def refuse(self, refusal: Refusal) -> None:
        """Reject every partition with the same error, whether its log was found or not."""
        for target in self.targets():
            target.refusal = refusal


Unverified = tuple[int, int, list[Target]]
"""Producer id, epoch, and partitions whose logs do not know the open transaction yet."""


def check(request: ProduceRequest, admitted: Admitted) -> bool:
    """Check the request as a whole. If it is invalid, reject all partitions, and return False."""
    found = admitted.transactional
    if request.transactional_id is None and found is not None:
        message = f"transactional records for {found.topic}-{found.data.index}, but the request has no transactional id"
        admitted.refuse(Refusal(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, message))
        return False
    if request.acks not in (ALL, 0, 1):
        message = f"acks must be -1, 0 or 1, not {request.acks}"
        admitted.refuse(Refusal(ErrorCode.INVALID_REQUIRED_ACKS, message))
        return False
    return True


def is_transactional(records: bytes | bytearray | memoryview | None) -> bool:
    """Return whether the first batch is transactional."""
    return records is not None and len(records) > ATTRIBUTES_LOW and bool(records[ATTRIBUTES_LOW] & _TRANSACTIONAL)


def unverified(admitted: Admitted, version: int, now_ms: int) -> Generator[None, None, Unverified | None]:
    """Find the partitions whose logs do not know the open transaction yet. Pause after each partition.

    If the request holds the transactional batches of several producers, reject all partitions.
    """
    try:
        return (yield from _unverified(admitted, version, now_ms))
    except ProtocolError as error:
        admitted.refuse(Refusal.of(error))
        return None


def _unverified(admitted: Admitted, version: int, now_ms: int) -> Generator[None, None, Unverified | None]:
    """Do the work of `unverified`. Raises INVALID_PRODUCER_ID_MAPPING."""
    transactional: list[tuple[Target, Replica, BatchHeader]] = []
    for target in admitted.targets():
        if target.replica is not None and (header := _first_transactional(target)) is not None:
            transactional.append((target, target.replica, header))
        yield
    if not transactional:
        return None
    producers = {(header.producer_id, header.producer_epoch) for _, _, header in transactional}
    if len(producers) > 1:
        names = ", ".join(f"{producer_id} (epoch {epoch})" for producer_id, epoch in sorted(producers))
        raise ProtocolError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            f"a transactional request may contain batches of only one producer, but has those of {names}",
        )
    producer = producers.pop()
    found: list[Target] = []
    for target, replica, header in transactional:
        yield
        try:
            target.guard = replica.log.start_verification(
                *producer,
                header.base_sequence,
                transaction_version=transaction_version(version),
                now_ms=now_ms,
            )
            # None: the transaction is open here. The log checks this again at the append, because a marker may be
            # appended while another partition of the request waits.
            if target.guard is not None:
                found.append(target)
        except ProtocolError as error:  # report a fenced epoch before any verification (KAFKA-19690)
            target.refusal = Refusal.of(error)
    return (*producer, found) if found else None


def transaction_version(version: int) -> int:
    """Return the `transaction.version` of a producer that sends Produce in this version."""
    return 2 if version >= WITH_IMPLICIT_ADD else 1


def _first_transactional(target: Target) -> BatchHeader | None:
    if not target.data.records:
        return None
    try:
        for header, _ in iter_batches(target.data.records):
            if header.is_transactional and header.producer_id >= 0:
                return header
    except ProtocolError as error:
        target.refusal = Refusal.of(error)
    return None


def translate(code: ErrorCode, version: int) -> Refusal:
    """Return a coordinator's error in the terms of this version (`ReplicaManager.handleProduceAppend`)."""
    if code == ErrorCode.TRANSACTION_ABORTABLE and version < _WITH_GENERIC_ERROR:
        code = ErrorCode.INVALID_TXN_STATE
    if code in _AS_NOT_ENOUGH_REPLICAS or (code == ErrorCode.CONCURRENT_TRANSACTIONS and version < WITH_IMPLICIT_ADD):
        message = f"cannot verify that the partition is part of the transaction: {code.name}"
        return Refusal(ErrorCode.NOT_ENOUGH_REPLICAS, message)
    if code == ErrorCode.INVALID_TXN_STATE:
        return Refusal(code, "the partition is not part of the transaction")
    return Refusal(code, code.text)
