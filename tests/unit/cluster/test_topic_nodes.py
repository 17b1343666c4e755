from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import pytest
from msgspec import structs

from oncelog.cluster.changes import ChangeLog
from oncelog.cluster.features import initialize
from oncelog.cluster.image_nodes import cluster_id, create_cluster, created_ms, prepare, read_image
from oncelog.cluster.partition_state import PartitionState, decode_state, encode_state
from oncelog.cluster.store import Node, OutcomeUnknownError, UnavailableError
from oncelog.cluster.store_memory import MemoryStore
from oncelog.cluster.topic_nodes import add_partitions, erase_topic, write_topic
from oncelog.cluster.topics import PartitionInfo, TopicInfo, check_topic_name
from oncelog.protocol.errors import ErrorCode, ProtocolError
from support.failing_store import FailingStore, Once, fail, ignore

TOPIC = TopicInfo(
    "flights",
    UUID("12345678-1234-4234-8234-123456789abc"),
    (PartitionInfo((1,), PartitionState(1, 0, (1,))), PartitionInfo((1,), PartitionState(1, 3, (1,)))),
    {"segment.bytes": "1000"},
)


def prepared(store: MemoryStore) -> ChangeLog:
    prepare(store)
    initialize(store, {})
    return ChangeLog(store)


def found(store: MemoryStore, name: str) -> TopicInfo | None:
    return read_image(store).topic(name)


def test_topic_is_read_from_the_tree_as_written() -> None:
    store = MemoryStore(lambda: 0)
    write_topic(prepared(store), TOPIC)
    image = read_image(store)
    assert list(image.topics()) == [TOPIC]
    assert image.topic_by_id(TOPIC.topic_id) == TOPIC


def test_tree_has_kafkas_layout() -> None:
    store = MemoryStore(lambda: 0)
    write_topic(prepared(store), TOPIC)
    assert store.get("/brokers/topics/flights/partitions/1/state").data == (
        b'{"leader":1,"leader_epoch":3,"isr":[1],"version":1,"leader_broker_epoch":-1,"controller_epoch":0,"elr":[]}'
    )
    assert store.get("/config/topics/flights").data == b'{"config":{"segment.bytes":"1000"},"version":1}'


def test_eligible_replicas_are_in_the_state_of_a_partition() -> None:
    """An older version of oncelog has written no such field."""
    state = PartitionState(1, 3, (1,), 7, elr=(2, 3))
    assert decode_state(Node(encode_state(state), 7)) == state
    data = b'{"leader":1,"leader_epoch":3,"isr":[1],"controller_epoch":0,"version":1}'
    assert decode_state(Node(data, 7)) == structs.replace(state, elr=())


def test_topic_is_created_once_and_deleted_completely() -> None:
    store = MemoryStore(lambda: 0)
    log = prepared(store)
    write_topic(log, TOPIC)
    with pytest.raises(ProtocolError) as refused:
        write_topic(log, TOPIC)
    assert refused.value.code == ErrorCode.TOPIC_ALREADY_EXISTS
    erase_topic(log, TOPIC)
    assert store.children("/brokers/topics") == []
    assert store.children("/config/topics") == []
    with pytest.raises(ProtocolError) as missing:
        erase_topic(log, TOPIC)
    assert missing.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_id_and_time_of_a_cluster_do_not_change() -> None:
    store = MemoryStore(lambda: 0)
    prepare(store)
    for name, now_ms in (("first", 1), ("second", 2)):
        create_cluster(store, name, now_ms)
        assert (cluster_id(store), created_ms(store)) == ("first", 1)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "x" * 250, "grün", "a b"])
def test_illegal_names(name: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        check_topic_name(name)
    assert refused.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_write_error_of_the_tree_is_reported_as_a_timeout() -> None:
    store = FailingStore()
    log = prepared(store)
    topic = TopicInfo("t", UUID(int=5), (PartitionInfo((1,), PartitionState(1, 0, (1,))),))
    for change in (write_topic, erase_topic):
        store.before = fail(UnavailableError("disk full"))
        with pytest.raises(ProtocolError, match="disk full") as caught:
            change(log, topic)
        assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
        store.before = ignore
        change(log, topic)


@pytest.mark.parametrize("made", [True, False])
def test_outcome_of_a_lost_answer_is_looked_up_in_the_tree(made: bool) -> None:
    store = FailingStore()
    log = prepared(store)

    def change(what: str) -> None:
        lost = Once(fail(OutcomeUnknownError("the connection is lost")))
        store.before, store.after = (ignore, lost) if made else (lost, ignore)
        work: dict[str, Callable[[], object]] = {
            "write": lambda: write_topic(log, TOPIC),
            "grow": lambda: add_partitions(log, TOPIC, [PartitionInfo((1,), PartitionState(1, 0, (1,)))]),
            "erase": lambda: erase_topic(log, TOPIC),
        }
        if made:
            work[what]()
            return
        with pytest.raises(ProtocolError) as caught:
            work[what]()
        assert caught.value.code == ErrorCode.REQUEST_TIMED_OUT
        if what != "grow":
            work[what]()

    change("write")
    assert found(store, "flights") == TOPIC
    change("grow")
    grown = found(store, "flights")
    assert grown is not None
    assert grown.partition_count == 2 + made
    if made:
        erase_topic(log, grown)
    else:
        change("erase")
    assert found(store, "flights") is None


def test_another_topic_of_the_same_name_is_not_mistaken_for_the_written_one() -> None:
    store = FailingStore()
    log = prepared(store)
    write_topic(log, TOPIC)
    store.before = Once(fail(OutcomeUnknownError("the connection is lost")))
    other = replace(TOPIC, topic_id=UUID("22345678-1234-4234-8234-123456789abc"))
    with pytest.raises(ProtocolError) as caught:
        write_topic(log, other)
    assert caught.value.code == ErrorCode.REQUEST_TIMED_OUT
    assert found(store, "flights") == TOPIC
