"""Random protocol messages from their declarations, and the same message in kio.

kio is an independent implementation of the protocol, generated from Kafka's schemas: the reference for names, order,
types, versions and bytes. It has richer types than the protocol: durations, times, error codes, None for the zero UUID.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import io
import typing
from collections.abc import Iterator
from typing import Any, NamedTuple
from uuid import UUID

from hypothesis import strategies as st
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_reader, entity_writer

from oncelog.protocol.apis import ApiKey, messages
from oncelog.protocol.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from oncelog.protocol.messages.group_metadata_value import GroupMetadataKey, GroupMetadataValue
from oncelog.protocol.messages.offset_commit_value import OffsetCommitKey, OffsetCommitValue
from oncelog.protocol.messages.transaction_log import TransactionLogKey, TransactionLogValue
from oncelog.protocol.schema import NO_UUID, OWN_TAGS, Field, Message

INTERNAL: list[type[Message]] = [
    TransactionLogKey,
    TransactionLogValue,
    OffsetCommitKey,
    OffsetCommitValue,
    GroupMetadataKey,
    GroupMetadataValue,
]

_SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "int8": st.integers(-(2**7), 2**7 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "float64": st.floats(allow_nan=False, allow_infinity=False),
    "bool": st.booleans(),
    "uuid": st.just(NO_UUID) | st.uuids(),
    "string": st.text(max_size=8) | st.text(min_size=130, max_size=140),
    "bytes": st.binary(max_size=8) | st.binary(min_size=130, max_size=140),
    "records": st.binary(max_size=20),
}
_ERROR_CODES = st.sampled_from([int(code) for code in KioErrorCode])
_TIMES = st.integers(0, 2**40)
_TIMED = frozenset(
    {"log_append_time_ms", "transaction_start_time_ms", "retention_time_ms", "session_lifetime_ms"}
    | {"issue_timestamp_ms", "expiry_timestamp_ms", "max_timestamp_ms", "max_lifetime_ms"}
    | {"renew_period_ms", "expiry_time_period_ms"}
)
"""int64 fields that kio reads as a date or a duration, which have a smaller range."""


class Case(NamedTuple):
    """One message class in one version, and its module in kio."""

    cls: type[Message]
    version: int
    module: str

    def __str__(self) -> str:
        return f"{self.cls.__name__}-v{self.version}"

    @property
    def kio(self) -> Any:
        """Return the same message's class in kio."""
        return getattr(importlib.import_module(self.module), self.cls.__name__)


def message_classes() -> Iterator[tuple[str, str, type[Message]]]:
    """Return (kio's name of the API, request | response | data, class) of all messages that kio knows."""
    for key in ApiKey:
        request, response = messages(key)
        yield key.name.lower(), "request", request
        yield key.name.lower(), "response", response
    yield "consumer_protocol_subscription", "data", ConsumerProtocolSubscription
    yield "consumer_protocol_assignment", "data", ConsumerProtocolAssignment


def cases() -> list[Case]:
    """Return every message in every version that we declare."""
    return [
        Case(cls, version, f"kio.schema.{api}.v{version}.{kind}")
        for api, kind, cls in message_classes()
        for version in range(cls.MIN_VERSION, cls.MAX_VERSION + 1)
    ]


def internal_cases() -> list[Case]:
    """Return the records of internal topics, in every version. kio does not know these."""
    return [Case(cls, version, "") for cls in INTERNAL for version in range(cls.MIN_VERSION, cls.MAX_VERSION + 1)]


def instances(cls: type[Message], version: int, *, only_kafkas: bool = False) -> st.SearchStrategy[Any]:
    """Draw messages with a value in every field of the version, null where permitted.

    `only_kafkas`: without the fields that only oncelog has.
    """
    names = field_names(cls, version) if only_kafkas else [n for n, f in cls.FIELDS.items() if f.present(version)]
    return st.builds(cls, **{name: _values(name, cls.FIELDS[name], version, only_kafkas) for name in names})


def _values(name: str, field: Field, version: int, only_kafkas: bool) -> st.SearchStrategy[Any]:
    if field.kind == "array":
        element = field.element
        items = _SCALARS[element] if isinstance(element, str) else instances(element, version, only_kafkas=only_kafkas)
        values: st.SearchStrategy[Any] = st.lists(items, max_size=2)
    elif field.kind == "struct":
        values = instances(field.element, version, only_kafkas=only_kafkas)
    elif name.endswith("error_code"):
        values = _ERROR_CODES
    elif name in _TIMED:
        values = _TIMES
    else:
        values = _SCALARS[field.kind]
    return st.none() | values if field.may_be_null(version) else values


def parse_with_kio(case: Case, data: bytes) -> tuple[Any, int]:
    """Return kio's instance and the number of bytes that it has read."""
    parsed, size = entity_reader(case.kio)(data, 0)
    return parsed, size


def write_with_kio(entity: Any) -> bytes:
    """Return kio's bytes for its instance."""
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def field_names(cls: type[Message], version: int) -> list[str]:
    """Return the names of the fields in a version that Kafka has as well, in their order."""
    return [
        name
        for name, field in cls.FIELDS.items()
        if field.present(version) and (field.tag is None or field.tag < OWN_TAGS)
    ]


def kio_name(ours: str, kio_type: Any) -> str:
    """Return kio's name, in which durations and dates lose their unit."""
    kinds = typing.get_args(kio_type) or (kio_type,)
    timed = any(isinstance(kind, type) and issubclass(kind, datetime.timedelta | datetime.date) for kind in kinds)
    return ours.removesuffix("_ms") if timed else ours


def same(ours: Any, kio: Any) -> bool:
    """Return whether one of our values equals kio's."""
    if isinstance(ours, Message):
        present = [getattr(kio, field.name) for field in dataclasses.fields(kio)]
        names = field_names(type(ours), int(kio.__version__))
        return len(names) == len(present) and all(
            same(getattr(ours, name), value) for name, value in zip(names, present, strict=True)
        )
    if isinstance(ours, list):
        return isinstance(kio, tuple) and len(ours) == len(kio) and all(map(same, ours, kio))
    if isinstance(kio, datetime.timedelta):
        return bool(ours == round(kio / datetime.timedelta(milliseconds=1)))
    if isinstance(kio, datetime.datetime):
        return bool(ours == round(kio.timestamp() * 1000))
    if isinstance(ours, UUID):
        return ours == (kio or NO_UUID)
    return bool(ours == kio) or (kio is None and ours == -1)
