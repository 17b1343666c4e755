"""Check a Produce before its records are appended: as a whole, and the transactions of its partitions."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.requests.context import RequestContext

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


Resolved = list[tuple[TopicProduceData, list[Target]]]
Unverified = tuple[int, int, list[Target]]
"""Producer id, epoch, and partitions whose logs do not know the open transaction yet."""


def check(
    broker: Broker, request: ProduceRequest, ctx: RequestContext, resolved: Resolved
) -> Generator[None, None, Unverified | None]:
    """Check the request as a whole. If it is invalid, refuse all partitions. Pause after each transactional one."""
    unverified = None
    try:
        if request.transactional_id is None:
            _check_untransactional(resolved)
        else:
            unverified = yield from _unverified(broker, resolved, ctx.api_version)
        if request.acks not in (ALL, 0, 1):
            raise ProtocolError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks must be -1, 0 or 1, not {request.acks}")
    except ProtocolError as error:
        _refuse_all(resolved, Refusal.of(error))
        return None
    return unverified


def _check_untransactional(resolved: Resolved) -> None:
    """Reject transactional records in a request without a transactional id."""
    for _, targets in resolved:
        for target in targets:
            records = target.data.records
            if records and len(records) > ATTRIBUTES_LOW and records[ATTRIBUTES_LOW] & _TRANSACTIONAL:
                raise ProtocolError(
                    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                    f"transactional records for {target.topic}-{target.data.index}, but the request has no "
                    "transactional id",
                )


def _unverified(broker: Broker, resolved: Resolved, version: int) -> Generator[None, None, Unverified | None]:
    """Find the partitions whose logs do not know the open transaction yet, with pauses.

    Raises INVALID_PRODUCER_ID_MAPPING if the request holds the transactional batches of several producers.
    """
    transactional: list[tuple[Target, Replica, BatchHeader]] = []
    for _, targets in resolved:
        for target in targets:
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
            f"a transactional request may hold the batches of one producer only, not of {names}",
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
                now_ms=broker.now_ms(),
            )
            # None: the transaction is open here. The log looks again when it appends, for another partition of
            # the request may have to wait, and a marker may come in the meantime.
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
        message = f"cannot verify that the partition is in the transaction: {code.name}"
        return Refusal(ErrorCode.NOT_ENOUGH_REPLICAS, message)
    if code == ErrorCode.INVALID_TXN_STATE:
        return Refusal(code, "the partition was not added to the transaction")
    return Refusal(code, code.text)


def _refuse_all(resolved: Resolved, refusal: Refusal) -> None:
    """Reject every partition with the same error, whether its log was found or not."""
    for _, targets in resolved:
        for target in targets:
            target.refusal = refusal
