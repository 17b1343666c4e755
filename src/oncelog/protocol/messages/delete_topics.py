"""DeleteTopics: delete topics by name or id (KIP-4, 516)."""

from __future__ import annotations

from uuid import UUID

from oncelog.protocol.schema import Message, array, int16, int32, string, uuid


class DeleteTopicState(Message):
    """`Topics` of DeleteTopicsRequest."""

    name: str | None = string(since=6, nullable=6, default=None)
    topic_id: UUID = uuid(since=6)


class DeleteTopicsRequest(Message, api_key=20, versions=(1, 6), flexible=4):
    """The request."""

    topics: list[DeleteTopicState] = array(DeleteTopicState, since=6)
    topic_names: list[str] = array("string", until=5, ignorable=True)
    timeout_ms: int = int32()


class DeletableTopicResult(Message):
    """`Responses` of DeleteTopicsResponse."""

    name: str | None = string(nullable=6)
    topic_id: UUID = uuid(since=6, ignorable=True)
    error_code: int = int16()
    error_message: str | None = string(since=5, nullable=5, default=None, ignorable=True)


class DeleteTopicsResponse(Message, api_key=20, versions=(1, 6), flexible=4):
    """The response."""

    throttle_time_ms: int = int32(since=1, ignorable=True)
    responses: list[DeletableTopicResult] = array(DeletableTopicResult)
