"""Serialize the records of an `aio` producer in the order of the calls, although some wait for the schema registry."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from copy import copy
from typing import Any

from oncelog import errors
from oncelog.client.serialization.functions import Serializers
from oncelog.client.types import Headers


class _Line:
    """The sends to one topic that wait."""

    __slots__ = ("error", "failures", "length", "lock")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()  # it serves its waiters in their order
        self.length = self.failures = 0
        self.error: errors.OncelogError | None = None
        """The last failure of the registry or of the brokers."""


class InOrder:
    """The serializers of a producer, with a line of sends for each topic whose schema is not registered yet.

    The first send in a line asks the registry, in a thread. If that fails, the sends that waited meanwhile fail, too.
    """

    def __init__(
        self, serializers: Serializers, knows: Callable[[str], bool], learn: Callable[[str], Awaitable[None]]
    ) -> None:
        """Create it. `knows` returns whether the topic's partitions are known, and `learn` requests them."""
        self._serializers = serializers
        self._knows, self._learn = knows, learn
        self._lines: dict[str, _Line] = {}

    def ready(self, topic: str, value: Any, key: Any, headers: Headers) -> bool:
        """Return whether no earlier send to the topic waits, and `Serializers.serialize` does not block."""
        return topic not in self._lines and self._serializers.ready(topic, value, key, headers)

    async def serialize(self, topic: str, value: Any, key: Any, headers: Headers) -> tuple[Any, Any]:
        """Wait for the earlier sends to the topic. Return (value, key) as bytes.

        Append the record before the next `await`: then it is before those of later sends. Raises SerializationError,
        RegistryError and KafkaError.
        """
        line = self._lines.setdefault(topic, _Line())
        line.length += 1
        failures = line.failures
        try:
            async with line.lock:
                if line.error is not None and line.failures > failures:
                    raise copy(line.error)
                try:
                    return await self._next(topic, value, key, headers)
                except (errors.RegistryError, errors.KafkaError) as error:
                    line.failures += 1
                    line.error = error
                    raise
        finally:
            line.length -= 1
            if not line.length:
                del self._lines[topic]

    async def _next(self, topic: str, value: Any, key: Any, headers: Headers) -> tuple[Any, Any]:
        if self._serializers.ready(topic, value, key, headers):
            found = self._serializers.serialize(topic, value, key, headers)
        else:
            found = await asyncio.to_thread(self._serializers.serialize, topic, value, key, headers)
        if not self._knows(topic):
            await self._learn(topic)
        return found
