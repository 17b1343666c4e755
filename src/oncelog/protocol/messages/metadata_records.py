"""Records of `__cluster_metadata`, the log of a KRaft controller: topics, settings, features, ACLs and so on.

Only the records that a broker needs to use its data are declared. The reader skips all others.
"""

from __future__ import annotations

from uuid import UUID

from oncelog.protocol.primitives import read_varint, varint
from oncelog.protocol.schema import (
    DecodeError,
    Message,
    array,
    boolean,
    data,
    float64,
    int8,
    int16,
    int32,
    int64,
    string,
    uuid,
)

_FRAME_VERSION = 1


class TopicRecord(Message, api_key=2, versions=(0, 0), flexible=0):
    """A topic was created."""

    name: str = string()
    topic_id: UUID = uuid()


class PartitionRecord(Message, api_key=3, versions=(0, 2), flexible=0):
    """A partition was created. `directories` has a log directory's id for each replica (KIP-858)."""

    partition_id: int = int32(default=-1)
    topic_id: UUID = uuid()
    replicas: list[int] = array("int32")
    isr: list[int] = array("int32")
    removing_replicas: list[int] = array("int32")
    adding_replicas: list[int] = array("int32")
    leader: int = int32(default=-1)
    leader_recovery_state: int = int8(tag=0)
    leader_epoch: int = int32(default=-1)
    partition_epoch: int = int32(default=-1)
    directories: list[UUID] = array("uuid", since=1)
    eligible_leader_replicas: list[int] | None = array("int32", since=2, nullable=2, default=None, tag=1)
    last_known_elr: list[int] | None = array("int32", since=2, nullable=2, default=None, tag=2)


class ConfigRecord(Message, api_key=4, versions=(0, 0), flexible=0):
    """A setting of a topic (`resource_type` 2), broker (4) or other resource. A null value removes the setting."""

    resource_type: int = int8()
    resource_name: str = string()
    name: str = string()
    value: str | None = string(nullable=0)


class PartitionChangeRecord(Message, api_key=5, versions=(0, 2), flexible=0):
    """The changed fields of a partition. Each election increments its leader epoch. Leader -2: the same leader."""

    partition_id: int = int32(default=-1)
    topic_id: UUID = uuid()
    isr: list[int] | None = array("int32", nullable=0, default=None, tag=0)
    leader: int = int32(default=-2, tag=1)
    replicas: list[int] | None = array("int32", nullable=0, default=None, tag=2)
    removing_replicas: list[int] | None = array("int32", nullable=0, default=None, tag=3)
    adding_replicas: list[int] | None = array("int32", nullable=0, default=None, tag=4)
    leader_recovery_state: int = int8(default=-1, tag=5)
    eligible_leader_replicas: list[int] | None = array("int32", since=2, nullable=2, default=None, tag=6)
    last_known_elr: list[int] | None = array("int32", since=2, nullable=2, default=None, tag=7)
    directories: list[UUID] | None = array("uuid", since=1, nullable=1, default=None, tag=8)


class RemoveTopicRecord(Message, api_key=9, versions=(0, 0), flexible=0):
    """A topic was deleted, with all its partitions."""

    topic_id: UUID = uuid()


class AccessControlEntryRecord(Message, api_key=18, versions=(0, 0), flexible=0):
    """An ACL was created."""

    id: UUID = uuid()
    resource_type: int = int8()
    resource_name: str = string()
    pattern_type: int = int8()
    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


class RemoveAccessControlEntryRecord(Message, api_key=19, versions=(0, 0), flexible=0):
    """An ACL was deleted."""

    id: UUID = uuid()


class QuotaEntityRecordPart(Message):
    """`Entity` of ClientQuotaRecord: one type, and its name. The name of a default is None."""

    entity_type: str = string()
    entity_name: str | None = string(nullable=0)


class ClientQuotaRecord(Message, api_key=14, versions=(0, 0), flexible=0):
    """A quota of a user, a client id, both or an address was set, or removed."""

    entity: list[QuotaEntityRecordPart] = array(QuotaEntityRecordPart)
    key: str = string()
    value: float = float64()
    remove: bool = boolean()


