"""An invalid argument of `send` is named at once, by both producers, whatever the topic's state."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from collections.abc import Callable
from typing import Any

import pytest

from oncelog import Producer, aio, errors
from oncelog.client.producer.core import ProducerCore
from oncelog.client.records import checked
from oncelog.protocol.records import Record, decode_records

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"topic": 5}, "topic = 5: it must be str, not int"),
    ({"topic": None}, "topic = None: it must be str, not NoneType"),
    ({"topic": ["t"]}, r"topic = \['t'\]: it must be str, not list"),
    ({"value": {"a": 1}}, "value: it must be bytes, str or None, not dict"),
    ({"key": 5}, "key: it must be bytes, str or None, not int"),
    ({"value": "\ud800"}, "value: 'utf-8' codec can't encode"),
    ({"partition": "0"}, "partition = '0': it must be an int, not str"),
    ({"partition": 0.0}, "partition = 0.0: it must be an int, not float"),
    ({"timestamp": 1.5}, r"timestamp = 1.5: it must be an int, ms since the epoch \(1970\), not float"),
    (
        {"timestamp": datetime.datetime(2020, 1, 1)},
        r"timestamp = .*: it must be an int, ms since the epoch \(1970\), not datetime",
    ),
    ({"headers": 5}, "headers: they must be a mapping or a sequence of pairs .*, not int"),
    ({"headers": "ab"}, "headers: they must be a mapping or a sequence of pairs .*, not str"),
    ({"headers": (pair for pair in [("a", b"1")])}, "headers: they must be .*, not generator"),
    ({"headers": [("a", b"1", 2)]}, r"headers\[0\] = .*: it must be a pair"),
    ({"headers": [("a", b"1"), "ab"]}, r"headers\[1\] = 'ab': it must be a pair"),
    ({"headers": [(b"a", b"1")]}, r"headers\[0\]: the name must be str, not bytes"),
    ({"headers": [("\ud800", b"1")]}, r"headers\[0\]: 'utf-8' codec can't encode"),
    ({"headers": {"a": 1}}, "the header 'a': it must be bytes, str or None, not int"),
]
TAKEN: list[tuple[Any, tuple[tuple[str, bytes | None], ...]]] = [
    ([("a", "ü"), ("b", None)], (("a", "ü".encode()), ("b", None))),
    ({"a": b"1", "bc": "2", "de": None}, (("a", b"1"), ("bc", b"2"), ("de", None))),
    ({"ab": "c"}, (("ab", b"c"),)),
    ([["a", bytearray(b"1")]], (("a", b"1"),)),
    ({}, ()),
    (None, ()),
]


def blocking(known: bool, arguments: dict[str, Any]) -> list[Record]:
    producer = Producer("localhost:1", linger_ms=100_000)
    try:
        if known:
            producer._core.counts["t"] = 1
        producer.send(**{"topic": "t", **arguments})
        return waiting(producer._core)
    finally:
        with contextlib.suppress(errors.TimedOutError):
            producer.close(0)


def awaited(known: bool, arguments: dict[str, Any]) -> list[Record]:
    async def main() -> list[Record]:
        producer = aio.Producer("localhost:1", linger_ms=100_000)
        await producer.start()
        try:
            if known:
                producer._core.counts["t"] = 1
            await producer.send(**{"topic": "t", **arguments})
            return waiting(producer._core)
        finally:
            with contextlib.suppress(errors.TimedOutError):
                await producer.close(0)

    return asyncio.run(main())


def waiting(core: ProducerCore) -> list[Record]:
    return [record for batch in core.accumulator.incomplete() for record in decode_records(memoryview(batch.wire()))]


PRODUCERS = pytest.mark.parametrize("send", [blocking, awaited])


@PRODUCERS
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_invalid_argument_is_named(send: Callable[..., list[Record]], known: bool) -> None:
    """No broker is needed: no call waits."""
    for arguments, message in WRONG:
        with pytest.raises(errors.UsageError, match=f"^{message}"):
            send(known, dict(arguments))


@PRODUCERS
def test_headers_are_pairs_or_a_mapping_of_text_or_bytes(send: Callable[..., list[Record]]) -> None:
    for headers, expected in TAKEN:
        (record,) = send(True, {"value": "x", "headers": headers})
        assert (record.value, record.headers) == (b"x", expected)
        assert tuple(checked("t", b"x", None, None, None, headers)[2]) == expected, "while the topic is not known yet"


@PRODUCERS
def test_error_of_a_partitioner_is_not_changed(
    send: Callable[..., list[Record]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise ValueError("mine")

    monkeypatch.setattr("oncelog.client.producer.core.make_partitioner", lambda *_: broken)
    with pytest.raises(ValueError, match=r"^mine$"):
        send(True, {"value": "x"})


def test_table_without_a_topic_is_rejected_at_once() -> None:
    with Producer("localhost:1") as producer, pytest.raises(errors.UsageError, match=r"^topic = None: it must be str"):
        producer.send_table(None, None)  # type: ignore[arg-type]
