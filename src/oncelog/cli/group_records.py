"""Records of `__consumer_offsets` as text, in the three forms that Kafka's own formatter has had."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from oncelog.cli.message_json import message_json
from oncelog.coordinator.groups.records import decode_record
from oncelog.protocol.messages.group_metadata_value import GroupMetadataKey
from oncelog.protocol.messages.offset_commit_value import OffsetCommitKey, OffsetCommitValue
from oncelog.protocol.schema import Message


def as_offset_metadata(value: OffsetCommitValue) -> str:
    """Kafka 0.9 to 1.1: `[OffsetMetadata[12,NO_METADATA],CommitTime 1,ExpirationTime 2]`."""
    position = f"OffsetMetadata[{value.offset},{value.metadata or 'NO_METADATA'}]"
    return f"[{position},CommitTime {value.commit_timestamp},ExpirationTime {value.expire_timestamp}]"


def as_offset_and_metadata(value: OffsetCommitValue) -> str:
    """Kafka 2.1 to 3.9: `OffsetAndMetadata(offset=12, leaderEpoch=Optional.empty, ...)`."""
    epoch = f"Optional[{value.leader_epoch}]" if value.leader_epoch >= 0 else "Optional.empty"
    expires = f"Some({value.expire_timestamp})" if value.expire_timestamp >= 0 else "None"
    return (
        f"OffsetAndMetadata(offset={value.offset}, leaderEpoch={epoch}, metadata={value.metadata}, "
        f"commitTimestamp={value.commit_timestamp}, expireTimestamp={expires})"
    )


TEXT_FORMS: dict[str, Callable[[OffsetCommitValue], str]] = {
    "offset-metadata": as_offset_metadata,
    "offset-and-metadata": as_offset_and_metadata,
}
FORMS = ("json", *TEXT_FORMS)


def shown(key: bytes, value: bytes | None, form: str, *, group: str | None, groups: bool) -> str | None:
    """One record as a line, or None: it is another group's, of another kind, or (as text) of no offset.

    `groups`: generations instead of offsets, in JSON only.
    """
    record = decode_record(key, value)
    if record is None:
        return None
    asked = GroupMetadataKey if groups else OffsetCommitKey
    found = record.key
    if not isinstance(found, asked) or (group is not None and found.group != group):
        return None
    if form == "json":
        return json.dumps(_json(record.key, record.key_version, record.value, record.value_version), ensure_ascii=False)
    assert isinstance(found, OffsetCommitKey)
    assert record.value is None or isinstance(record.value, OffsetCommitValue)
    text = "NULL" if record.value is None else TEXT_FORMS[form](record.value)
    return f"[{found.group},{found.topic},{found.partition}]::{text}"


def _json(key: Message, key_version: int, value: Message | None, version: int) -> dict[str, Any]:
    """As `OffsetsMessageFormatter` and `GroupMetadataMessageFormatter` of Kafka 4 write it."""
    return {
        "key": {"type": key_version, "data": message_json(key, key_version)},
        "value": None if value is None else {"version": version, "data": message_json(value, version)},
    }
