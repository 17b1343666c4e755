"""Requests for coordinators, on a broker that does not know the coordinators' topic yet.

FindCoordinator names a coordinator as soon as one broker knows the topic. The named broker may not have read the change
yet. In Kafka, it rejects the request, and the client asks for the coordinator again. But librdkafka's first synchronous
commit is not retried, and fails.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from oncelog.broker.metadata.topics import TopicAdministration
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.services import Handler
from oncelog.protocol.schema import Message


def requiring_topic(topics: TopicAdministration, name: str, handle: Handler) -> Handler:
    """Return a handler that reads the metadata before it calls `handle` if this broker does not know the topic."""

    def handler(request: Message, ctx: RequestContext) -> Any:
        return handle(request, ctx) if topics.knows(name) else after_refresh(request, ctx)

    async def after_refresh(request: Message, ctx: RequestContext) -> Any:
        await topics.refresh()
        answer = handle(request, ctx)
        return await answer if isinstance(answer, Awaitable) else answer

    return handler