class DelegationTokenRecord(Message, api_key=10, versions=(0, 0), flexible=0):
    """A delegation token was created or changed. Principals are texts such as `User:alice`, times are ms since 1970."""

    owner: str = string()
    requester: str = string()
    renewers: list[str] = array("string")
    issue_timestamp: int = int64()
    max_timestamp: int = int64()
    expiration_timestamp: int = int64()
    token_id: str = string()


class RemoveDelegationTokenRecord(Message, api_key=26, versions=(0, 0), flexible=0):
    """A delegation token was removed."""

    token_id: str = string()


class UserScramCredentialRecord(Message, api_key=11, versions=(0, 0), flexible=0):
    """A credential of a SCRAM user was created or changed."""

    name: str = string()
    mechanism: int = int8()
    salt: bytes = data()
    stored_key: bytes = data()
    server_key: bytes = data()
    iterations: int = int32()

    def __repr__(self) -> str:
        return f"UserScramCredentialRecord(name={self.name!r}, mechanism={self.mechanism})"


class RemoveUserScramCredentialRecord(Message, api_key=22, versions=(0, 0), flexible=0):
    """A credential of a SCRAM user was deleted."""

    name: str = string()
    mechanism: int = int8()


class FeatureLevelRecord(Message, api_key=12, versions=(0, 0), flexible=0):
    """The finalized level of a feature, 0 for none."""

    name: str = string()
    feature_level: int = int16()


class ProducerIdsRecord(Message, api_key=15, versions=(0, 0), flexible=0):
    """A block of producer ids was allocated to a broker. The next block begins at `next_producer_id`."""

    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)
    next_producer_id: int = int64()


class BeginTransactionRecord(Message, api_key=23, versions=(0, 0), flexible=0):
    """The start of a transaction. The records after it apply when it ends (KIP-868)."""

    name: str | None = string(nullable=0, default=None, tag=0)


class EndTransactionRecord(Message, api_key=24, versions=(0, 0), flexible=0):
    """The end of a transaction. The records since the last BeginTransactionRecord apply."""


class AbortTransactionRecord(Message, api_key=25, versions=(0, 0), flexible=0):
    """The end of a transaction whose records are ignored."""

    reason: str | None = string(nullable=0, default=None, tag=0)


_TYPES: dict[int, type[Message]] = {
    kind.API_KEY: kind
    for kind in (
        *(TopicRecord, PartitionRecord, ConfigRecord, PartitionChangeRecord, RemoveTopicRecord, FeatureLevelRecord),
        *(AccessControlEntryRecord, RemoveAccessControlEntryRecord, ClientQuotaRecord),
        *(DelegationTokenRecord, RemoveDelegationTokenRecord),
        *(UserScramCredentialRecord, RemoveUserScramCredentialRecord),
        *(ProducerIdsRecord, BeginTransactionRecord, EndTransactionRecord, AbortTransactionRecord),
    )
}


def encode_record(message: Message, version: int) -> bytes:
    """Encode a record's value, with its frame (Kafka's `MetadataRecordSerde`)."""
    return varint(_FRAME_VERSION) + varint(message.API_KEY) + varint(version) + message.encode(version)


def decode_record(value: bytes | memoryview) -> Message | None:
    """Return the record in a value, or None for a kind that is not declared here. Raises DecodeError."""
    view = memoryview(value)
    frame, pos = read_varint(view, 0)
    if frame != _FRAME_VERSION:
        raise DecodeError(f"metadata record has frame version {frame}, but only {_FRAME_VERSION} is supported")
    api_key, pos = read_varint(view, pos)
    version, pos = read_varint(view, pos)
    kind = _TYPES.get(api_key)
    if kind is None:
        return None
    if not kind.MIN_VERSION <= version <= kind.MAX_VERSION:
        raise DecodeError(f"{kind.__name__} has version {version}, but versions up to {kind.MAX_VERSION} are supported")
    return kind.decode(view[pos:], version)
