"""Read the coordinators' topics from a cluster, and decode their records as Kafka's DumpLogSegments does."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from oncelog import errors
from oncelog.cli.common import moment, open_cluster, printable
from oncelog.cli.log_format import note
from oncelog.cli.partition_tailer import BEGINNING, READ_COMMITTED, READ_UNCOMMITTED, Marker, PartitionTailer
from oncelog.coordinator.effects import CoordinatorRecord
from oncelog.coordinator.groups.records import decode_record as decode_group_record
from oncelog.coordinator.transactions.metadata import TransactionState
from oncelog.coordinator.transactions.records import decode_record as decode_transaction_record
from oncelog.protocol.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from oncelog.protocol.messages.group_metadata_value import GroupMetadataValue
from oncelog.protocol.messages.transaction_log import TransactionLogValue
from oncelog.protocol.records import Record
from oncelog.protocol.schema import DecodeError, Message, read_version
from oncelog.protocol.topics import CONSUMER_OFFSETS, TRANSACTION_STATE

if TYPE_CHECKING:
    from oncelog import Admin

Decoder = Callable[[bytes, "bytes | None"], "CoordinatorRecord | None"]

DECODERS: dict[str, Decoder] = {"offsets": decode_group_record, "transactions": decode_transaction_record}
_OF_TOPIC = {CONSUMER_OFFSETS: DECODERS["offsets"], TRANSACTION_STATE: DECODERS["transactions"]}


def decoder_of(path: str) -> Decoder | None:
    """Return the decoder for a file, by the topic in the name of its directory. Return None for other topics."""
    return _OF_TOPIC.get(os.path.basename(os.path.dirname(os.path.abspath(path))).rpartition("-")[0])


def home_partition(admin: Admin, topic: str, name: str) -> str:
    """Return the partition of `topic` where a group or transactional id lives: its leader is the coordinator."""
    from oncelog.coordinator.partitioning import partition_for

    (known,) = admin.describe_topics(topic)
    return f"{topic}-{partition_for(name, len(known.partitions))}"


def print_records(
    bootstrap: str,
    topic: str,
    name: str | None,
    line_of: Callable[[int, Record], str | None],
    missing: str,
    *,
    isolation: int,
    follow: bool,
) -> None:
    """Print a line for each record of the partition where the group or transactional id `name` lives, or of all.

    `line_of` gets the partition and a record, and returns None for one to omit. Without `follow`, end at the present
    end of each partition. With it, wait for a topic that does not exist yet. A record that cannot be decoded is a
    remark on stderr. Raises ClickException with the text `missing` if there is a name, and no line of it. If
    read_committed has hidden its records, the text says so instead.
    """

    async def run() -> int:
        lines = 0
        async for partition, record in _read(bootstrap, topic, name, isolation, follow):
            try:
                line = line_of(partition, record)
            except (DecodeError, IndexError) as error:
                note(f"cannot decode the record of {topic}-{partition} at offset {record.offset}: {error}")
                continue
            if line is not None:
                lines += 1
                click.echo(printable(line))
        return lines

    try:
        lines = asyncio.run(run())
    except (KeyboardInterrupt, BrokenPipeError):  # the ordinary ends, as in `topic consume`
        return
    if name is not None and not lines:
        if isolation == READ_COMMITTED and asyncio.run(_has_uncommitted(bootstrap, topic, name, line_of)):
            raise click.ClickException(
                f"{topic} has records of {name!r}, but only of transactions that are open or aborted, or behind an "
                "open one; without --read-committed, they are printed"
            )
        raise click.ClickException(missing)


def place(partition: int, record: Record) -> dict[str, int]:
    """Return where a record is, and its time, for JSON."""
    return {"partition": partition, "offset": record.offset, "timestamp": record.timestamp}


def place_text(topic: str, partition: int, record: Record) -> str:
    """Return the same as a text."""
    return f"{topic}-{partition} offset {record.offset} at {moment(record.timestamp)}"


async def _has_uncommitted(bootstrap: str, topic: str, name: str, line_of: Callable[[int, Record], str | None]) -> bool:
    async for partition, record in _read(bootstrap, topic, name, READ_UNCOMMITTED, follow=False):
        with suppress(DecodeError, IndexError):
            if line_of(partition, record) is not None:
                return True
    return False


async def _read(
    bootstrap: str, topic: str, name: str | None, isolation: int, follow: bool
) -> AsyncIterator[tuple[int, Record]]:
    from oncelog.coordinator.partitioning import partition_for

    async with open_cluster(bootstrap) as cluster:
        waits = False
        while True:
            try:
                known = await cluster.topic(topic)
                break
            except errors.UnknownTopicError:  # no coordinator has written anything yet
                if not follow:
                    return
            if not waits:
                note(f"{topic} does not exist yet; waiting until a coordinator creates it")
                waits = True
        count = len(known.partitions)
        numbers = range(count) if name is None else [partition_for(name, count)]
        tailer = PartitionTailer(cluster, topic, numbers, isolation=isolation, markers=False)
        await tailer.seek(BEGINNING)
        async for number, item in tailer.read(None if follow else await tailer.ends()):
            assert not isinstance(item, Marker)
            yield number, item


def of_known_kind(item: Record, decoder: Decoder) -> CoordinatorRecord | None:
    """Return the decoded record, or None for a kind that oncelog does not have. Raises DecodeError if it cannot.

    For example, a record of a newer broker may have a known key, and a newer version of the value.
    """
    record = None if item.key is None else decoder(item.key, item.value)
    if record is None and item.key is not None and item.value is not None and decoder(item.key, None) is not None:
        raise DecodeError(f"version {read_version(item.value)} of its value is not known here")
    return record


def decoded(key: bytes | None, value: bytes | None, decoder: Decoder) -> dict[str, Any] | None:
    """Return the documents `key` and `value`. Return None for an unknown record, or one of a newer version."""
    try:
        record = None if key is None else decoder(key, value)
    except (DecodeError, IndexError):
        return None
    return None if record is None else described(record)


def described(record: CoordinatorRecord) -> dict[str, Any]:
    """Return the documents `key` and `value`. Decode consumers' subscriptions, and name the transaction's state."""
    found = document(record)
    if isinstance(record.value, TransactionLogValue):
        found["value"]["data"]["transactionStatusName"] = state_name(record.value.transaction_status)
    elif isinstance(record.value, GroupMetadataValue) and record.value.protocol_type == "consumer":
        for member, row in zip(record.value.members, found["value"]["data"]["members"], strict=True):
            row["subscription"] = _of_consumer(member.subscription, ConsumerProtocolSubscription, row["subscription"])
            row["assignment"] = _of_consumer(member.assignment, ConsumerProtocolAssignment, row["assignment"])
    return found


def document(record: CoordinatorRecord) -> dict[str, Any]:
    """Return the documents `key` and `value`, as Kafka 4's message formatters print them."""
    value = None
    if record.value is not None:
        value = {"version": record.value_version, "data": message_json(record.value, record.value_version)}
    return {
        "key": {"type": record.key_version, "data": message_json(record.key, record.key_version)},
        "value": value,
    }


