"""Decode and encode messages with many elements in a worker thread, so that other clients do not wait.

Kafka's brokers use a pool of threads. Here, each element takes about a microsecond, and all clients share one event
loop.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import Any

from oncelog.net.server import Chunks
from oncelog.protocol.headers import encode_response_header
from oncelog.protocol.schema import Message

SMALL_FRAME = 16 * 1024
"""Bytes of a request that is too small to have many elements."""
FEW_ITEMS = 2_000
"""Array elements that the event loop decodes or encodes itself."""
MOST_ITEMS = 500_000
"""Array elements that a request may have. Its memory depends on them, not on its bytes."""


def encoded(response: Message, api_key: int, version: int, correlation_id: int) -> Chunks:
    """Return an encoded response without its length prefix. Record data is not copied."""
    chunks: Chunks = [encode_response_header(api_key, version, correlation_id)]
    chunks += response.chunks(version)
    return chunks


def encoded_elsewhere(response: list[Message | None], api_key: int, version: int, correlation_id: int) -> Chunks:
    """Return an encoded response with many elements in few chunks. Runs in a worker thread.

    `response` contains only the response, and the function removes it: freeing its many objects takes time as well.
    """
    message = response.pop()
    assert message is not None
    chunks = encoded(message, api_key, version, correlation_id)
    del message
    joined: Chunks = []
    small: Chunks = []
    for chunk in chunks:
        if isinstance(chunk, memoryview):  # records: they may be long
            joined += b"".join(small), chunk
            small = []
        else:
            small.append(chunk)
    joined.append(b"".join(small))
    return joined


def has_many_items(message: Message) -> bool:
    """Return whether all arrays of a message together have more than FEW_ITEMS elements."""
    return _left(type(message), [message], FEW_ITEMS) < 0


def _left(cls: type[Message], messages: list[Message], left: int) -> int:
    """Subtract the elements of the arrays of all messages, which have one type. Return a negative number early."""
    for get, element in _arrays(cls):
        count = sum(map(len, filter(None, map(get, messages))))
        left -= count
        if count and element is not None and left >= 0:
            left = _left(element, list(chain.from_iterable(filter(None, map(get, messages)))), left)
        if left < 0:
            break
    return left


@cache
def _arrays(cls: type[Message]) -> list[tuple[Callable[[Message], list[Any]], type[Message] | None]]:
    """Return how to get each array of a message, and the type of its elements if they are messages."""
    return [
        (attrgetter(name), None if isinstance(field.element, str) else field.element)
        for name, field in cls.FIELDS.items()
        if field.kind == "array"
    ]
