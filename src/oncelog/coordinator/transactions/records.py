"""Transactions as records of `__transaction_state`, in Kafka's layout (`TransactionLog`)."""

from __future__ import annotations

from oncelog.coordinator.effects import CoordinatorRecord
from oncelog.coordinator.transactions.metadata import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    PREPARED,
    TransactionMetadata,
    TransactionState,
)
from oncelog.protocol.messages.transaction_log import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)
from oncelog.protocol.schema import read_version

KEY_VERSION = 0


def _value_version(transaction: TransactionMetadata, transaction_version: int) -> int:
    """Return the version of the layout. Version 1, since transaction.version 1, has tagged fields.

    After a downgrade to 0, a client with old metadata may still end a transaction in version 2, and a session may have
    to end one that it has kept. The coordinator needs the tagged fields to complete it, and to recognize a retry, after
    a failover.
    """
    return 1 if transaction_version >= 1 or transaction.client_version >= 2 or transaction.has_next_epoch else 0


def transaction_record(transaction: TransactionMetadata, transaction_version: int) -> CoordinatorRecord:
    """Return the record that makes `transaction` the state, with its partitions in a stable order."""
    partitions: list[PartitionsSchema] | None = None
    if transaction.state is not TransactionState.EMPTY:
        by_topic = transaction.indexes_by_topic()
        partitions = [PartitionsSchema(topic=topic, partition_ids=ids) for topic, ids in by_topic.items()]
    version = _value_version(transaction, transaction_version)
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state,
        transaction_partitions=partitions,
        transaction_last_update_timestamp_ms=transaction.last_update_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
    )
    if version >= 1:
        value.client_transaction_version = transaction.client_version
        value.previous_producer_id = transaction.previous_producer_id
        value.next_producer_id = transaction.next_producer_id
        value.next_producer_epoch = transaction.next_producer_epoch
    return CoordinatorRecord(_key(transaction.transactional_id), KEY_VERSION, value, version)


def tombstone(transactional_id: str) -> CoordinatorRecord:
    """Return the record that deletes a transactional id."""
    return CoordinatorRecord(_key(transactional_id), KEY_VERSION, None)


def transaction_of(key: TransactionLogKey, value: TransactionLogValue) -> TransactionMetadata:
    """Return the transaction in a record. Ignore the next producer unless the transaction is open or prepared."""
    state = TransactionState(value.transaction_status)
    next_producer = value.next_producer_id, value.next_producer_epoch
    if next_producer[0] == NO_PRODUCER_ID or not (state in PREPARED or state is TransactionState.ONGOING):
        next_producer = NO_PRODUCER_ID, NO_EPOCH
    return TransactionMetadata(
        transactional_id=key.transactional_id,
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        state=state,
        partitions=frozenset(
            (partitions.topic, index)
            for partitions in value.transaction_partitions or ()
            for index in partitions.partition_ids
        ),
        start_ms=value.transaction_start_timestamp_ms,
        last_update_ms=value.transaction_last_update_timestamp_ms,
        client_version=value.client_transaction_version,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=next_producer[0],
        next_producer_epoch=next_producer[1],
    )


def decode_record(key: bytes, value: bytes | None) -> CoordinatorRecord | None:
    """Decode a record of the topic. Return None if a newer broker has written a key or value of an unknown version."""
    if read_version(key) != KEY_VERSION:
        return None
    decoded_key = TransactionLogKey.decode(key[2:], KEY_VERSION)
    if value is None:
        return CoordinatorRecord(decoded_key, KEY_VERSION, None)
    version = read_version(value)
    if not TransactionLogValue.MIN_VERSION <= version <= TransactionLogValue.MAX_VERSION:
        return None
    return CoordinatorRecord(decoded_key, KEY_VERSION, TransactionLogValue.decode(value[2:], version), version)


def _key(transactional_id: str) -> TransactionLogKey:
    return TransactionLogKey(transactional_id=transactional_id)