def state_name(status: int) -> str:
    """Return the name of a transaction's state by its number in the log: `PrepareCommit`."""
    return TransactionState(status).text if status in set(TransactionState) else f"unknown ({status})"


def _of_consumer(data: bytes, kind: type[Message], otherwise: str) -> dict[str, Any] | str:
    """Return the decoded message of a consumer to its group, or `otherwise` if `data` is no such message."""
    try:
        version = min(read_version(data), kind.MAX_VERSION)
        return message_json(kind.decode_from(data, 2, version)[0], version)
    except (DecodeError, IndexError):
        return otherwise


def message_json(message: Message, version: int) -> dict[str, Any]:
    """Return the fields of a version by Kafka's names. Omit tagged fields (KIP-482) that have their default."""
    found = {}
    for name, field in type(message).FIELDS.items():
        value = getattr(message, name)
        if field.present(version) and (field.tag is None or value != field.default):
            first, *others = name.split("_")
            found[first + "".join(map(str.capitalize, others))] = _plain(value, version)
    return found


def _plain(value: Any, version: int) -> Any:
    if isinstance(value, Message):
        return message_json(value, version)
    if isinstance(value, (list, tuple)):
        return [_plain(item, version) for item in value]
    if isinstance(value, UUID):
        return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode()
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value
