"""R7: delayed operations: a Fetch waits for records or stable data, Produce and DeleteRecords wait for replicas.

With one replica, Produce and DeleteRecords never wait. Their REQUEST_TIMED_OUT after a completed append can be seen
only with followers. These tests show that their timeout is not a deadline for the leader itself.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from oncelog.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from support.servers import Server
from support.wire import Wire, batch, code, retried, until, visible

LONG_MS = 600_000
"""Longer than any test may take: an answer must have another cause than the timeout."""


class Waiting:
    """A connection with one Fetch in flight."""

    def __init__(self, server: Server) -> None:
        self.wire = Wire(server.bootstrap, "waiting")
        self._sent: tuple[FetchRequest, int] | None = None

    def fetch(
        self,
        *partitions: tuple[UUID, int, int],
        min_bytes: int = 1,
        max_wait_ms: int = LONG_MS,
        committed: bool = False,
        max_bytes: int = 1 << 24,
    ) -> Waiting:
        """Fetch each (topic id, partition, offset)."""
        topics = [
            FetchTopic(
                topic_id=topic_id,
                partitions=[FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)],
            )
            for topic_id, partition, offset in partitions
        ]
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation_level=int(committed),
            topics=topics,
        )
        self._sent = request, self.wire.send(request, 16)
        return self

    @property
    def answered(self) -> bool:
        """Return whether an answer has arrived."""
        return bool(select.select([self.wire._socket], [], [], 0)[0])

    def answer(self) -> Any:
        """Wait for the answer, and return it."""
        assert self._sent is not None
        found = self.wire.receive(*self._sent)
        assert not found.error_code
        return found

    def values(self) -> list[bytes | None]:
        """Return the values in the answer."""
        parts = [part for topic in self.answer().responses for part in topic.partitions]
        assert not any(part.error_code for part in parts), parts
        return [value for part in parts for value in visible(part, 0)]


@pytest.fixture
def waiting(server: Server) -> Iterator[Waiting]:
    """Return a connection for a waiting Fetch."""
    made = Waiting(server)
    yield made
    made.wire.close()


def put(wire: Wire, topic: str, *values: bytes, partition: int = 0) -> int:
    """Produce one batch as soon as the partition has a leader. Return its base offset."""
    answer = retried(lambda: wire.produce(topic, batch(values), partition=partition))
    assert not answer.error_code, answer
    offset: int = answer.base_offset
    return offset


# -- DelayedFetch ------------------------------------------------------------------------------------------------------


def test_append_completes_the_fetch(wire: Wire, waiting: Waiting, name: str) -> None:
    topic_id = wire.create_topic(name)
    put(wire, name, b"before")
    waiting.fetch((topic_id, 0, 1))
    assert wire.offset(name) == 1
    assert not waiting.answered
    put(wire, name, b"after")
    assert waiting.values() == [b"after"]


def test_fetch_waits_for_min_bytes(wire: Wire, waiting: Waiting, name: str) -> None:
    topic_id = wire.create_topic(name)
    put(wire, name, b"first")
    waiting.fetch((topic_id, 0, 0), min_bytes=2000)
    for _ in range(3):
        put(wire, name, b"small")
        assert not waiting.answered
    put(wire, name, b"x" * 2000)
    assert waiting.values() == [b"first", b"small", b"small", b"small", b"x" * 2000]


def test_available_records_complete_the_fetch_at_once(wire: Wire, waiting: Waiting, name: str) -> None:
    topic_id = wire.create_topic(name)
    put(wire, name, b"x" * 2000)
    assert waiting.fetch((topic_id, 0, 0), min_bytes=2000).values() == [b"x" * 2000]
    assert waiting.fetch((topic_id, 0, 1), min_bytes=0).values() == []
    assert waiting.fetch((topic_id, 0, 1), max_wait_ms=0).values() == []


def test_timeout_completes_the_fetch(wire: Wire, waiting: Waiting, name: str) -> None:
    """The answer contains the available records, although they are fewer than min.bytes."""
    topic_id = wire.create_topic(name)
    put(wire, name, b"x")
    assert waiting.fetch((topic_id, 0, 1), max_wait_ms=20).values() == []
    assert waiting.fetch((topic_id, 0, 0), min_bytes=1 << 20, max_wait_ms=20).values() == [b"x"]


def test_append_to_any_partition_completes_the_fetch(wire: Wire, waiting: Waiting, name: str) -> None:
    first = wire.create_topic(name, 2)
    second = wire.create_topic(f"{name}-b")
    put(wire, name, b"before", partition=1)
    put(wire, name, b"before")
    put(wire, f"{name}-b", b"before")
    everywhere = (first, 0, 1), (first, 1, 1), (second, 0, 1)
    waiting.fetch(*everywhere)
    assert not waiting.answered
    put(wire, name, b"one", partition=1)
    assert waiting.values() == [b"one"]
    waiting.fetch((first, 0, 1), (first, 1, 2), (second, 0, 1))
    put(wire, f"{name}-b", b"two")
    assert waiting.values() == [b"two"]


def test_min_bytes_counts_all_partitions(wire: Wire, waiting: Waiting, name: str) -> None:
    topic_id = wire.create_topic(name, 2)
    put(wire, name, b"x" * 600)
    put(wire, name, b"y" * 600, partition=1)
    waiting.fetch((topic_id, 0, 1), (topic_id, 1, 1), min_bytes=1000)
    put(wire, name, b"z" * 600)
    assert not waiting.answered
    put(wire, name, b"z" * 600, partition=1)
    assert waiting.values() == [b"z" * 600] * 2


@pytest.mark.parametrize("commit", [True, False])
def test_end_of_a_transaction_completes_the_fetch(wire: Wire, waiting: Waiting, name: str, commit: bool) -> None:
    """A read_committed reader waits for the last stable offset, not for the append."""
    topic_id = wire.create_topic(name)
    put(wire, name, b"before")
    who = wire.session(name)
    assert wire.add_partitions(name, who, name) == [0]
    waiting.fetch((topic_id, 0, 1), committed=True)
    answer = wire.produce(name, batch([b"in"], who, 0, transactional=True), transactional_id=name)
    assert not answer.error_code, answer
    assert wire.values(topic_id) == [b"before", b"in"]
    assert not waiting.answered
    assert not wire.end(name, who, commit).error_code
    [part] = waiting.answer().responses[0].partitions
    assert visible(part, 0) == ([b"in"] if commit else [])
    aborted = [(each.producer_id, each.first_offset) for each in part.aborted_transactions or ()]
    assert aborted == ([] if commit else [(who.producer_id, 1)])
    assert part.last_stable_offset == 3


def test_read_uncommitted_fetch_does_not_wait_for_the_transaction(wire: Wire, waiting: Waiting, name: str) -> None:
    topic_id = wire.create_topic(name)
    put(wire, name, b"before")
    who = wire.session(name)
    assert wire.add_partitions(name, who, name) == [0]
    waiting.fetch((topic_id, 0, 1))
    assert not wire.produce(name, batch([b"in"], who, 0, transactional=True), transactional_id=name).error_code
    assert waiting.values() == [b"in"]
    assert not wire.end(name, who, False).error_code


def test_transaction_in_another_partition_does_not_complete_the_fetch(wire: Wire, waiting: Waiting, name: str) -> None:
    """The end of the first transaction makes only its own batch stable, which is not enough yet."""
    topic_id = wire.create_topic(name)
    first, second = wire.session(f"{name}-1"), wire.session(f"{name}-2")
    for number, who in ((1, first), (2, second)):
        key = f"{name}-{number}"
        assert wire.add_partitions(key, who, name) == [0]
        answer = retried(
            lambda key=key, who=who: wire.produce(name, batch([b"x"], who, 0, transactional=True), transactional_id=key)
        )
        assert not answer.error_code, answer
    waiting.fetch((topic_id, 0, 0), min_bytes=100, committed=True)
    assert not wire.end(f"{name}-1", first).error_code
    until(lambda: wire.offset(name, committed=True), lambda found: found == 1, "the first record is stable")
    assert not waiting.answered
    assert not wire.end(f"{name}-2", second).error_code
    assert waiting.values() == [b"x", b"x"]


def test_deleted_topic_completes_the_fetch(wire: Wire, waiting: Waiting, name: str) -> None:
    """The consumer gets an error instead of waiting indefinitely."""
    topic_id = wire.create_topic(name)
    put(wire, name, b"x")
    waiting.fetch((topic_id, 0, 1))
    assert wire.offset(name) == 1
    assert not waiting.answered
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=10_000)
    assert not wire.call(request).responses[0].error_code
    [part] = waiting.answer().responses[0].partitions
    gone = ("UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC_ID", "NOT_LEADER_OR_FOLLOWER")
    assert part.error_code in {code(error) for error in gone}


def test_error_in_one_partition_completes_the_whole_fetch(wire: Wire, waiting: Waiting, name: str) -> None:
    topic_id = wire.create_topic(name, 2)
    put(wire, name, b"x")
    put(wire, name, b"x", partition=1)
    waiting.fetch((topic_id, 0, 1), (topic_id, 1, 77))
    codes = {part.partition_index: part.error_code for topic in waiting.answer().responses for part in topic.partitions}
    assert codes == {0: 0, 1: code("OFFSET_OUT_OF_RANGE")}


def test_requests_after_a_waiting_one_wait_too(wire: Wire, waiting: Waiting, name: str) -> None:
    """Requests of one connection are served in order; other connections are not delayed."""
    topic_id = wire.create_topic(name)
    put(wire, name, b"before")
    waiting.fetch((topic_id, 0, 1))
    following = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1, topics=[])
    version = waiting.wire.send(following, 16)
    put(wire, name, b"after")
    assert waiting.values() == [b"after"]
    assert waiting.wire.receive(following, version).responses == []


def test_many_fetches_wait_for_the_same_partition(wire: Wire, server: Server, name: str) -> None:
    topic_id = wire.create_topic(name)
    put(wire, name, b"before")
    crowd = [Waiting(server).fetch((topic_id, 0, 1)) for _ in range(20)]
    put(wire, name, b"after")
    assert [each.values() for each in crowd] == [[b"after"]] * 20
    for each in crowd:
        each.wire.close()


def test_disconnected_client_does_not_delay_others(wire: Wire, server: Server, name: str) -> None:
    topic_id = wire.create_topic(name)
    put(wire, name, b"before")
    gone = Waiting(server).fetch((topic_id, 0, 1), max_wait_ms=2**31 - 1)
    stays = Waiting(server).fetch((topic_id, 0, 1), max_wait_ms=2**31 - 1)
    gone.wire.close()
    put(wire, name, b"after")
    assert stays.values() == [b"after"]
    stays.wire.close()


def test_disconnect_ends_the_wait(wire: Wire, server: Server, waiting: Waiting, name: str) -> None:
    """DIFFERS: Kafka does not read from a connection that waits, and notices its end only after the timeout."""
    topic_id = wire.create_topic(name)
    put(wire, name, b"x")
    waiting.fetch((topic_id, 0, 1), max_wait_ms=2**31 - 1 if server.name == "oncelog" else 100)
    waiting.wire._socket.shutdown(socket.SHUT_WR)
    assert waiting.values() == []
    assert waiting.wire._socket.recv(1) == b""


# -- DelayedProduce, DelayedDeleteRecords ------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", [-1, 1])
def test_produce_with_timeout_zero(wire: Wire, name: str, acks: int) -> None:
    """The timeout is for followers, and there are none."""
    wire.create_topic(name)
    put(wire, name, b"before")
    data = PartitionProduceData(index=0, records=bytes(batch([b"x"])))
    topic = TopicProduceData(name=name, partition_data=[data])
    request = ProduceRequest(acks=acks, timeout_ms=0, topic_data=[topic])
    [answer] = wire.call(request, 11).responses[0].partition_responses
    assert (answer.error_code, answer.base_offset) == (0, 1)


def test_delete_records_with_timeout_zero(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    put(wire, name, b"a", b"b", b"c")
    part = DeleteRecordsPartition(partition_index=0, offset=2)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=name, partitions=[part])], timeout_ms=0)
    [answer] = wire.call(request).topics[0].partitions
    assert (answer.error_code, answer.low_watermark) == (0, 2)
    assert wire.offset(name, -2) == 2
