"""Keys and values of the internal topics, against bytes written by Apache Kafka 4.3.1's own classes."""

from __future__ import annotations

from uuid import UUID

import pytest

from oncelog.protocol.messages.group_metadata_value import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from oncelog.protocol.messages.offset_commit_value import OffsetCommitKey, OffsetCommitValue
from oncelog.protocol.messages.transaction_log import PartitionsSchema, TransactionLogKey, TransactionLogValue
from oncelog.protocol.schema import Message, UnsupportedVersionError, encode_versioned, read_version


def transaction(**later: int) -> TransactionLogValue:
    return TransactionLogValue(
        producer_id=4000,
        producer_epoch=3,
        transaction_timeout_ms=60_000,
        transaction_status=1,
        transaction_partitions=[PartitionsSchema(topic="out", partition_ids=[0, 2])],
        transaction_last_update_timestamp_ms=1_700_000_000_001,
        transaction_start_timestamp_ms=1_700_000_000_000,
        **later,
    )


def group(version: int) -> GroupMetadataValue:
    member = MemberMetadata(
        member_id="m-1",
        client_id="c",
        client_host="/h",
        session_timeout=10_000,
        subscription=b"\x01\x02",
        assignment=b"\x03",
    )
    if version >= 1:
        member.rebalance_timeout = 30_000
    if version >= 3:
        member.group_instance_id = "i"
    value = GroupMetadataValue(protocol_type="consumer", generation=7, protocol="range", leader="m-1", members=[member])
    if version >= 2:
        value.current_state_timestamp = 1_700_000_000_000
    return value


def offset(**more: object) -> OffsetCommitValue:
    return OffsetCommitValue(offset=12, metadata="m", commit_timestamp=1_700_000_000_000, **more)  # type: ignore[arg-type]


WRITTEN_BY_KAFKA: list[tuple[Message, int, str]] = [
    (transaction(), 0,
     "00000000000000000fa000030000ea60010000000100036f75740000000200000000000000020000018bcfe568010000018bcfe56800"),
    (transaction(previous_producer_id=3999, next_producer_id=4001, next_producer_epoch=4, client_transaction_version=2),
     1, "00010000000000000fa000030000ea600102046f7574030000000000000002000000018bcfe568010000018bcfe56800"
        "0400080000000000000f9f01080000000000000fa10202000203020004"),
    (TransactionLogValue(producer_id=1, transaction_partitions=None), 1,
     "0001000000000000000100000000000000000000000000000000000000000000000000"),
    (TransactionLogKey(transactional_id="tid"), 0, "00000003746964"),
    (offset(), 0, "0000000000000000000c00016d0000018bcfe56800"),
    (offset(expire_timestamp=1_700_000_060_000), 1, "0001000000000000000c00016d0000018bcfe568000000018bcfe65260"),
    (offset(), 2, "0002000000000000000c00016d0000018bcfe56800"),
    (offset(leader_epoch=5), 3, "0003000000000000000c0000000500016d0000018bcfe56800"),
    (offset(leader_epoch=5, topic_id=UUID(int=(1 << 64) + 2)), 4,
     "0004000000000000000c00000005026d0000018bcfe5680001001000000000000000010000000000000002"),
    (OffsetCommitKey(group="g", topic="t", partition=3), 1, "000100016700017400000003"),
    (group(0), 0, "00000008636f6e73756d657200000007000572616e676500036d2d310000000100036d2d3100016300022f6800002710"
                  "0000000201020000000103"),
    (group(1), 1, "00010008636f6e73756d657200000007000572616e676500036d2d310000000100036d2d3100016300022f6800007530"
                  "000027100000000201020000000103"),
    (group(2), 2, "00020008636f6e73756d657200000007000572616e676500036d2d310000018bcfe568000000000100036d2d31000163"
                  "00022f6800007530000027100000000201020000000103"),
    (group(3), 3, "00030008636f6e73756d657200000007000572616e676500036d2d310000018bcfe568000000000100036d2d31000169"
                  "00016300022f6800007530000027100000000201020000000103"),
    (group(4), 4, "000409636f6e73756d6572000000070672616e6765046d2d310000018bcfe5680002046d2d3102690263032f68000075"
                  "300000271003010202030000"),
    (GroupMetadataKey(group="g"), 2, "0002000167"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("message", "version", "raw"),
    WRITTEN_BY_KAFKA,
    ids=lambda value: type(value).__name__ if isinstance(value, Message) else None,
)
def test_bytes_equal_kafkas_both_ways(message: Message, version: int, raw: str) -> None:
    data = bytes.fromhex(raw)
    assert encode_versioned(message, version).hex() == raw
    assert read_version(data) == version
    assert type(message).decode(data[2:], version) == message


def test_value_of_a_tagged_field_is_rejected_in_a_version_without_tags() -> None:
    with pytest.raises(UnsupportedVersionError, match="next_producer_id"):
        transaction(next_producer_id=5).encode(0)
