"""Fetch sessions (KIP-227) whose topics are named by id (KIP-516), created and deleted."""

from __future__ import annotations

from uuid import UUID

from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ForgottenTopic
from support.wire import Wire, batch, code, retried, until


class FetchingClient:
    """A session of a client that has read nothing yet."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._session_id = 0
        self._epoch = 0

    def fetch(self, *topics: UUID, forget: tuple[UUID, ...] = ()) -> FetchResponse:
        """Fetch partition 0 of each topic from its start, in addition to the session's partitions. Does not wait."""
        wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 20,
            session_id=self._session_id,
            session_epoch=self._epoch,
            topics=[FetchTopic(topic_id=topic, partitions=[wanted]) for topic in topics],
            forgotten_topics_data=[ForgottenTopic(topic_id=topic, partitions=[0]) for topic in forget],
        )
        answer = self._wire.call(request, 16)
        assert isinstance(answer, FetchResponse)
        assert not answer.error_code, answer
        self._session_id, self._epoch = answer.session_id, self._epoch + 1
        return answer


def errors_by_topic(answer: FetchResponse) -> dict[UUID, int]:
    """Return each topic in the answer with the error of its partition."""
    return {topic.topic_id: topic.partitions[0].error_code for topic in answer.responses}


def test_deleted_topic_can_be_forgotten(wire: Wire, name: str) -> None:
    """Otherwise, its error would end each wait at once, and name a partition that the client has not requested."""
    stays, goes = wire.create_topic(name), wire.create_topic(f"{name}-goes")
    for topic in (name, f"{name}-goes"):
        assert not retried(lambda topic=topic: wire.produce(topic, batch([b"x"]))).error_code
    client = FetchingClient(wire)
    assert errors_by_topic(client.fetch(stays, goes)) == {stays: 0, goes: 0}
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=f"{name}-goes")], timeout_ms=10_000)
    assert not wire.call(request).responses[0].error_code
    gone = {code("UNKNOWN_TOPIC_OR_PARTITION"), code("UNKNOWN_TOPIC_ID")}
    until(lambda: errors_by_topic(client.fetch()).get(goes), lambda error: error in gone, "the topic is deleted")
    until(
        lambda: wire.fetch(goes).error_code, lambda error: error == code("UNKNOWN_TOPIC_ID"), "its id is unknown, too"
    )
    assert errors_by_topic(client.fetch(forget=(goes,))) == {stays: 0}
    assert errors_by_topic(client.fetch()) == {stays: 0}
