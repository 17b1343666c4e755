"""Where the records of a partition end that consumers can read: a question that oncelog's brokers ask each other.

DIFFERS[ListOffsets]: Apache Kafka ignores the question, and answers as if it had not been asked.
"""

from __future__ import annotations

from typing import Any

from oncelog.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from support.servers import Server
from support.wire import Wire, batch, until

LATEST = -1
READ_COMMITTED = 1


def asked(wire: Wire, topic: str, version: int | None = None, *, ends: bool = True) -> Any:
    partition = ListOffsetsPartition(partition_index=0, timestamp=LATEST)
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=READ_COMMITTED,
        topics=[ListOffsetsTopic(name=topic, partitions=[partition])],
        readable_ends=ends,
    )
    return wire.call(request, version)


def _stable(answer: Any) -> int:
    """Return the last stable offset, which is also the answer without the question."""
    offset: int = answer.topics[0].partitions[0].offset
    return offset


def test_markers_and_open_transactions_at_the_end(wire: Wire, server: Server, name: str) -> None:
    topic_id = wire.create_topic(name)
    first, second = wire.session(name), wire.session(f"{name}-2")
    wire.add_partitions(name, first, name)
    wire.produce(name, batch([b"a", b"b"], first, 0, transactional=True), transactional_id=name)
    wire.end(name, first)
    until(lambda: asked(wire, name), lambda each: _stable(each) == 3, "the first marker is written")
    wire.add_partitions(f"{name}-2", second, name)
    wire.produce(name, batch([b"c"], second, 0, transactional=True), transactional_id=f"{name}-2")
    wire.fetch(topic_id, committed=True)
    answer = asked(wire, name)
    assert _stable(answer) == 3
    (found,) = answer.topics[0].partitions
    if server.name != "oncelog":
        assert (found.readable, answer.readers) == (None, [])
        return
    assert (found.readable.committed, found.readable.uncommitted) == (2, 4)
    readers = [(each.client_id, each.isolation_level) for each in answer.readers]
    assert ("wire", READ_COMMITTED) in readers
    wire.end(f"{name}-2", second, commit=False)
    answer = until(lambda: asked(wire, name), lambda each: _stable(each) == 5, "the second marker is written")
    (found,) = answer.topics[0].partitions
    assert (found.readable.committed, found.readable.uncommitted) == (2, 4)


def test_nothing_more_is_answered_without_the_question(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    wire.produce(name, batch([b"a"]))
    for answer in (asked(wire, name, ends=False), asked(wire, name, 5, ends=False)):
        (found,) = answer.topics[0].partitions
        assert (found.offset, found.readable, answer.readers) == (1, None, [])
