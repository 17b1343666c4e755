"""Requests of the transaction tests, in addition to `support.wire`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from oncelog.coordinator.partitioning import partition_for
from oncelog.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from oncelog.protocol.messages.api_versions import ApiVersionsRequest
from oncelog.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from oncelog.protocol.messages.describe_transactions import DescribeTransactionsRequest
from oncelog.protocol.messages.end_txn import EndTxnRequest
from oncelog.protocol.messages.list_transactions import ListTransactionsRequest
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from oncelog.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from oncelog.protocol.messages.transaction_log import PartitionsSchema, TransactionLogKey, TransactionLogValue
from oncelog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from oncelog.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from oncelog.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from oncelog.protocol.records import Record, build_batch, decode_control, decode_records, iter_batches
from oncelog.protocol.schema import encode_versioned, read_version
from support.wire import Session, Wire, batch, retried, until

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
TRANSACTION_VERSION = "transaction.version"
LONG_AGO = 1_600_000_000_000
TWO_PHASE_SETTINGS = {
    "transaction.two.phase.commit.enable": "true",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "50",
}
"""Settings of a server with two-phase commit (KIP-939) that soon aborts usual transactions after their timeout."""
UNSTABLE = 88
"""UNSTABLE_OFFSET_COMMIT"""


# -- reading the state ------------------------------------------------------------------------------------------------


def describe(wire: Wire, transactional_id: str) -> Any:
    """Send DescribeTransactions for one id."""
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    return retried(lambda: wire.call(request).transaction_states[0])


def state(wire: Wire, transactional_id: str) -> str:
    """Return the state of an existing transactional id."""
    answer = describe(wire, transactional_id)
    assert not answer.error_code, answer
    text: str = answer.transaction_state
    return text


def until_state(wire: Wire, transactional_id: str, *wanted: str) -> Any:
    """Wait until the transaction is in one of the states. Return its description."""
    return until(lambda: describe(wire, transactional_id), lambda a: a.transaction_state in wanted, f"it is {wanted}")


def listed(wire: Wire, version: int | None = None, **filters: Any) -> Any:
    """Send ListTransactions."""
    return retried(lambda: wire.call(ListTransactionsRequest(**filters), version))


def producers(wire: Wire, topic: str, partition: int = 0) -> Mapping[int, Any]:
    """Send DescribeProducers for a partition, and return the producers by id."""
    request = DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=[partition])])
    found = wire.call(request).topics[0].partitions[0]
    assert not found.error_code, found
    return {each.producer_id: each for each in found.active_producers}


def markers(wire: Wire, topic_id: Any, partition: int = 0) -> list[tuple[int, int, str]]:
    """Return the control batches of a partition: (producer id, epoch, COMMIT or ABORT)."""
    found = wire.fetch(topic_id, partition)
    assert not found.error_code, found
    return [
        (header.producer_id, header.producer_epoch, "COMMIT" if decode_control(view)[0] else "ABORT")
        for header, view in iter_batches(found.records or b"")
        if header.is_control
    ]


# -- the flow of a transaction ----------------------------------------------------------------------------------------


def write(
    wire: Wire,
    transactional_id: str,
    who: Session,
    topic: str,
    values: Iterable[bytes],
    sequence: int = 0,
    *,
    partition: int = 0,
    version: int = 12,
) -> Any:
    """Write one transactional batch, and return the first response.

    From version 12 on, it adds its partition to the transaction.
    """
    data = batch(values, who, sequence, transactional=True)
    return wire.produce(topic, data, partition=partition, transactional_id=transactional_id, version=version)


def write_old(wire: Wire, name: str, version: int, timestamp: int = LONG_AGO) -> Session:
    """Write a transaction whose only record is old. Before version 12, its coordinator does not know of it."""
    who = wire.session(name)
    old = build_batch(
        [Record(0, timestamp, None, b"x")],
        producer_id=who.producer_id,
        producer_epoch=who.epoch,
        base_sequence=0,
        transactional=True,
    )
    answer = wire.produce(name, old, transactional_id=name, version=version)
    assert not answer.error_code, answer
    return who


def written(*arguments: Any, **options: Any) -> Any:
    """Write as `write`, with retries while the previous transaction's markers are pending. It must succeed."""
    answer = retried(lambda: write(*arguments, **options))
    assert not answer.error_code, answer
    return answer


