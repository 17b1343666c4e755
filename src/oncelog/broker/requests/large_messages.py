"""Decode and encode messages with many elements in a worker thread, so that other clients do not wait.

Kafka's brokers use a pool of threads. Here, each element takes about a microsecond, and all clients share one event
loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import Any

from oncelog.net.server import Chunks
from oncelog.protocol.headers import encode_response_header
from oncelog.protocol.schema import Message

_Get = Callable[[Message], list[Any] | None]

SMALL_FRAME = 16 * 1024
"""Bytes of a request that is too small to have many elements."""
FEW_ITEMS = 2_000
"""Array elements that the event loop decodes or encodes itself."""
MOST_ITEMS = 500_000
"""Array elements that a request may have. Its memory depends on them, not on its bytes."""
CHUNKS_AT_ONCE = 10_000
"""Chunks that a worker thread joins in one step. The event loop waits meanwhile: some ms."""


def encoded(response: Message, api_key: int, version: int, correlation_id: int) -> Chunks:
    """Return an encoded response without its length prefix. Record data is not copied."""
    chunks: Chunks = [encode_response_header(api_key, version, correlation_id)]
    chunks += response.chunks(version)
    return chunks


def encoded_elsewhere(response: list[Message | None], api_key: int, version: int, correlation_id: int) -> Chunks:
    """Return an encoded response with many elements in few chunks. Runs in a worker thread.

    `response` contains only the response, and the function removes and frees it.
    """
    assert response[0] is not None
    chunks = encoded(response[0], api_key, version, correlation_id)
    free(response)
    joined: Chunks = []
    chunks.reverse()
    while chunks:
        some = chunks[-CHUNKS_AT_ONCE:]
        del chunks[-CHUNKS_AT_ONCE:]
        some.reverse()
        joined += _joined(some)
    return joined


def _joined(chunks: Chunks) -> Iterator[bytes | memoryview]:
    """Join adjacent chunks, except records: they may be long."""
    small: Chunks = []
    for chunk in chunks:
        if isinstance(chunk, memoryview):
            if small:
                yield b"".join(small)
                small = []
            yield chunk
        else:
            small.append(chunk)
    if small:
        yield b"".join(small)


def free(holder: list[Message | None]) -> None:
    """Free the only message in a list, one element after the other. Runs in a worker thread.

    If a message is freed in one step, Python frees all its elements before any other thread runs: 0.1 s for a million.
    """
    found: list[Message | None] = [holder.pop()]
    for message in found:
        if message is not None:
            for get, element in _arrays(type(message)):
                if element is not None and (elements := get(message)) is not None:
                    found += elements
    message = None
    found.reverse()
    while found:
        found.pop()  # a message comes before its elements, which are still referenced here


def has_many_items(message: Message) -> bool:
    """Return whether all arrays of a message together have more than FEW_ITEMS elements."""
    return _subtract_elements(type(message), [message], FEW_ITEMS) < 0


def _subtract_elements(cls: type[Message], messages: list[Message], left: int) -> int:
    """Return `left` minus the number of array elements in all messages, which have one type. Stop below 0."""
    for get, element in _arrays(cls):
        count = sum(map(len, filter(None, map(get, messages))))
        left -= count
        if count and element is not None and left >= 0:
            left = _subtract_elements(element, list(chain.from_iterable(filter(None, map(get, messages)))), left)
        if left < 0:
            break
    return left


@cache
def _arrays(cls: type[Message]) -> list[tuple[_Get, type[Message] | None]]:
    """Return how to get each array of a message and of its structs, and the type of its elements if they are messages.

    An array may be null, for example the aborted transactions of a Fetch that reads uncommitted records.
    """
    found: list[tuple[_Get, type[Message] | None]] = []
    for name, field in cls.FIELDS.items():
        if field.kind == "array":
            found.append((attrgetter(name), None if isinstance(field.element, str) else field.element))
        elif field.kind == "struct":
            found += [(_inside(attrgetter(name), get), element) for get, element in _arrays(field.element)]
    return found


def _inside(struct: Callable[[Message], Message | None], array: _Get) -> _Get:
    """Return how to get an array of a struct that may be null."""

    def get(message: Message) -> list[Any] | None:
        found = struct(message)
        return None if found is None else array(found)

    return get
