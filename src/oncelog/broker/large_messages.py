"""Requests and answers with many elements: a worker thread decodes and encodes them, so that other clients do not wait.

Kafka's brokers have a pool of threads for that. Here each element costs about a microsecond, and there is one loop.
"""

from __future__ import annotations

from functools import cache

from oncelog.protocol.headers import encode_response_header
from oncelog.protocol.schema import Message

Chunks = list[bytes | memoryview]

SMALL_FRAME = 16 * 1024
"""A request of up to so many bytes cannot have many elements."""
FEW_ITEMS = 2_000
"""Array elements that are decoded or encoded on the event loop."""
MOST_ITEMS = 500_000
"""Array elements that a request may have. Its memory is what they cost, not what its bytes do."""


def encoded(response: Message, api_key: int, version: int, correlation_id: int) -> Chunks:
    """Return an answer as it goes over the wire, without its length; record data is not copied."""
    chunks: Chunks = [encode_response_header(api_key, version, correlation_id)]
    chunks += response.chunks(version)
    return chunks


def encoded_elsewhere(response: list[Message | None], api_key: int, version: int, correlation_id: int) -> Chunks:
    """Return an answer with many elements as few chunks. Runs in a worker thread.

    `response` has the answer as its only element, and loses it: to free its many objects takes time as well.
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
    """Tell whether a message has more than a few array elements, in all of its arrays together."""
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
