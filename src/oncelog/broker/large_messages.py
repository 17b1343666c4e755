"""Decode and encode messages with many elements in a worker thread, so that other clients do not wait.

Kafka's brokers use a pool of threads. Here, each element takes about a microsecond, and all clients share one event
loop.
"""

from __future__ import annotations

from functools import cache

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
    left = FEW_ITEMS
    todo = [message]
    while todo:
        current = todo.pop()
        for name, nested in _arrays(type(current)):
            items = getattr(current, name)
            if items:
                left -= len(items)
                if left < 0:
                    return True
                if nested:
                    todo += items
    return False


@cache
def _arrays(cls: type[Message]) -> tuple[tuple[str, bool], ...]:
    """Return the names of the arrays of a message, and whether their elements are messages."""
    return tuple(
        (name, not isinstance(field.element, str)) for name, field in cls.FIELDS.items() if field.kind == "array"
    )
