"""Which responses a worker thread encodes."""

from __future__ import annotations

import random

import pytest

from oncelog.broker.requests.large_messages import FEW_ITEMS, has_many_items
from oncelog.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


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