def pass_timeout(wire: Wire, name: str, timeout_ms: int = 1) -> None:
    """Return when a transaction that begins now is aborted after this timeout. Creates a topic and id NAME-usual."""
    usual = f"{name}-usual"
    wire.create_topic(usual)
    written(wire, usual, wire.session(usual, timeout_ms=timeout_ms), usual, [b"x"])
    until_state(wire, usual, "CompleteAbort")


def end_once(wire: Wire, transactional_id: str, who: Session, commit: bool = True, *, version: int = 5) -> Any:
    """Send one EndTxn, and return its response, even an error."""
    request = EndTxnRequest(
        transactional_id=transactional_id, producer_id=who.producer_id, producer_epoch=who.epoch, committed=commit
    )
    return wire.call(request, version)


def ended(wire: Wire, transactional_id: str, who: Session, commit: bool = True) -> Session:
    """Send EndTxn of transaction.version 2, which must succeed. Return the producer of the next transaction."""
    answer = wire.end(transactional_id, who, commit, version=5)
    assert not answer.error_code, answer
    return Session(answer.producer_id, answer.producer_epoch)


def verify(wire: Wire, transactional_id: str, who: Session, topic: str, partitions: Sequence[int] = (0,)) -> list[int]:
    """Send AddPartitionsToTxn as brokers do, to verify partitions. Return each one's error, by number."""
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=transactional_id,
        producer_id=who.producer_id,
        producer_epoch=who.epoch,
        verify_only=True,
        topics=[AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))],
    )
    answer = wire.call(AddPartitionsToTxnRequest(transactions=[transaction]), 4)
    results = answer.results_by_transaction[0].topic_results[0].results_by_partition
    return [result.partition_error_code for result in sorted(results, key=lambda each: each.partition_index)]


def commit_offset(
    wire: Wire,
    transactional_id: str,
    who: Session,
    group: str,
    topic: str,
    offset: int,
    *,
    version: int = 5,
    generation: int = -1,
    member: str = "",
) -> int:
    """Send TxnOffsetCommit for one partition, and return its error code."""
    request = TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=group,
        producer_id=who.producer_id,
        producer_epoch=who.epoch,
        generation_id=generation,
        member_id=member,
        topics=[
            TxnOffsetCommitRequestTopic(
                name=topic, partitions=[TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)]
            )
        ],
    )
    answer = retried(lambda: wire.call(request, version), lambda response: response.topics[0].partitions[0].error_code)
    code: int = answer.topics[0].partitions[0].error_code
    return code


def committed(wire: Wire, group: str, topic: str, *, stable: bool = True) -> tuple[int, int]:
    """Send OffsetFetch for one partition, and return (offset, error code)."""
    request = OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(
                group_id=group, topics=[OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
            )
        ],
        require_stable=stable,
    )
    found = retried(lambda: wire.call(request, 8).groups[0])
    assert not found.error_code, found
    partition = found.topics[0].partitions[0]
    return partition.committed_offset, partition.error_code


def marker(
    wire: Wire,
    who: Session,
    topic: str,
    *,
    partitions: Sequence[int] = (0,),
    commit: bool = False,
    coordinator_epoch: int = 0,
    transaction_version: int = 0,
    version: int | None = None,
) -> list[int]:
    """Send WriteTxnMarkers, as an operator's abort does. Return an error code for each partition."""
    wanted = WritableTxnMarker(
        producer_id=who.producer_id,
        producer_epoch=who.epoch,
        transaction_result=commit,
        topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=list(partitions))],
        coordinator_epoch=coordinator_epoch,
        transaction_version=transaction_version,
    )
    answer = wire.call(WriteTxnMarkersRequest(markers=[wanted]), version)
    return [each.error_code for each in answer.markers[0].topics[0].partitions]


