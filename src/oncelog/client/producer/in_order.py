"""Keep the records of an `aio` producer in the order of the calls, although some calls wait.

A send waits for the schema registry, for the metadata of its topic or partition, or for buffer memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager
from copy import copy

from oncelog import errors


class _Line:
    """The sends to one topic, or to one partition that does not exist yet, that wait."""

    __slots__ = ("error", "failures", "length", "lock")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()  # it serves its waiters in their order
        self.length = self.failures = 0
        self.error: errors.OncelogError | None = None
        """The last failure of the registry or of the brokers."""

    @contextmanager
    def shared(self) -> Iterator[None]:
        """If the registry or the brokers fail in this block, let the sends that wait now fail with the same error."""
        try:
            yield
        except (errors.RegistryError, errors.KafkaError) as error:
            self.failures += 1
            self.error = error
            raise


class InOrder:
    """A line of waiting sends for each topic, and for each partition that does not exist yet."""

    def __init__(self) -> None:
        self.waiting: dict[Hashable, _Line] = {}
        """The places with sends that wait. A send to the same place must take its turn."""

    @asynccontextmanager
    async def turn(self, place: Hashable) -> AsyncIterator[_Line]:
        """Wait for the earlier sends to `place`, and let later ones wait until the block ends.

        Add the record in the block. Raises the error of an earlier send that has failed in `shared` meanwhile.
        """
        line = self.waiting.setdefault(place, _Line())
        line.length += 1
        failures = line.failures
        try:
            async with line.lock:
                if line.error is not None and line.failures > failures:
                    raise copy(line.error)
                yield line
        finally:
            line.length -= 1
            if not line.length:
                del self.waiting[place]
