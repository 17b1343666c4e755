"""Partitioners, against values of the Java client."""

from __future__ import annotations

import pytest

from oncelog.client.producer.partitioner import RoundRobin, Sticky, make_partitioner, murmur2, spread
from oncelog.errors import ConfigError

STICKY = {"batch_size": 100, "partitioner_ignore_keys": False}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_equals_javas(data: bytes, expected: int) -> None:
    assert murmur2(data) == expected & 0xFFFFFFFF


def test_sticky_keeps_a_partition_for_a_batch_and_then_switches() -> None:
    sticky = Sticky(100, lambda count: 0)
    places = [sticky("t", None, b"x" * 40, 3) for _ in range(6)]
    assert places == [0, 0, 1, 1, 0, 0]
    assert sticky("t", b"21", None, 3) == (-973932308 & 0x7FFFFFFF) % 3
    assert sticky("other", None, b"", 1) == 0


def test_round_robin_is_even() -> None:
    turn = RoundRobin()
    assert [turn("t", b"same", None, 5) for _ in range(10)] == [0, 1, 2, 3, 4] * 2


def test_consistent_random_hashes_keys_as_librdkafka() -> None:
    """CRC-32 of "123456789" is its published check value. librdkafka treats an empty key as no key."""
    choose = make_partitioner({"partitioner": "consistent_random", **STICKY}, lambda _: 2)
    assert choose("t", b"123456789", b"x", 7) == 0xCBF43926 % 7
    assert [choose("t", key, b"x", 7) for key in (None, b"")] == [2, 2]


def test_callables_and_invalid_results() -> None:
    def own(topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int:
        return 7

    assert make_partitioner({"partitioner": own}, lambda _: 0) is own
    with pytest.raises(ConfigError, match="round_robin"):
        make_partitioner({"partitioner": "random"}, lambda _: 0)


def test_keys_can_be_ignored() -> None:
    sticky = Sticky(100, lambda count: 2, ignore_keys=True)
    assert [sticky("t", key, b"x", 5) for key in (b"a", b"b", None)] == [2, 2, 2]


@pytest.mark.parametrize(
    ("queues", "usable", "expected"),
    [
        ([0, 3, 1], [True] * 3, [4, 1, 3]),  # the example in Kafka's BuiltInPartitioner
        ([2, 2, 2], [True] * 3, None),
        ([0, 0, 0], [True, False, True], [1, 0, 1]),
        ([0, 9, 1], [True, False, True], [2, 0, 1]),
        ([0, 9, 1], [False] * 3, None),
    ],
)
def test_weights_follow_the_queue_lengths(queues: list[int], usable: list[bool], expected: list[int] | None) -> None:
    assert spread(queues, usable) == expected


def test_sticky_draws_by_weight() -> None:
    drawn = []
    for chance in range(8):
        sticky = Sticky(1, lambda count, chance=chance: chance, weights=lambda topic, count: [4, 0, 1, 3])  # type: ignore[misc]
        drawn.append(sticky("t", None, b"x", 4))
    assert drawn == [0, 0, 0, 0, 2, 3, 3, 3]


def test_round_robin_follows_the_weights() -> None:
    weights: list[int] | None = None
    sticky = Sticky(1, lambda count: 2, weights=lambda topic, count: weights)

    def turns(count: int) -> list[int]:
        return [sticky.take("t", 1, 4, in_turn=True) for _ in range(count)]

    assert turns(5) == [2, 3, 0, 1, 2], "one after the other, from a random start"
    weights = [1, 2, 0, 1]
    found = turns(40)
    assert 2 not in found
    assert abs(found.count(1) - 20) <= 1
    assert abs(found.count(0) - 10) <= 1
    assert all(1 in found[at : at + 3] for at in range(37)), "spread instead of consecutive"
