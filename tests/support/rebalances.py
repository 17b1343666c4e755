"""Members of one group, polled in turns by one thread, and the calls of their listeners."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from oncelog import Consumer, aio
from oncelog.net.connection import ClientConnection
from oncelog.protocol.schema import Message
from oncelog.protocol.topics import TopicPartition
from support.processes import wait_until

QUICK = {"auto_offset_reset": "earliest", "metadata_max_age_ms": 500}
CLASSIC = QUICK | {"heartbeat_interval_ms": 100, "session_timeout_ms": 6_000}
MODERN = QUICK | {"group_protocol": "consumer"}


class Watched:
    """A consumer, and the calls of its listener: ("assigned" | "revoked" | "lost", partitions)."""

    def __init__(self, bootstrap: str, group: str, **options: Any) -> None:
        self.consumer = Consumer(bootstrap, group_id=group, **options)
        self.calls: list[tuple[str, list[TopicPartition]]] = []

    def subscribe(self, topics: Sequence[str] | str) -> None:
        """Subscribe with listeners that record their calls."""
        self.consumer.subscribe(
            topics,
            on_assigned=lambda tps: self.calls.append(("assigned", tps)),
            on_revoked=lambda tps: self.calls.append(("revoked", tps)),
            on_lost=lambda tps: self.calls.append(("lost", tps)),
        )

    def of(self, kind: str) -> list[TopicPartition]:
        """Return all partitions of calls of this kind, in order."""
        return [tp for what, tps in self.calls if what == kind for tp in tps]


@contextmanager
def members(bootstrap: str, group: str, count: int, **options: Any) -> Iterator[list[Watched]]:
    """Return so many members, not subscribed yet, and close them at the end."""
    made = [Watched(bootstrap, group, **options) for _ in range(count)]
    try:
        yield made
    finally:
        for member in made:
            member.consumer.close()


def settle(among: Sequence[Watched], partitions: Sequence[TopicPartition], what: str = "") -> None:
    """Poll until these members have all partitions, each once, and evenly."""

    def shared() -> bool:
        for member in among:
            member.consumer.poll(0.05)
        found = [member.consumer.assignment() for member in among]
        sizes = [len(mine) for mine in found]
        return sorted(tp for mine in found for tp in mine) == sorted(partitions) and max(sizes) - min(sizes) <= 1

    wait_until(shared, what or f"{len(among)} members share {len(partitions)} partitions")


def close_after(bootstrap: str, topic: str, request_type: type[Message], number: int, options: dict[str, Any]) -> None:
    """Subscribe in a group with the topic's name, and close after the `number`th request of this kind was sent."""
    asyncio.run(_close_after(bootstrap, topic, request_type, number, options))


async def _close_after(
    bootstrap: str, topic: str, request_type: type[Message], number: int, options: dict[str, Any]
) -> None:
    sent, count, send = asyncio.Event(), 0, ClientConnection.send

    def watched(self: ClientConnection, request: Message, *args: Any, **kwargs: Any) -> asyncio.Future[Any]:
        nonlocal count
        future = send(self, request, *args, **kwargs)
        count += isinstance(request, request_type)
        if count == number:
            sent.set()
        return future

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ClientConnection, "send", watched)
        async with aio.Consumer(bootstrap, group_id=topic, **options) as consumer:
            consumer.subscribe([topic])
            polling = asyncio.ensure_future(consumer.poll(30))
            waiting = asyncio.ensure_future(sent.wait())
            await asyncio.wait([polling, waiting], return_when=asyncio.FIRST_COMPLETED)
            assert sent.is_set(), f"poll ended before {request_type.__name__} {number}"
            polling.cancel()
