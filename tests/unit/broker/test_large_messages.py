"""Messages around the sizes from which worker threads handle them: which these are, and what the threads do."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from oncelog.broker.requests.large_messages import (
    CHUNKS_AT_ONCE,
    FEW_ITEMS,
    encoded,
    encoded_elsewhere,
    free,
    has_many_items,
)
from oncelog.protocol.apis import ApiKey, messages
from oncelog.protocol.codec import TooManyItemsError, codec
from oncelog.protocol.error_responses import error_answer
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from oncelog.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from oncelog.protocol.schema import NO_UUID, Message

SCALARS: dict[str, Any] = {"string": "", "uuid": NO_UUID, "bytes": b""}


def response(topics: int, partitions: int, replicas: int) -> MetadataResponse:
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=1, host="localhost", port=9092)],
        topics=[
            MetadataResponseTopic(
                name=f"t{topic}",
                partitions=[
                    MetadataResponsePartition(partition_index=index, leader_id=1, replica_nodes=list(range(replicas)))
                    for index in range(partitions)
                ],
            )
            for topic in range(topics)
        ],
    )


def test_elements_of_all_levels_are_counted() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chosen = random.Random(seed)
    for _ in range(100):
        topics, partitions, replicas = (chosen.choice((0, 1, 3, 12, 20)) for _ in range(3))
        elements = 1 + topics + topics * partitions + topics * partitions * replicas
        assert has_many_items(response(topics, partitions, replicas)) == (elements > FEW_ITEMS)


@pytest.mark.parametrize("more", [0, 1])
def test_item_limit_is_inclusive(more: int) -> None:
    assert has_many_items(response(FEW_ITEMS - 1 + more, 0, 0)) is bool(more)


def test_missing_array_has_no_elements() -> None:
    answer = response(1, 1, 1)
    answer.topics[0].partitions = None  # type: ignore[assignment]
    assert not has_many_items(answer)


# --- every API's messages, with null in each field that may be null ---


class Shape(NamedTuple):
    """A message class in one version, and the path of fields to one of its arrays, through arrays and structs."""

    cls: type[Message]
    version: int
    path: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.cls.__name__}-v{self.version}-{'.'.join(self.path)}"

    def message(self, elements: int) -> Message:
        """Return a message with so many array elements, almost all of them in the array at the path."""
        return filled(self.cls, self.version, self.path, elements)


def filled(cls: type[Message], version: int, path: tuple[str, ...] = (), elements: int = 0) -> Message:
    """Return a message with null in each field that may be null in the version, except those on the path.

    All elements of the last array are one object, which saves most of the time.
    """
    values: dict[str, Any] = {}
    for name, field in cls.FIELDS.items():
        if not field.present(version):
            continue
        if path and name == path[0]:
            if field.kind == "struct":
                values[name] = filled(field.element, version, path[1:], elements)
            elif len(path) > 1:
                values[name] = [filled(field.element, version, path[1:], elements - 1)]
            elif isinstance(field.element, str):
                values[name] = [SCALARS.get(field.element, 0)] * elements
            else:
                values[name] = [filled(field.element, version)] * elements
        elif field.may_be_null(version):
            values[name] = None
        elif field.kind == "struct":
            values[name] = filled(field.element, version)
    return cls(**values)


def paths(cls: type[Message], version: int) -> Iterator[tuple[str, ...]]:
    """Return the paths to all arrays of a message class in a version."""
    for name, field in cls.FIELDS.items():
        if field.kind in ("array", "struct") and field.present(version):
            if field.kind == "array":
                yield (name,)
            if not isinstance(field.element, str):
                yield from ((name, *inner) for inner in paths(field.element, version))


def shapes(cls: type[Message]) -> list[Shape]:
    """Return all arrays of a message class in all its versions."""
    versions = range(cls.MIN_VERSION, cls.MAX_VERSION + 1)
    return [Shape(cls, version, path) for version in versions for path in paths(cls, version)]


def in_worker(message: Message, key: ApiKey, version: int) -> bytes:
    """Return what a worker thread encodes. It frees the message."""
    holder: list[Message | None] = [message]
    del message
    chunks = encoded_elsewhere(holder, key, version, 3)
    assert holder == []
    return b"".join(chunks)


REQUESTS = {key: shapes(messages(key)[0]) for key in ApiKey}
RESPONSES = {key: shapes(messages(key)[1]) for key in ApiKey}
SIZES = (FEW_ITEMS - 1, FEW_ITEMS, FEW_ITEMS + 1)


@pytest.mark.parametrize("key", ApiKey, ids=lambda key: key.name)
def test_large_response_with_null_fields_is_counted_encoded_and_freed(key: ApiKey) -> None:
    for shape in RESPONSES[key]:
        for elements in SIZES:
            answer = shape.message(elements)
            assert has_many_items(answer) is (elements > FEW_ITEMS), str(shape)
            if elements == FEW_ITEMS + 1:
                plain = b"".join(encoded(answer, key, shape.version, 3))
                assert in_worker(answer, key, shape.version) == plain, str(shape)


@pytest.mark.parametrize("key", ApiKey, ids=lambda key: key.name)
def test_large_request_with_null_fields_is_decoded_refused_and_freed(key: ApiKey) -> None:
    for shape in REQUESTS[key]:
        decode = codec(shape.cls, shape.version).decode_at_most
        frame = memoryview(shape.message(FEW_ITEMS + 1).encode(shape.version))
        request, end = decode(frame, 0, FEW_ITEMS + 1)
        assert end == len(frame), str(shape)
        with pytest.raises(TooManyItemsError):
            decode(frame, 0, FEW_ITEMS)
        assert has_many_items(request), str(shape)
        refusal = error_answer(request, shape.version, ErrorCode.UNKNOWN_SERVER_ERROR)
        plain = b"".join(encoded(refusal, key, shape.version, 3))
        assert in_worker(refusal, key, shape.version) == plain, str(shape)
        holder: list[Message | None] = [request]
        free(holder)
        assert holder == [], str(shape)


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_chunks_of_a_step_are_joined_around_their_limit(more: int) -> None:
    """Count the chunks per partition first: the encoder decides their number."""

    def fetched(partitions: int) -> FetchResponse:
        parts = [PartitionData(partition_index=index, aborted_transactions=None) for index in range(partitions)]
        return FetchResponse(responses=[FetchableTopicResponse(partitions=parts)])

    one, two = (len(encoded(fetched(partitions), ApiKey.FETCH, 12, 3)) for partitions in (1, 2))
    assert two > one
    partitions = 1 + (CHUNKS_AT_ONCE - one) // (two - one) + more
    plain = encoded(fetched(partitions), ApiKey.FETCH, 12, 3)
    assert abs(len(plain) - CHUNKS_AT_ONCE) <= 2 * (two - one)
    assert in_worker(fetched(partitions), ApiKey.FETCH, 12) == b"".join(plain)
