"""The decision record: its JSON, older versions, and its parts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import ValidationError

from oncelog.spark.commit.names import TopicPartition
from oncelog.spark.commit.record import (
    STREAM,
    End,
    Owner,
    Record,
    Source,
    Span,
    TaskTransaction,
    decode_part,
    decode_record,
)

TASK = Owner("p/0/1/0.0", 2, 0)
SPAN = Span(TopicPartition("out", 0), 3, 9)
RECORD = Record(Source(STREAM, "q", 4), 7, 2, 100, False, (TaskTransaction(TASK, (SPAN,)),), ("out",))


def test_record_survives_json() -> None:
    record = replace(RECORD, ends=(End(SPAN.at, 12, "an id"), End(TopicPartition("other", 0), 4)), parts=(3, 4))
    assert decode_record(record.encode()) == record
    with pytest.raises(ValidationError, match="newer oncelog"):
        decode_record(record.encode().replace(b'"version":2', b'"version":3'))


def test_record_of_version_1_can_be_read() -> None:
    old = b"""{"version":1,"record":{"source":["stream","q",4,"/c"],"plan":7,"slots":2,"rows":100,"settled":false,
        "transactions":[[["p/0/1/0.0",2,0,0],[[["out",0],3,9]]]],"topics":["out"],"planner":["write","",-1,""],
        "prefix":"p"}}"""
    assert decode_record(old) == replace(RECORD, source=Source(STREAM, "q", 4, "/c"), prefix="p")


def test_record_without_topic_ids_can_be_read() -> None:
    old = b"""{"version":2,"record":{"source":["stream","q",4,"",""],"plan":7,"slots":2,"rows":100,"settled":false,
        "topics":["out"],"planner":["write","",-1,"",""],"prefix":"","parts":[],"spanned":["out"],
        "transactions":[["p/0/1/0.0",2,0,[[0,0,3,7]]]],"ends":[[0,0,12]]}}"""
    assert decode_record(old) == replace(RECORD, ends=(End(SPAN.at, 12),))


def test_record_is_split_by_size_and_joined_again() -> None:
    owners = [Owner(f"p/{slot}/1/0.0", slot, 0) for slot in range(30)]
    places = [TopicPartition(topic, number) for topic in ("out", "other") for number in range(9)]
    transactions = tuple(
        TaskTransaction(o, tuple(Span(at, 10**11 + o.pid, 10**11 + 99) for at in places)) for o in owners
    )
    record = replace(RECORD, transactions=transactions, ends=tuple(End(at, 10**11, "i" * 36) for at in places))
    assert record.divide(10**6) == ((), record)
    for limit in (0, 400, 1_000, 10_000):
        parts, head = record.divide(limit)
        assert [part.number for part in parts] == list(range(len(parts)))
        assert limit == 0 or all(len(part.encode()) <= limit for part in parts)
        assert len(parts) > 1
        assert len(head.encode()) < 400
        decoded = tuple(decode_part(part.number, part.encode()) for part in parts)
        assert replace(head, parts=(1, 2)).join(decoded) == record
