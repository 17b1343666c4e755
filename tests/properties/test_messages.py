"""Every message in every version: Kafka's fields, the same bytes as kio, and no harm from invalid bytes."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import tracemalloc
from typing import Any, get_args

import kio.schema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oncelog.protocol.schema import DecodeError, Message
from support.messages import (
    Case,
    cases,
    field_names,
    instances,
    internal_cases,
    kio_name,
    message_classes,
    parse_with_kio,
    same,
    write_with_kio,
)

FEW = settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
WITH_KIO = pytest.mark.parametrize("case", cases(), ids=str)
EVERY_VERSION = pytest.mark.parametrize("case", cases() + internal_cases(), ids=str)


@pytest.mark.parametrize(("api", "kind", "cls"), list(message_classes()))
def test_versions_equal_kafkas(api: str, kind: str, cls: type[Message]) -> None:
    folder = os.path.join(os.path.dirname(kio.schema.__file__), api)
    known = {int(name[1:]) for name in os.listdir(folder) if name[0] == "v" and name[1:].isdigit()}
    assert set(range(cls.MIN_VERSION, cls.MAX_VERSION + 1)) == known


@WITH_KIO
def test_fields_have_kafkas_names_and_order(case: Case) -> None:
    assert bool(case.kio.__flexible__) == (case.version >= case.cls.FLEXIBLE_SINCE)
    if case.cls.API_KEY >= 0:
        assert case.kio.__api_key__ == case.cls.API_KEY
    _compare_fields(case.cls, case.kio, case.version)


def _compare_fields(cls: type[Message], other: Any, version: int) -> None:
    scope = vars(importlib.import_module(other.__module__))
    declared = [
        (field.name, eval(field.type, scope) if isinstance(field.type, str) else field.type)
        for field in dataclasses.fields(other)
    ]
    ours = field_names(cls, version)
    assert [kio_name(name, kind) for name, (_, kind) in zip(ours, declared, strict=True)] == [n for n, _ in declared]
    for name, (_, kind) in zip(ours, declared, strict=True):
        field = cls.FIELDS[name]
        if field.kind == "array" or field.kind == "struct":
            optional = type(None) in get_args(kind)
            assert optional == field.may_be_null(version), name
        if isinstance(field.element, type):
            _compare_fields(field.element, _entity(kind), version)


def _entity(kind: Any) -> Any:
    if dataclasses.is_dataclass(kind):
        return kind
    return next(filter(None, (_entity(inner) for inner in get_args(kind))), None)


@WITH_KIO
@FEW
@given(data=st.data())
def test_bytes_equal_those_of_kio_both_ways(case: Case, data: st.DataObject) -> None:
    message = data.draw(instances(case.cls, case.version, only_kafkas=True))
    raw = message.encode(case.version)
    theirs, size = parse_with_kio(case, raw)
    assert size == len(raw)
    assert same(message, theirs)
    assert write_with_kio(theirs) == raw


@EVERY_VERSION
@FEW
@given(data=st.data())
def test_encoded_messages_round_trip(case: Case, data: st.DataObject) -> None:
    message = data.draw(instances(case.cls, case.version))
    raw = message.encode(case.version)
    assert case.cls.decode(raw, case.version) == message
    assert b"".join(message.chunks(case.version)) == raw


@EVERY_VERSION
@FEW
@given(data=st.data())
def test_truncated_message_is_a_decode_error(case: Case, data: st.DataObject) -> None:
    raw = data.draw(instances(case.cls, case.version)).encode(case.version)
    step = max(1, len(raw) // 50)
    for end in range(0, len(raw), step):
        with pytest.raises(DecodeError):
            case.cls.decode(raw[:end], case.version)
    with pytest.raises(DecodeError):
        case.cls.decode(raw + b"\x00", case.version)


@EVERY_VERSION
@FEW
@given(data=st.data())
def test_damaged_message_is_a_decode_error_or_another_message(case: Case, data: st.DataObject) -> None:
    raw = bytearray(data.draw(instances(case.cls, case.version)).encode(case.version))
    for _ in range(data.draw(st.integers(1, 4))):
        if raw:
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]))
    _decodes_or_refuses(case, bytes(raw))


@EVERY_VERSION
@FEW
@given(raw=st.binary(max_size=120))
def test_any_bytes_are_a_decode_error_or_a_message(case: Case, raw: bytes) -> None:
    _decodes_or_refuses(case, raw)


def _decodes_or_refuses(case: Case, raw: bytes) -> None:
    """Check that a decoded message means the same after it is encoded again.

    The original bytes may be non-canonical.
    """
    with contextlib.suppress(DecodeError):
        message = case.cls.decode(raw, case.version)
        assert case.cls.decode(message.encode(case.version), case.version) == message


HOSTILE = [b"\xff\xff\xff\xff\x07", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x0f", b"\x7f\xff", b"\x80\x00\x00\x00"]
"""Lengths far beyond the remaining data, as varint, int32 and int16, and negative ones."""


@EVERY_VERSION
@FEW
@given(data=st.data())
def test_false_lengths_allocate_no_memory(case: Case, data: st.DataObject) -> None:
    raw = data.draw(instances(case.cls, case.version)).encode(case.version)
    at = data.draw(st.integers(0, len(raw)))
    lying = raw[:at] + data.draw(st.sampled_from(HOSTILE)) + raw[at:]
    tracemalloc.start()
    try:
        _decodes_or_refuses(case, lying)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200_000 + 1_000 * len(lying)
