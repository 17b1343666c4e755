"""Every client's records are read back unchanged by every client."""

from __future__ import annotations

import random

import pytest

from support.clients.base import Client, Outgoing, Seen
from support.clients.confluent import ConfluentClient
from support.servers import Server

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

ODD_RECORDS = (
    Outgoing(b"plain"),
    Outgoing(b"with key", b"key"),
    Outgoing(None, b"a tombstone"),
    Outgoing(b"", b""),
    Outgoing(b"one header", headers=(("name", b"value"),)),
    Outgoing(b"headers", headers=(("twice", b"1"), ("twice", b"2"), ("empty", b""), ("\u00fcn\u00efcode", b"\xff"))),
    Outgoing(b"in another time", timestamp=1_234_567_890_123),
    Outgoing(b"\x00\xff" * 500, b"\x00"),
)


def without_place(records: list[Seen]) -> list[tuple[bytes | None, bytes | None, tuple]]:
    """Return key, value and headers of each record."""
    return [(record.key, record.value, record.headers) for record in records]


def test_records_of_every_shape_round_trip(client: Client, other_client: Client, name: str) -> None:
    client.create_topic(name)
    assert client.send(name, ODD_RECORDS) == list(range(len(ODD_RECORDS)))
    found = other_client.read(name, committed=False)
    assert [record.offset for record in found] == list(range(len(ODD_RECORDS)))
    assert without_place(found) == [(sent.key, sent.value, sent.headers) for sent in ODD_RECORDS]
    assert found[6].timestamp == 1_234_567_890_123


def test_record_without_key_and_value(server: Server, other_client: Client, name: str) -> None:
    client = ConfluentClient(server.bootstrap)  # the other clients refuse to send one
    client.create_topic(name)
    client.send(name, [Outgoing(None), Outgoing(b"something")])
    assert without_place(other_client.read(name, committed=False)) == [(None, None, ()), (None, b"something", ())]


@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
@pytest.mark.parametrize("codec", CODECS)
def test_every_codec(client: Client, other_client: Client, name: str, codec: str, idempotent: bool) -> None:
    client.create_topic(name, 3)
    sent = [Outgoing(b"%04d" % i * 25, b"%d" % i, partition=i % 3) for i in range(300)]
    client.send(name, sent, codec=codec, idempotent=idempotent)
    found = other_client.read(name, 3, committed=True)
    for partition in range(3):
        values = [record.value for record in found if record.partition == partition]
        assert values == [record.value for record in sent if record.partition == partition]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_value_of_acks(client: Client, name: str, acks: str) -> None:
    client.create_topic(name)
    offsets = client.send(name, [Outgoing(b"%d" % i) for i in range(50)], acks=acks)
    assert len(offsets) == 50
    found: list[Seen] = []
    while len(found) < 50:
        found = client.read(name, committed=False)
    assert [record.value for record in found] == [b"%d" % i for i in range(50)]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_large_values(client: Client, name: str, codec: str) -> None:
    client.create_topic(name)
    rng = random.Random(7)
    sent = [Outgoing(rng.randbytes(900_000)), Outgoing(b"small"), Outgoing(rng.randbytes(900_000))]
    client.send(name, sent, codec=codec, idempotent=True)
    assert [record.value for record in client.read(name, committed=True)] == [r.value for r in sent]


def test_offsets_by_time(client: Client, name: str) -> None:
    client.create_topic(name)
    for second in (1_000, 2_000, 3_000):
        client.send(name, [Outgoing(b"x", timestamp=second + i) for i in range(10)])
    assert client.offset_for_time(name, 0) == 0
    assert client.offset_for_time(name, 1_005) == 5
    assert client.offset_for_time(name, 1_500) == 10
    assert client.offset_for_time(name, 3_009) == 29
    assert client.offset_for_time(name, 3_010) is None
