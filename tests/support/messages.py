"""Random messages of any class and version, for tests of the codec."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from oncelog.protocol.apis import ApiKey, messages
from oncelog.protocol.messages import consumer_protocol, group_metadata_value, offset_commit_value, transaction_log
from oncelog.protocol.schema import Field, Message

INTERNAL: list[type[Message]] = [
    transaction_log.TransactionLogKey,
    transaction_log.TransactionLogValue,
    offset_commit_value.OffsetCommitKey,
    offset_commit_value.OffsetCommitValue,
    group_metadata_value.GroupMetadataKey,
    group_metadata_value.GroupMetadataValue,
    consumer_protocol.ConsumerProtocolSubscription,
    consumer_protocol.ConsumerProtocolAssignment,
]
WIRE: list[type[Message]] = [cls for key in ApiKey for cls in messages(key)]
EVERY = [(cls, version) for cls in WIRE + INTERNAL for version in range(cls.MIN_VERSION, cls.MAX_VERSION + 1)]

_SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "int8": st.integers(-128, 127),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "float64": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "uuid": st.integers(0, 2**128 - 1).map(lambda number: UUID(int=number)),
    "string": st.text(max_size=20) | st.just("x" * 200),
    "bytes": st.binary(max_size=20) | st.just(b"x" * 200),
    "records": st.binary(max_size=20),
}


def values(field: Field, version: int) -> st.SearchStrategy[Any]:
    """Any value of a field in a version."""
    strategy: st.SearchStrategy[Any]
    if field.kind == "array":
        element = _SCALARS[field.element] if isinstance(field.element, str) else instances(field.element, version)
        strategy = st.lists(element, max_size=3)
    elif field.kind == "struct":
        strategy = instances(field.element, version)
    else:
        strategy = _SCALARS[field.kind]
    return st.none() | strategy if field.may_be_null(version) else strategy


def instances(cls: type[Message], version: int) -> st.SearchStrategy[Message]:
    """Any message of a class that a version can carry."""
    fields = {name: values(field, version) for name, field in cls.FIELDS.items() if field.present(version)}
    return st.builds(cls, **fields)
