"""I6: a partition's state of each producer: its epoch and its last five batches."""

from __future__ import annotations

from oncelog.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from support.servers import Server
from support.transactions import ended, producers, written
from support.wire import Session, Wire, batch, code, until

OUT_OF_ORDER = code("OUT_OF_ORDER_SEQUENCE_NUMBER")


def test_last_five_batches_are_remembered(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    who = wire.session()
    offsets = [wire.produce(name, batch([b"a", b"b"], who, 2 * index)).base_offset for index in range(6)]
    assert offsets == [0, 2, 4, 6, 8, 10]
    for index in range(1, 6):
        answer = wire.produce(name, batch([b"a", b"b"], who, 2 * index))
        assert (answer.error_code, answer.base_offset) == (0, offsets[index])
    answer = wire.produce(name, batch([b"a", b"b"], who, 0))
    assert answer.error_code == OUT_OF_ORDER
    assert wire.offset(name) == 12


def test_repeated_batch_replaces_no_other(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    who = wire.session()
    for sequence in range(5):
        assert wire.produce(name, batch([b"v"], who, sequence)).base_offset == sequence
    for sequence in [4] * 6 + [0, 1, 2, 3, 4]:
        assert wire.produce(name, batch([b"v"], who, sequence)).base_offset == sequence
    assert wire.offset(name) == 5


def test_new_epoch_clears_the_five_batches(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    who = wire.session()
    newer = Session(who.producer_id, who.epoch + 1)
    for sequence in range(3):
        assert wire.produce(name, batch([b"v"], who, sequence)).base_offset == sequence
    assert wire.produce(name, batch([b"v"], newer, 0)).base_offset == 3
    answer = wire.produce(name, batch([b"v"], newer, 2))
    assert answer.error_code == OUT_OF_ORDER, "the five batches of the previous epoch do not count"
    assert [wire.produce(name, batch([b"v"], newer, sequence)).base_offset for sequence in (1, 2, 0)] == [4, 5, 3]
    assert wire.produce(name, batch([b"v"], who, 2)).error_code == code("INVALID_PRODUCER_EPOCH")
    assert wire.offset(name) == 6


def test_each_partition_and_producer_has_its_own_state(wire: Wire, name: str) -> None:
    wire.create_topic(name, 2)
    one, other = wire.session(), wire.session()
    assert one.producer_id != other.producer_id
    for who, partition, offset in ((one, 0, 0), (one, 1, 0), (other, 0, 1), (other, 1, 1)):
        assert wire.produce(name, batch([b"v"], who, 0), partition=partition).base_offset == offset
    for who, partition, offset in ((one, 1, 0), (other, 0, 1)):
        assert wire.produce(name, batch([b"v"], who, 0), partition=partition).base_offset == offset
    assert wire.produce(name, batch([b"v"], one, 1), partition=1).base_offset == 2
    assert (wire.offset(name, partition=0), wire.offset(name, partition=1)) == (2, 3)


def test_describe_producers_shows_the_state(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    who, other = wire.session(), wire.session()
    assert producers(wire, name) == {}
    wire.produce(name, batch([b"a", b"b"], who, 0, timestamp=1_000_000_000_000))
    wire.produce(name, batch([b"c"], who, 2, timestamp=1_000_000_000_007))
    wire.produce(name, batch([b"d"], other, 41))
    wire.produce(name, batch([b"plain"]))
    found = producers(wire, name)
    assert set(found) == {who.producer_id, other.producer_id}
    assert found[other.producer_id].last_sequence == 41
    state = found[who.producer_id]
    assert (state.producer_epoch, state.last_sequence, state.last_timestamp) == (0, 2, 1_000_000_000_007)
    assert (state.coordinator_epoch, state.current_txn_start_offset) == (-1, -1)


def test_describe_producers_answers_a_partition_once(wire: Wire, server: Server, name: str) -> None:
    """DIFFERS[DescribeProducers]: Kafka's response repeats a partition as often as the request names it."""
    wire.create_topic(name, 2)
    for partition in (0, 1):
        wire.produce(name, batch([b"a"], wire.session(), 0), partition=partition)
    topics = [TopicRequest(name=name, partition_indexes=indexes) for indexes in ([0, 1], [0])]
    answer = wire.call(DescribeProducersRequest(topics=topics))
    found = [
        [(each.partition_index, each.error_code, len(each.active_producers)) for each in topic.partitions]
        for topic in answer.topics
    ]
    repeated = (0, code("INVALID_REQUEST"), 0) if server.name == "oncelog" else (0, 0, 1)
    assert found == [[repeated, (1, 0, 1)], [repeated]]


def test_transaction_has_its_first_offset_and_the_coordinator_epoch_of_its_marker(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    who = wire.session(name)
    wire.produce(name, batch([b"before"]))
    written(wire, name, who, name, [b"a", b"b"])
    found = producers(wire, name)[who.producer_id]
    assert (found.last_sequence, found.current_txn_start_offset, found.coordinator_epoch) == (1, 1, -1)
    successor = ended(wire, name, who)
    found = until(
        lambda: producers(wire, name)[who.producer_id], lambda state: state.producer_epoch > 0, "the marker is written"
    )
    assert (found.producer_epoch, found.current_txn_start_offset) == (successor.epoch, -1)
    assert found.coordinator_epoch >= 0
    assert found.last_sequence == -1, "the marker has a new epoch, and clears the five batches"
