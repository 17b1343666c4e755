"""Transactions ended by an operator: the guarantees of an answered WriteTxnMarkers.

Source: Kafka's `KafkaApis.handleWriteTxnMarkersRequest`, which appends with acks=all.
"""

from __future__ import annotations

from support.transactions import marker, producers, written
from support.wire import Wire, code


def test_consumers_see_a_marker_once_it_is_acknowledged(wire: Wire, name: str) -> None:
    """With `flush.messages`, the broker syncs the marker first.

    A reader after the answer finds it below the last stable offset.
    """
    wire.create_topic(name, 2, flush_messages="1")
    who = wire.session(name)
    for turn in range(10):
        for partition in (0, 1):
            written(wire, name, who, name, [b"x"], turn, partition=partition)
        assert marker(wire, who, name, partitions=(0, 1)) == [0, 0]
        for partition in (0, 1):
            end = wire.offset(name, partition=partition)
            assert wire.offset(name, partition=partition, committed=True) == end == 2 * (turn + 1)
    assert producers(wire, name)[who.producer_id].current_txn_start_offset == -1


def test_each_partition_of_a_marker_has_its_own_answer(wire: Wire, name: str) -> None:
    wire.create_topic(name, flush_messages="1")
    who = wire.session(name)
    written(wire, name, who, name, [b"x"])
    missing = code("UNKNOWN_TOPIC_OR_PARTITION")
    assert sorted(marker(wire, who, name, partitions=(0, 1))) == [0, missing]  # Kafka has no order
    assert wire.offset(name, committed=True) == wire.offset(name) == 2
