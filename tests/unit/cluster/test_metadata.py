from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from oncelog.cluster.metadata import PartitionInfo, TopicInfo, Topics, assign, check_topic_name
from oncelog.cluster.tree import Operation, OutcomeUnknownError, UnavailableError
from oncelog.cluster.tree_memory import MemoryTree
from oncelog.protocol.errors import ErrorCode, ProtocolError

TOPIC = TopicInfo(
    "flights",
    UUID("12345678-1234-4234-8234-123456789abc"),
    (PartitionInfo(1, 0, (1,), (1,)), PartitionInfo(1, 3, (1,), (1,))),
    {"segment.bytes": "1000"},
)


def loaded(tree: MemoryTree) -> Topics:
    topics = Topics(tree)
    topics.prepare()
    topics.load()
    return topics


def test_a_topic_comes_back_from_the_tree_as_it_was() -> None:
    tree = MemoryTree(lambda: 0)
    loaded(tree).write(TOPIC)
    assert list(loaded(tree).topics()) == [TOPIC]
    assert loaded(tree).topic_by_id(TOPIC.topic_id) == TOPIC


def test_a_collision_is_found_without_a_look_at_every_name() -> None:
    folds = []

    class Name(str):
        def replace(self, *arguments: Any) -> str:
            folds.append(self)
            return super().replace(*arguments)

    topics = Topics(MemoryTree(lambda: 0))
    for index in range(100):
        topics.admit(replace(TOPIC, name=Name(f"name.{index}"), topic_id=UUID(int=index)))
    before = len(folds)
    assert topics.colliding("name_7") == "name.7"
    assert topics.colliding("name.7") is topics.colliding("other") is None
    assert len(folds) == before
    topics.forget(replace(TOPIC, name="name.7", topic_id=UUID(int=7)))
    assert topics.colliding("name_7") is None


def test_the_tree_is_laid_out_as_kafkas() -> None:
    tree = MemoryTree(lambda: 0)
    loaded(tree).write(TOPIC)
    assert tree.get("/brokers/topics/flights/partitions/1/state").data == (
        b'{"leader":1,"leader_epoch":3,"isr":[1],"controller_epoch":0,"version":1}'
    )
    assert tree.get("/config/topics/flights").data == b'{"config":{"segment.bytes":"1000"},"version":1}'


def test_a_topic_is_created_once_and_erased_whole() -> None:
    tree = MemoryTree(lambda: 0)
    topics = loaded(tree)
    topics.write(TOPIC)
    with pytest.raises(ProtocolError) as refused:
        topics.write(TOPIC)
    assert refused.value.code == ErrorCode.TOPIC_ALREADY_EXISTS
    topics.erase(TOPIC)
    assert tree.children("/brokers/topics") == []
    assert tree.children("/config/topics") == []
    with pytest.raises(ProtocolError) as missing:
        topics.erase(TOPIC)
    assert missing.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_the_cluster_id_stays() -> None:
    topics = loaded(MemoryTree(lambda: 0))
    assert topics.cluster_id("first") == "first"
    assert topics.cluster_id("second") == "first"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "x" * 250, "grün", "a b"])
def test_illegal_names(name: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        check_topic_name(name)
    assert refused.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_names_that_would_share_a_metric_collide() -> None:
    topics = loaded(MemoryTree(lambda: 0))
    topics.admit(TopicInfo("a.b", UUID(int=1), ()))
    assert topics.colliding("a_b") == "a.b"
    assert topics.colliding("a.b") is None
    assert topics.colliding("ab") is None


def test_assignment_goes_round_the_brokers() -> None:
    assert assign(3, 2, [1, 2, 3]) == [(1, 2), (2, 3), (3, 1)]
    with pytest.raises(ProtocolError) as refused:
        assign(1, 2, [1])
    assert refused.value.code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_a_tree_that_cannot_be_written_is_told_as_a_time_out() -> None:
    class Away(MemoryTree):
        away = False

        def multi(self, operations: Sequence[Operation], *, session: int | None = None) -> None:
            """Fails while it is away."""
            if self.away:
                raise UnavailableError("disk full")
            super().multi(operations, session=session)

    tree = Away(lambda: 0)
    topics = Topics(tree)
    topics.prepare()
    topic = TopicInfo("t", UUID(int=5), (PartitionInfo(1, 0, (1,), (1,)),))
    tree.away = True
    for change in (topics.write, topics.erase):
        with pytest.raises(ProtocolError, match="disk full") as caught:
            change(topic)
        assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
    tree.away = False
    topics.write(topic)
    topics.erase(topic)


class LosesAnswers(MemoryTree):
    """A tree whose next change is made, or not, without an answer."""

    lose: bool | None = None

    def multi(self, operations: Sequence[Operation], *, session: int | None = None) -> None:
        made, self.lose = self.lose, None
        if made is not False:
            super().multi(operations, session=session)
        if made is not None:
            raise OutcomeUnknownError("the connection is lost")


@pytest.mark.parametrize("made", [True, False])
def test_a_lost_answer_is_looked_up_in_the_tree(made: bool) -> None:
    tree = LosesAnswers(lambda: 0)
    topics = loaded(tree)

    def change(what: str) -> None:
        tree.lose = made
        work: dict[str, Callable[[], object]] = {
            "write": lambda: topics.write(TOPIC),
            "grow": lambda: topics.add_partitions(TOPIC, [PartitionInfo(1, 0, (1,), (1,))]),
            "erase": lambda: topics.erase(TOPIC),
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
    found = topics.read("flights")
    assert found == TOPIC
    change("grow")
    found = topics.read("flights")
    assert found is not None
    assert found.partition_count == 2 + made
    if made:
        topics.erase(found)
    else:
        change("erase")
    assert topics.read("flights") is None


def test_another_topic_of_the_name_is_not_taken_for_ours() -> None:
    tree = LosesAnswers(lambda: 0)
    topics = loaded(tree)
    topics.write(TOPIC)
    tree.lose = False
    other = replace(TOPIC, topic_id=UUID("22345678-1234-4234-8234-123456789abc"))
    with pytest.raises(ProtocolError) as caught:
        topics.write(other)
    assert caught.value.code == ErrorCode.REQUEST_TIMED_OUT
    assert topics.read("flights") == TOPIC
