"""I8: a batch that is already in the log is answered as if it had just been written, and nothing is written."""

from __future__ import annotations

import pytest

from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from support.servers import Server
from support.transactions import ended, write, written
from support.wire import Session, Wire, batch, code, until

OUT_OF_ORDER = code("OUT_OF_ORDER_SEQUENCE_NUMBER")
THEN = 1_600_000_000_000


def test_duplicate_gets_the_original_offset_and_timestamp(wire: Wire, name: str) -> None:
    topic = wire.create_topic(name)
    who = wire.session()
    wire.produce(name, batch([b"x"] * 3))
    first = batch([b"a", b"b"], who, 0, timestamp=THEN)
    answer = wire.produce(name, first)
    assert (answer.base_offset, answer.log_append_time_ms) == (3, -1)
    wire.produce(name, batch([b"x"] * 3))
    for acks in (-1, 1):
        answer = wire.produce(name, first, acks=acks)
        assert (answer.error_code, answer.base_offset, answer.log_append_time_ms) == (0, 3, THEN)
    assert wire.offset(name) == 8
    assert wire.values(topic).count(b"a") == 1


def test_duplicate_gets_the_original_log_append_time(wire: Wire, name: str) -> None:
    wire.create_topic(name, message_timestamp_type="LogAppendTime")
    who = wire.session()
    one = batch([b"a"], who, 0, timestamp=THEN)
    written_at = wire.produce(name, one).log_append_time_ms
    assert written_at > THEN
    assert [wire.produce(name, one).log_append_time_ms for _ in range(3)] == [written_at] * 3


def test_duplicates_are_recognized_by_sequence_and_not_by_content(wire: Wire, name: str) -> None:
    topic = wire.create_topic(name)
    who = wire.session()
    assert wire.produce(name, batch([b"a", b"b"], who, 0)).base_offset == 0
    assert wire.produce(name, batch([b"A", b"B"], who, 0)).base_offset == 0
    assert wire.values(topic) == [b"a", b"b"]


@pytest.mark.parametrize(
    ("first", "count"),
    [(0, 4), (2, 4), (0, 1), (1, 1), (3, 2), (4, 3), (6, 3), (0, 8), (1, 6), (5, 3)],
)
def test_partial_overlap_is_not_a_duplicate(wire: Wire, name: str, first: int, count: int) -> None:
    wire.create_topic(name)
    who = wire.session()
    for sequence, records in ((0, 2), (2, 3), (5, 2)):  # 0-1, 2-4, 5-6
        wire.produce(name, batch([b"v"] * records, who, sequence))
    answer = wire.produce(name, batch([b"v"] * count, who, first))
    assert (answer.error_code, answer.base_offset) == (OUT_OF_ORDER, -1)
    assert wire.offset(name) == 7


def test_batch_older_than_the_last_five_is_out_of_order(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    who = wire.session()
    for sequence in range(7):
        wire.produce(name, batch([b"v"], who, sequence))
    codes = [wire.produce(name, batch([b"v"], who, sequence)).error_code for sequence in range(7)]
    assert codes == [OUT_OF_ORDER] * 2 + [0] * 5


def test_duplicate_with_acks_0_is_not_an_error(wire: Wire, server: Server, name: str) -> None:
    """An error would close the connection."""
    wire.create_topic(name)
    who = wire.session()
    data = PartitionProduceData(index=0, records=bytes(batch([b"v"], who, 0)))
    request = ProduceRequest(acks=0, topic_data=[TopicProduceData(name=name, partition_data=[data])])
    with Wire(server.bootstrap) as connection:
        for _ in range(3):
            connection.send(request, 11)
        assert connection.offset(name) == 1


def test_duplicate_in_a_transaction(wire: Wire, name: str) -> None:
    topic = wire.create_topic(name)
    who = wire.session(name)
    offsets = [written(wire, name, who, name, [b"a", b"b"], 0).base_offset for _ in range(3)]
    assert offsets == [0, 0, 0]
    ended(wire, name, who)
    until(
        lambda: wire.values(topic, committed=True), lambda values: values == [b"a", b"b"], "the records are committed"
    )


def test_duplicate_of_a_batch_whose_transaction_has_ended(wire: Wire, server: Server, name: str) -> None:
    """DIFFERS: Kafka answers that the records are written, although it has other records under these sequences.

    librdkafka sends such a batch if it aborts a transaction while a batch, whose response is lost, waits to be retried:
    its next transaction uses the sequences again. UNKNOWN_PRODUCER_ID lets it abort, and go on with the next epoch.
    """
    topic = wire.create_topic(name)
    who = wire.session(name)

    def begin() -> None:
        until(lambda: wire.add_partitions(name, who, name), lambda codes: codes == [0], "the partition is added")

    begin()
    assert written(wire, name, who, name, [b"old", b"records"], version=11).base_offset == 0
    assert written(wire, name, who, name, [b"old", b"records"], version=11).base_offset == 0
    assert not wire.end(name, who, commit=False).error_code
    begin()
    answer = write(wire, name, who, name, [b"new", b"data"], version=11)
    if server.name != "oncelog":
        assert (answer.error_code, answer.base_offset) == (0, 0)
        return
    assert (answer.error_code, answer.base_offset) == (code("UNKNOWN_PRODUCER_ID"), -1)
    assert "has ended" in answer.error_message
    assert not wire.end(name, who, commit=False).error_code
    next_epoch = until(lambda: wire.init_producer(name, session=who), lambda found: not found.error_code, "a new epoch")
    who = Session(next_epoch.producer_id, next_epoch.producer_epoch)
    begin()
    assert written(wire, name, who, name, [b"new", b"data"], version=11).base_offset > 0
    assert not wire.end(name, who).error_code
    until(lambda: wire.values(topic, committed=True), lambda found: found == [b"new", b"data"], "the new records")
