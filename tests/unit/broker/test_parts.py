"""Split requests into parts, and join their answers."""

from __future__ import annotations

import random

import pytest

from oncelog.broker.coordinators.request_parts import joined, parts_of
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)


def request(sizes: list[int]) -> OffsetCommitRequest:
    topics = [
        OffsetCommitRequestTopic(
            name=f"t{number}",
            partitions=[
                OffsetCommitRequestPartition(partition_index=index, committed_offset=1, committed_metadata="")
                for index in range(size)
            ],
        )
        for number, size in enumerate(sizes)
    ]
    return OffsetCommitRequest(group_id="g", topics=topics)


def answer(part: OffsetCommitRequest) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=0)
                    for partition in topic.partitions
                ],
            )
            for topic in part.topics
        ]
    )


def test_small_request_has_one_part() -> None:
    small = request([3, 2])
    (part,) = parts_of(small, "topics", "partitions", 5)
    assert part is small


@pytest.mark.parametrize("seed", range(20))
def test_answers_to_the_parts_combine_to_the_answer_to_the_whole(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [rng.choice([0, 1, 2, 7, 30]) for _ in range(rng.randrange(1, 9))]
    whole, most = request(sizes), rng.randrange(1, 12)
    parts = list(parts_of(whole, "topics", "partitions", most))
    assert whole == request(sizes), "the request is unchanged"
    assert all(part.group_id == "g" for part in parts)
    assert all(sum(len(topic.partitions) for topic in part.topics) <= most for part in parts) or sum(sizes) <= most
    assert joined([answer(part) for part in parts], "topics", "partitions") == answer(whole), f"{sizes}, {most}"


def test_answer_to_no_topics_is_empty() -> None:
    assert joined([answer(part) for part in parts_of(request([]), "topics", "partitions", 1)], "topics", "partitions") \
        == OffsetCommitResponse()  # fmt: skip


def test_topics_without_partitions_count_as_items() -> None:
    parts = list(parts_of(request([0] * 10), "topics", "partitions", 4))
    assert [len(part.topics) for part in parts] == [4, 4, 2]
    assert [topic.name for part in parts for topic in part.topics] == [f"t{number}" for number in range(10)]
