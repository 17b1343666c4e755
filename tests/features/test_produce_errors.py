"""I11: each mistake of a producer gets Kafka's error in Kafka's scope, and a message that names the object."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest
from crc32c import crc32c

from oncelog.protocol.compression import Codec
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.records import Record, build_batch, build_control_batch
from support.servers import Server
from support.transactions import ended, producers, written
from support.wire import Session, Wire, batch, code, until

OUT_OF_ORDER = code("OUT_OF_ORDER_SEQUENCE_NUMBER")
INVALID_RECORD = code("INVALID_RECORD")
CORRUPT = code("CORRUPT_MESSAGE")
INVALID_EPOCH = code("INVALID_PRODUCER_EPOCH")
MAPPING = code("INVALID_PRODUCER_ID_MAPPING")
NO_TRANSACTIONAL_ID = code("TRANSACTIONAL_ID_AUTHORIZATION_FAILED")
SOMEBODY = Session(4_000_000_000, 0)

Parts = dict[tuple[str, int], bytes | bytearray]


def codes(
    wire: Wire, parts: Parts, *, transactional_id: str | None = None, version: int = 11, acks: int = -1
) -> dict[tuple[str, int], int]:
    """Return the error of every partition of one request."""
    topics: dict[str, TopicProduceData] = {}
    for (topic, index), records in parts.items():
        data = topics.setdefault(topic, TopicProduceData(name=topic, partition_data=[]))
        data.partition_data.append(PartitionProduceData(index=index, records=bytes(records)))
    request = ProduceRequest(
        transactional_id=transactional_id, acks=acks, timeout_ms=10_000, topic_data=list(topics.values())
    )
    answer = wire.call(request, version)
    return {
        (topic.name, partition.index): partition.error_code
        for topic in answer.responses
        for partition in topic.partition_responses
    }


# -- errors of the whole request ---------------------------------------------------------------------------------------


def test_transactional_records_without_a_transactional_id_fail_the_whole_request(wire: Wire, name: str) -> None:
    wire.create_topic(name, 3)
    who = wire.session()
    parts: Parts = {
        (name, 0): batch([b"plain"]),
        (name, 1): batch([b"v"], who, 0, transactional=True),
        (name, 2): batch([b"v"], who, 0),
        ("no-such-topic", 0): batch([b"v"]),
    }
    assert codes(wire, parts) == dict.fromkeys(parts, NO_TRANSACTIONAL_ID)
    assert codes(wire, parts, acks=7) == dict.fromkeys(parts, NO_TRANSACTIONAL_ID), "this setting precedes acks"
    assert [wire.offset(name, partition=index) for index in range(3)] == [0, 0, 0]


def test_two_producers_in_one_transactional_request_fail_it_as_a_whole(wire: Wire, name: str) -> None:
    wire.create_topic(name, 3)
    who = wire.session(name)
    for other in (SOMEBODY, Session(who.producer_id, who.epoch + 1)):
        parts: Parts = {
            (name, 0): batch([b"v"], who, 0, transactional=True),
            (name, 1): batch([b"v"], other, 0, transactional=True),
            (name, 2): batch([b"plain"]),
            ("no-such-topic", 0): batch([b"plain"]),
        }
        for version in (11, 12):
            assert codes(wire, parts, transactional_id=name, version=version) == dict.fromkeys(parts, MAPPING)
    assert [wire.offset(name, partition=index) for index in range(3)] == [0, 0, 0]
    assert who.producer_id not in producers(wire, name)


def test_several_producers_without_transactions_may_share_a_request(wire: Wire, name: str) -> None:
    wire.create_topic(name, 3)
    one, two = wire.session(), wire.session()
    parts: Parts = {(name, 0): batch([b"v"], one, 0), (name, 1): batch([b"v"], two, 0), (name, 2): batch([b"v"])}
    assert codes(wire, parts) == dict.fromkeys(parts, 0)


def test_batch_of_a_missing_partition_is_ignored(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    who = wire.session(name)
    parts: Parts = {
        (name, 0): batch([b"v"], who, 0, transactional=True),
        (name, 1): batch([b"v"], SOMEBODY, 0, transactional=True),
    }
    found = until(
        lambda: codes(wire, parts, transactional_id=name, version=12), lambda c: not c[name, 0], "the batch is accepted"
    )
    assert found == {(name, 0): 0, (name, 1): code("UNKNOWN_TOPIC_OR_PARTITION")}
    ended(wire, name, who)


def test_plain_records_in_a_transactional_request_stay_plain(wire: Wire, name: str) -> None:
    topic = wire.create_topic(name, 2)
    who = wire.session(name)
    parts: Parts = {(name, 0): batch([b"plain"]), (name, 1): batch([b"v"], who, 0, transactional=True)}
    found = until(
        lambda: codes(wire, parts, transactional_id=name, version=12),
        lambda c: not any(c.values()),
        "the batch is accepted",
    )
    assert found == dict.fromkeys(parts, 0)
    assert b"plain" in wire.values(topic, 0, committed=True)
    assert wire.values(topic, 1, committed=True) == []
    ended(wire, name, who, False)


@pytest.mark.parametrize("what", ["no transactional id", "two producers"])
def test_invalid_transactional_request_with_acks_0_closes_the_connection(server: Server, name: str, what: str) -> None:
    with Wire(server.bootstrap) as wire:
        wire.create_topic(name, 2)
        who = wire.session(name)
        data = [
            PartitionProduceData(index=0, records=bytes(batch([b"v"], who, 0, transactional=True))),
            PartitionProduceData(index=1, records=bytes(batch([b"v"], SOMEBODY, 0, transactional=True))),
        ]
        transactional_id = name if what == "two producers" else None
        request = ProduceRequest(
            transactional_id=transactional_id, acks=0, topic_data=[TopicProduceData(name=name, partition_data=data)]
        )
        wire.send(request, 11)
        with pytest.raises(OSError, match=r".*"):
            wire.offset(name)


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_invalid_acks_fail_the_whole_request(wire: Wire, name: str, acks: int) -> None:
    wire.create_topic(name, 2)
    parts: Parts = {(name, 0): batch([b"v"]), (name, 1): batch([b"v"])}
    assert codes(wire, parts, acks=acks) == dict.fromkeys(parts, code("INVALID_REQUIRED_ACKS"))


# -- errors of one partition -------------------------------------------------------------------------------------------


def test_error_in_one_partition_does_not_affect_the_others(wire: Wire, name: str) -> None:
    wire.create_topic(name, 4)
    who = wire.session()
    wire.produce(name, batch([b"v"], who, 0), partition=1)
    wire.produce(name, batch([b"v"], Session(who.producer_id, 3), 0), partition=2)
    parts: Parts = {
        (name, 0): batch([b"v"], who, 0),
        (name, 1): batch([b"v"], who, 5),
        (name, 2): batch([b"v"], who, 0),
        (name, 3): b"",
        (name, 9): batch([b"v"], who, 0),
    }
    assert codes(wire, parts) == {
        (name, 0): 0,
        (name, 1): OUT_OF_ORDER,
        (name, 2): INVALID_EPOCH,
        (name, 3): INVALID_RECORD,
        (name, 9): code("UNKNOWN_TOPIC_OR_PARTITION"),
    }
    assert wire.offset(name, partition=0) == 1


def changed(records: bytearray, at: int, data: bytes, *, crc: bool = True) -> bytearray:
    """Return a batch with other bytes in its header and a correct checksum."""
    records[at : at + len(data)] = data
    if crc:
        records[17:21] = crc32c(records[21:]).to_bytes(4, "big")
    return records


def control(who: Session) -> bytearray:
    """Return a marker without the transactional flag. With the flag, the whole request is rejected."""
    records = build_control_batch(
        True, producer_id=who.producer_id, producer_epoch=who.epoch, coordinator_epoch=0, timestamp=1_700_000_000_000
    )
    return changed(records, 21, b"\0\x20")


WRONG: dict[str, tuple[Callable[[Session], bytes | bytearray], int]] = {
    "a control batch": (control, INVALID_RECORD),
    "wrong checksum": (lambda who: changed(batch([b"v"], who, 0), 67, b"x", crc=False), CORRUPT),
    "count too large": (lambda who: changed(batch([b"v"] * 3, who, 0), 57, (4).to_bytes(4, "big")), INVALID_RECORD),
    "count too small": (lambda who: changed(batch([b"v"] * 3, who, 0), 57, (2).to_bytes(4, "big")), INVALID_RECORD),
    "count of zero": (lambda who: changed(batch([b"v"], who, 0), 57, bytes(4)), INVALID_RECORD),
    "negative count": (lambda who: changed(batch([b"v"], who, 0), 57, b"\xff" * 4), INVALID_RECORD),
    "last offset too large": (lambda who: changed(batch([b"v"] * 3, who, 0), 23, b"\0\0\0\5"), INVALID_RECORD),
    "negative last offset": (lambda who: changed(batch([b"v"], who, 0), 23, b"\xff" * 4), INVALID_RECORD),
    "base offset of its own": (lambda who: batch([b"v"], who, 0, base_offset=5), INVALID_RECORD),
    "the oldest format": (lambda who: changed(batch([b"v"], who, 0), 16, b"\0"), INVALID_RECORD),
    "the old format": (lambda who: changed(batch([b"v"], who, 0), 16, b"\1"), INVALID_RECORD),
    "sequence -1": (lambda who: batch([b"v"], who, -1), INVALID_RECORD),
    "least sequence": (lambda who: batch([b"v"], who, -(2**31)), INVALID_RECORD),
    "two batches": (lambda who: batch([b"v"], who, 0) + batch([b"w"], who, 1), INVALID_RECORD),
    "no batch": (lambda who: b"", INVALID_RECORD),
}


@pytest.mark.parametrize("what", WRONG)
def test_batches_that_no_producer_may_write(wire: Wire, name: str, what: str) -> None:
    wire.create_topic(name)
    who = wire.session()
    make, expected = WRONG[what]
    assert wire.produce(name, make(who)).error_code == expected
    assert wire.offset(name) == 0
    assert producers(wire, name) == {}
    assert wire.produce(name, batch([b"v"], who, 0)).base_offset == 0, "the state is unchanged"


@pytest.mark.parametrize("magic", [3, 127, 255])
def test_unknown_record_format_version(server: Server, name: str, magic: int) -> None:
    """DIFFERS: Kafka finds such a batch while it reads the request, and rejects the whole request."""
    with Wire(server.bootstrap) as wire:
        wire.create_topic(name)
        who = wire.session()
        answer = wire.produce(name, changed(batch([b"v"], who, 0), 16, bytes([magic])))
        assert answer.error_code in (INVALID_RECORD, CORRUPT), answer
        assert wire.offset(name) == 0


def test_transactional_batch_without_a_producer_id(wire: Wire, server: Server, name: str) -> None:
    """DIFFERS: Kafka accepts it as a plain batch. oncelog rejects it, because nothing could ever end its
    transaction.
    """
    wire.create_topic(name)
    answer = wire.produce(name, batch([b"v"], transactional=True), transactional_id=name)
    assert answer.error_code == (INVALID_RECORD if server.name == "oncelog" else 0)


def test_zstd_in_a_request_version_without_it(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    records = build_batch([Record(0, 1_700_000_000_000, None, b"v")], codec=Codec.ZSTD)
    assert wire.produce(name, records, version=6).error_code == code("UNSUPPORTED_COMPRESSION_TYPE")
    assert wire.produce(name, records, version=7).base_offset == 0


# -- sequences and epochs ----------------------------------------------------------------------------------------------


def test_without_producer_state_any_first_sequence_is_accepted(wire: Wire, name: str) -> None:
    """KAFKA-5793, KAFKA-7298: never a false OUT_OF_ORDER. UNKNOWN_PRODUCER_ID no longer exists since 2.5."""
    wire.create_topic(name, 3)
    for partition, sequence in enumerate((1, 1_000, 2**31 - 1)):
        who = wire.session()
        assert wire.produce(name, batch([b"v"], who, sequence), partition=partition).error_code == 0
        following = (sequence + 1) % 2**31
        assert wire.produce(name, batch([b"v"], who, following), partition=partition).base_offset == 1


def test_version_2_transaction_of_an_unknown_producer_starts_at_sequence_zero(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    who = wire.session(name)
    refused = until(
        lambda: wire.produce(name, batch([b"v"], who, 3, transactional=True), transactional_id=name, version=12),
        lambda answer: answer.error_code != code("CONCURRENT_TRANSACTIONS"),
        "the coordinator has no other partition",
    )
    assert refused.error_code == OUT_OF_ORDER
    written(wire, name, who, name, [b"v"], 0)
    ended(wire, name, who)


def test_messages_name_producer_epoch_and_sequences(wire: Wire, server: Server, name: str) -> None:
    """DIFFERS: Kafka's broker answers only with the code. Its own log contains the rest."""
    wire.create_topic(name)
    who = Session(wire.session().producer_id, 2)
    wire.produce(name, batch([b"v"] * 3, who, 0))
    pid = str(who.producer_id)
    cases = [
        (batch([b"v"], who, 8), OUT_OF_ORDER, (pid, "epoch 2", "sequence 8", "expected 3")),
        (batch([b"v"], Session(who.producer_id, 1), 8), INVALID_EPOCH, (pid, "epoch 1", "2")),
        (batch([b"v"], Session(who.producer_id, 3), 8), OUT_OF_ORDER, (pid, "epoch 3", "sequence 8", "start with 0")),
        (batch([b"v"], who, -4), INVALID_RECORD, (pid, "-4")),
    ]
    for records, expected, words in cases:
        answer = wire.produce(name, records)
        assert answer.error_code == expected
        if server.name == "oncelog":
            assert [word for word in words if word not in answer.error_message] == [], answer.error_message
    two = {(name, 0): batch([b"v"], who, 3, transactional=True)}
    assert codes(wire, two) == {(name, 0): NO_TRANSACTIONAL_ID}


