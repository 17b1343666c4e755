"""Every message in every version: a round trip, the same bytes as kio, and no harm from bytes that are none."""

import importlib
import io
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from oncelog.protocol.apis import ApiKey
from oncelog.protocol.schema import DecodeError, Message
from support.messages import EVERY, INTERNAL, WIRE, instances

ONE_OF_ANY = st.sampled_from(EVERY).flatmap(
    lambda entry: st.tuples(st.just(entry[1]), instances(*entry))
)
relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=200)



def kio_class(cls: type[Message], version: int) -> Any:
    key = ApiKey(cls.API_KEY).name.lower()
    kind = "request" if cls.__name__.endswith("Request") else "response"
    return getattr(importlib.import_module(f"kio.schema.{key}.v{version}.{kind}"), cls.__name__)


@relaxed
@given(ONE_OF_ANY)
def test_what_was_encoded_decodes_to_the_same(entry: tuple[int, Message]) -> None:
    version, message = entry
    assert type(message).decode(message.encode(version), version) == message


@relaxed
@given(ONE_OF_ANY, st.data())
def test_a_message_that_is_cut_off_is_an_error(entry: tuple[int, Message], data: st.DataObject) -> None:
    version, message = entry
    raw = message.encode(version)
    if raw:
        cut = data.draw(st.integers(0, len(raw) - 1))
        with pytest.raises(DecodeError):
            type(message).decode(raw[:cut], version)


@relaxed
@given(st.sampled_from(EVERY), st.binary(max_size=200))
def test_random_bytes_are_a_message_or_an_error(entry: tuple[type[Message], int], raw: bytes) -> None:
    cls, version = entry
    try:
        message, end = cls.decode_from(raw, 0, version)
    except DecodeError:
        return
    assert isinstance(message, cls)
    assert end <= len(raw)


@pytest.mark.parametrize("cls", WIRE, ids=lambda cls: cls.__name__)
def test_the_bytes_are_those_of_kio(cls: type[Message]) -> None:
    @settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=25)
    @given(st.data())
    def same(data: st.DataObject) -> None:
        version = data.draw(st.integers(cls.MIN_VERSION, cls.MAX_VERSION))
        message = tame(data.draw(instances(cls, version)))
        raw = message.encode(version)
        entity, size = entity_reader(kio_class(cls, version))(raw, 0)
        assert size == len(raw)
        written = io.BytesIO()
        entity_writer(type(entity))(written, entity)
        assert written.getvalue() == raw

    same()


def tame(message: Message) -> Message:
    """Codes that exist and times that are no extremes, for kio's own types."""
    for name, field in message.FIELDS.items():
        value = getattr(message, name)
        if field.kind == "int16" and name.endswith("error_code"):
            setattr(message, name, abs(value) % 100)
        elif name.endswith(("_ms", "timeout", "_time")) and field.kind in ("int32", "int64"):
            setattr(message, name, abs(value) % 2**31)
        elif "timestamp" in name and field.kind == "int64":
            setattr(message, name, abs(value) % 2**40)
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, Message):
                tame(inner)
    return message


def test_versions_and_flexibility_are_those_of_kio() -> None:
    known = defaultdict(list)
    for cls in WIRE:
        for version in range(cls.MIN_VERSION, cls.MAX_VERSION + 1):
            theirs = kio_class(cls, version)
            assert theirs.__flexible__ == (version >= cls.FLEXIBLE_SINCE)
            assert theirs.__api_key__ == cls.API_KEY
            known[cls].append(version)
    assert len(known) == len(WIRE) == 2 * len(ApiKey)
    assert INTERNAL
