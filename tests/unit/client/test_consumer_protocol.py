"""User data of the sticky assignors, byte for byte as in Kafka's Java assignors, and decoding of other data."""

from __future__ import annotations

import pytest

from oncelog.client.consumer.assignors import Claim
from oncelog.client.consumer.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

OWNED = Claim([("t", 1), ("t", 0), ("u", 2)], 7)


def text(value: str) -> bytes:
    return len(value).to_bytes(2, "big") + value.encode()


def number(value: int) -> bytes:
    return value.to_bytes(4, "big", signed=True)


TOPICS = number(1) + text("t")
T_AND_U = number(2) + text("t") + number(2) + number(0) + number(1) + text("u") + number(1) + number(2)


def test_cooperative_sticky() -> None:
    assert encode_subscription("cooperative-sticky", ["t"], OWNED, OWNED, None) == (
        b"\x00\x03" + TOPICS + number(4) + number(7) + T_AND_U + number(7) + b"\xff\xff"
    )
    assert encode_subscription("cooperative-sticky", ["t"], Claim(), None, "r1") == (
        b"\x00\x03" + TOPICS + number(4) + number(-1) + number(0) + number(-1) + text("r1")
    )


def test_sticky() -> None:
    data = T_AND_U + number(7)
    assert encode_subscription("sticky", ["t"], Claim(), OWNED, None) == (
        b"\x00\x03" + TOPICS + number(len(data)) + data + number(0) + number(-1) + b"\xff\xff"
    )
    assert encode_subscription("sticky", ["t"], Claim(), None, None)[9:13] == number(-1), "null: it had no partitions"


@pytest.mark.parametrize("strategy", ["range", "sticky", "cooperative-sticky"])
def test_round_trip(strategy: str) -> None:
    owned = Claim() if strategy == "sticky" else OWNED
    last = OWNED if strategy == "sticky" else None
    topics, claim = decode_subscription(strategy, encode_subscription(strategy, ["t", "u"], owned, last, None))
    assert topics == ["t", "u"]
    assert (sorted(claim.partitions), claim.generation) == (sorted(OWNED.partitions), 7)


def test_older_members() -> None:
    first = b"\x00\x00" + TOPICS
    assert decode_subscription("cooperative-sticky", first + number(-1)) == (["t"], Claim([], -1))
    owned = number(1) + text("t") + number(1) + number(5)
    second = b"\x00\x01" + TOPICS + number(4) + number(3) + owned
    assert decode_subscription("cooperative-sticky", second) == (["t"], Claim([("t", 5)], 3))
    old_sticky = number(1) + text("t") + number(1) + number(5)
    data = first + number(len(old_sticky)) + old_sticky
    assert decode_subscription("sticky", data) == (["t"], Claim([("t", 5)], -1))
    assert decode_subscription("sticky", first + number(3) + b"\x00\x01\x02") == (["t"], Claim())
    newer = b"\x00\x09" + encode_subscription("range", ["t"], OWNED, None, None)[2:] + b"what is to come"
    assert decode_subscription("range", newer)[0] == ["t"]


def test_assignments() -> None:
    assert encode_assignment(OWNED.partitions) == b"\x00\x00" + T_AND_U + number(-1)
    assert decode_assignment(encode_assignment(OWNED.partitions)) == sorted(OWNED.partitions)
    assert decode_assignment(b"") == []