@pytest.mark.parametrize("version", [3, 4])
def test_fenced_producer_gets_the_error_of_its_request_version(wire: Wire, name: str, version: int) -> None:
    """PRODUCER_FENCED exists since InitProducerId v4; older clients know INVALID_PRODUCER_EPOCH."""
    old = wire.session(name)
    wire.session(name)
    new = wire.session(name)
    assert new.epoch > old.epoch
    answer = wire.init_producer(name, session=old, version=version)
    assert answer.error_code == (code("PRODUCER_FENCED") if version >= 4 else INVALID_EPOCH)


def test_unknown_topic_id(wire: Wire, name: str) -> None:
    answer = wire.produce(name, batch([b"v"]), version=13, topic_id=UUID(int=12345))
    assert answer.error_code == code("UNKNOWN_TOPIC_ID")


def test_marker_sent_by_a_client_is_rejected_in_a_transaction_too(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    who = wire.session(name)
    written(wire, name, who, name, [b"v"])
    records = build_control_batch(
        True, producer_id=who.producer_id, producer_epoch=who.epoch, coordinator_epoch=0, timestamp=1_700_000_000_000
    )
    answer = wire.produce(name, records, transactional_id=name, version=12)
    assert answer.error_code == INVALID_RECORD
    ended(wire, name, who, False)
    assert wire.offset(name) >= 1