# -- features ------------------------------------------------------------------------------------------------------


def update_features(
    wire: Wire, *changes: tuple[str, int, int], version: int | None = None, validate_only: bool = False
) -> Any:
    """Send UpdateFeatures. A change is (feature, level, type)."""
    updates = [
        FeatureUpdateKey(feature=feature, max_version_level=level, upgrade_type=kind)
        for feature, level, kind in changes
    ]
    return wire.call(UpdateFeaturesRequest(feature_updates=updates, validate_only=validate_only), version)


def features(wire: Wire) -> Any:
    """Send ApiVersions again."""
    return wire.call(ApiVersionsRequest(client_software_name="wire", client_software_version="1"), 4)


def level_of(answer: Any, feature: str = TRANSACTION_VERSION) -> int:
    """Return a feature's finalised level in an ApiVersions answer."""
    return next((each.max_version_level for each in answer.finalized_features if each.name == feature), 0)


def set_transaction_version(wire: Wire, level: int) -> None:
    """Upgrade or downgrade, and wait until clients see the level."""
    if level_of(features(wire)) == level:
        return
    kind = UPGRADE if level > level_of(features(wire)) else UNSAFE_DOWNGRADE
    answer = update_features(wire, (TRANSACTION_VERSION, level, kind))
    assert not answer.error_code, answer
    until(lambda: level_of(features(wire)), lambda found: found == level, f"{TRANSACTION_VERSION} is {level}")


# -- the coordinator's own log -------------------------------------------------------------------------------------

ADMIN = "__admin_client"
"""The client id that may write to internal topics."""
EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT = range(6)


def state_partition(transactional_id: str, partitions: int = 50) -> int:
    """Return the partition of `__transaction_state` for an id."""
    return partition_for(transactional_id, partitions)


def seed(
    wire: Wire,
    transactional_id: str,
    who: Session,
    status: int,
    *,
    partitions: Sequence[tuple[str, int]] | None = (),
    **fields: Any,
) -> None:
    """Write a record into the coordinator's log without the coordinator (`Wire(..., ADMIN)`): it counts from the next
    start.

    This creates a state that otherwise needs 32,767 requests, or a crash at the right moment.
    """
    now = int(time.time() * 1000)
    schema = [PartitionsSchema(topic=topic, partition_ids=[index]) for topic, index in partitions or ()]
    value = TransactionLogValue(
        **{
            "producer_id": who.producer_id,
            "producer_epoch": who.epoch,
            "transaction_timeout_ms": 60_000,
            "transaction_status": status,
            "transaction_partitions": None if status == EMPTY else schema,
            "transaction_last_update_timestamp_ms": now,
            "transaction_start_timestamp_ms": -1 if status == EMPTY else now,
            "client_transaction_version": 2,
            **fields,
        }
    )
    key = encode_versioned(TransactionLogKey(transactional_id=transactional_id), 0)
    data = build_batch([Record(0, now, key, encode_versioned(value, 1))])
    where = state_partition(transactional_id)
    answer = retried(lambda: wire.produce("__transaction_state", data, partition=where))
    assert not answer.error_code, answer


def logged(wire: Wire, transactional_id: str) -> list[tuple[int, Any]]:
    """Return the last record of an id in the coordinator's log: (version, TransactionLogValue), or (-1, None) for a
    tombstone.
    """
    metadata = wire.call(MetadataRequest(topics=[MetadataRequestTopic(name="__transaction_state")]), 12)
    found = wire.fetch(metadata.topics[0].topic_id, state_partition(transactional_id))
    assert not found.error_code, found
    values: list[tuple[int, Any]] = []
    for header, view in iter_batches(found.records or b""):
        for record in () if header.is_control else decode_records(view):
            key = TransactionLogKey.decode((record.key or b"")[2:], read_version(record.key or b""))
            if key.transactional_id != transactional_id:
                continue
            if record.value is None:
                values.append((-1, None))
                continue
            version = read_version(record.value)
            values.append((version, TransactionLogValue.decode(record.value[2:], version)))
    return values
