"""Read the metadata of an Apache Kafka cluster (KRaft) from `__cluster_metadata-0`, and write a `bootstrap.checkpoint`.

`read` replays the newest snapshot, and the log after it. Source: Kafka's `MetadataImage` and
`ReplicationControlManager`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from oncelog.cluster.acl_nodes import node_name
from oncelog.cluster.acls import Acl
from oncelog.cluster.delegation_tokens import DelegationToken
from oncelog.cluster.partition_state import PartitionState
from oncelog.cluster.quotas import QuotaSet
from oncelog.cluster.topics import PartitionInfo, TopicInfo
from oncelog.log.disk import Disk
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.kinds import ResourceType
from oncelog.protocol.messages.metadata_records import (
    AbortTransactionRecord,
    AccessControlEntryRecord,
    BeginTransactionRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    QuotaEntityRecordPart,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UserScramCredentialRecord,
    decode_record,
    encode_record,
)
from oncelog.protocol.records import Record, build_batch, check_crc, decode_records, iter_batches
from oncelog.protocol.schema import DecodeError, Message

FOLDER = "__cluster_metadata-0"
BOOTSTRAP = "bootstrap.checkpoint"
"""The file that Kafka reads if `FOLDER` is missing or empty."""
METADATA_FEATURE = "metadata.version"
METADATA_VERSION = 30
"""`metadata.version` of Apache Kafka 4.3."""

_SAME_LEADER = -2
_SNAPSHOT = re.compile(r"([0-9]{20})-[0-9]{10}\.checkpoint")
_SEGMENT = re.compile(r"([0-9]{20})\.log")
_RECORDS_A_BATCH = 500


@dataclass
class KafkaMetadata:
    """The metadata of a cluster. The key of a topic is its id; the key of settings is (kind of resource, name)."""

    topics: dict[UUID, TopicInfo] = field(default_factory=dict)
    configs: dict[tuple[int, str], dict[str, str]] = field(default_factory=dict)
    features: dict[str, int] = field(default_factory=dict)
    next_producer_id: int = 0
    acls: dict[UUID, Acl] = field(default_factory=dict)
    quotas: dict[frozenset[tuple[str, str | None]], dict[str, float]] = field(default_factory=dict)
    """By the parts of an entity, type and name: the quotas by their keys. They are not checked."""
    tokens: dict[str, DelegationToken] = field(default_factory=dict)
    """By id. They are not checked."""
    credentials: dict[tuple[str, int], UserScramCredentialRecord] = field(default_factory=dict)
    """By user and number of the mechanism. They are not checked."""
    end_offset: int = 0
    """The offset after the last batch that was read."""
    newest: int = 0
    """The highest `metadata.version` in any record, even if a later record has lowered it."""
    _open: list[Message] | None = None

    def replay(self, record: Message) -> None:
        """Apply one record. The records of a metadata transaction are applied when it ends (KIP-868)."""
        if isinstance(record, FeatureLevelRecord) and record.name == METADATA_FEATURE:
            self.newest = max(self.newest, record.feature_level)
        if isinstance(record, BeginTransactionRecord):
            self._open = []
        elif isinstance(record, AbortTransactionRecord):
            self._open = None
        elif isinstance(record, EndTransactionRecord):
            ended, self._open = self._open or [], None
            for each in ended:
                _APPLY[type(each)](self, each)
        elif self._open is not None:
            self._open.append(record)
        else:
            _APPLY[type(record)](self, record)

    def _topic(self, record: TopicRecord) -> None:
        self.topics[record.topic_id] = TopicInfo(record.name, record.topic_id, ())

    def _partition(self, record: PartitionRecord) -> None:
        topic = self.topics[record.topic_id]
        state = PartitionState(record.leader, record.leader_epoch, tuple(record.isr))
        info = PartitionInfo(tuple(record.replicas), state)
        known = {**dict(enumerate(topic.partitions)), record.partition_id: info}
        partitions = tuple(known[index] for index in sorted(known))
        self.topics[record.topic_id] = replace(topic, partitions=partitions)

    def _change(self, record: PartitionChangeRecord) -> None:
        topic = self.topics[record.topic_id]
        old = topic.partitions[record.partition_id]
        elected = record.leader != _SAME_LEADER
        state = PartitionState(
            record.leader if elected else old.leader,
            old.leader_epoch + elected,
            old.isr if record.isr is None else tuple(record.isr),
        )
        info = PartitionInfo(old.replicas if record.replicas is None else tuple(record.replicas), state)
        partitions = [*topic.partitions]
        partitions[record.partition_id] = info
        self.topics[record.topic_id] = replace(topic, partitions=tuple(partitions))

    def _remove(self, record: RemoveTopicRecord) -> None:
        topic = self.topics.pop(record.topic_id)
        self.configs.pop((ResourceType.TOPIC, topic.name), None)

    def _config(self, record: ConfigRecord) -> None:
        settings = self.configs.setdefault((record.resource_type, record.resource_name), {})
        if record.value is None:
            settings.pop(record.name, None)
        else:
            settings[record.name] = record.value

    def _feature(self, record: FeatureLevelRecord) -> None:
        self.features[record.name] = record.feature_level

    def _producer_ids(self, record: ProducerIdsRecord) -> None:
        self.next_producer_id = record.next_producer_id

    def _acl(self, record: AccessControlEntryRecord) -> None:
        self.acls[record.id] = Acl(
            record.resource_type,
            record.resource_name,
            record.pattern_type,
            record.principal,
            record.host,
            record.operation,
            record.permission_type,
        )

    def _quota(self, record: ClientQuotaRecord) -> None:
        entity = frozenset((part.entity_type, part.entity_name) for part in record.entity)
        values = self.quotas.setdefault(entity, {})
        if record.remove:
            values.pop(record.key, None)
        else:
            values[record.key] = record.value

    def _token(self, record: DelegationTokenRecord) -> None:
        self.tokens[record.token_id] = DelegationToken(
            record.token_id,
            record.owner,
            record.requester,
            tuple(record.renewers),
            record.issue_timestamp,
            record.max_timestamp,
            record.expiration_timestamp,
        )

    def _remove_token(self, record: RemoveDelegationTokenRecord) -> None:
        self.tokens.pop(record.token_id, None)

    def _credential(self, record: UserScramCredentialRecord) -> None:
        self.credentials[record.name, record.mechanism] = record

    def _remove_credential(self, record: RemoveUserScramCredentialRecord) -> None:
        self.credentials.pop((record.name, record.mechanism), None)

    def _remove_acl(self, record: RemoveAccessControlEntryRecord) -> None:
        del self.acls[record.id]


_APPLY: dict[type[Message], Callable[[KafkaMetadata, Any], None]] = {
    TopicRecord: KafkaMetadata._topic,
    PartitionRecord: KafkaMetadata._partition,
    PartitionChangeRecord: KafkaMetadata._change,
    RemoveTopicRecord: KafkaMetadata._remove,
    ConfigRecord: KafkaMetadata._config,
    FeatureLevelRecord: KafkaMetadata._feature,
    ProducerIdsRecord: KafkaMetadata._producer_ids,
    AccessControlEntryRecord: KafkaMetadata._acl,
    RemoveAccessControlEntryRecord: KafkaMetadata._remove_acl,
    ClientQuotaRecord: KafkaMetadata._quota,
    DelegationTokenRecord: KafkaMetadata._token,
    RemoveDelegationTokenRecord: KafkaMetadata._remove_token,
    UserScramCredentialRecord: KafkaMetadata._credential,
    RemoveUserScramCredentialRecord: KafkaMetadata._remove_credential,
}


def position(disk: Disk, folder: str) -> dict[str, int] | None:
    """Return the `end_offset` of the log in a `__cluster_metadata-0`, and the `crc` of its last batch.

    The CRC distinguishes the log from another one of the same length. Records are not decoded. Return None if the
    directory has neither a batch nor a snapshot, and -1 for both values if the last segment is damaged. Raises OSError.
    """
    names = disk.listdir(folder)
    snapshots = sorted(name for name in names if _SNAPSHOT.fullmatch(name))
    segments = sorted(name for name in names if _SEGMENT.fullmatch(name))
    for name in reversed(segments):
        data = memoryview(disk.read_file(f"{folder}/{name}"))
        try:
            headers = [header for header, _ in iter_batches(data, partial_ok=True)]
        except ProtocolError:  # damaged: -1 never matches an earlier position
            return {"end_offset": -1, "crc": -1}
        if headers:
            return {"end_offset": headers[-1].next_offset, "crc": headers[-1].crc}
    return {"end_offset": int(snapshots[-1][:20]), "crc": 0} if snapshots else None


def read(disk: Disk, folder: str) -> KafkaMetadata:
    """Read a `__cluster_metadata-0`.

    Raises OSError, UNSUPPORTED_VERSION if a newer Kafka has written it, and CORRUPT_MESSAGE if it cannot be decoded.
    """
    metadata = KafkaMetadata()
    try:
        _read(metadata, disk, folder)
    except ProtocolError:
        _check_version(metadata.newest, folder)  # a record of a newer Kafka is not damage
        raise
    _check_version(metadata.features.get(METADATA_FEATURE, 0), folder)
    return metadata


def _check_version(level: int, folder: str) -> None:
    if level > METADATA_VERSION:
        raise ProtocolError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"a newer Apache Kafka has written {folder}: its {METADATA_FEATURE} is {level}, but this oncelog reads "
            f"up to {METADATA_VERSION} (Apache Kafka 4.3)",
        )


def _read(metadata: KafkaMetadata, disk: Disk, folder: str) -> None:
    names = disk.listdir(folder)
    snapshots = sorted(name for name in names if _SNAPSHOT.fullmatch(name))
    if snapshots:
        _replay(metadata, disk, f"{folder}/{snapshots[-1]}", 0)
        metadata.end_offset = int(snapshots[-1][:20])
    start = metadata.end_offset
    for name in sorted(name for name in names if _SEGMENT.fullmatch(name)):
        metadata.end_offset = max(metadata.end_offset, _replay(metadata, disk, f"{folder}/{name}", start))


def _replay(metadata: KafkaMetadata, disk: Disk, path: str, start: int) -> int:
    """Replay the records of a file from offset ``start`` on. Return the offset after the last batch."""
    end = 0
    try:
        for header, view in iter_batches(memoryview(disk.read_file(path)), partial_ok=True):
            if header.last_offset >= start:
                check_crc(header, view)
                if not header.is_control:
                    for entry in decode_records(view):
                        if entry.offset >= start:
                            _replay_value(metadata, entry.value or b"")
            end = header.next_offset
    except (DecodeError, LookupError, ProtocolError) as error:
        raise ProtocolError(ErrorCode.CORRUPT_MESSAGE, f"cannot read {path}: {error!r}") from error
    return end


def _replay_value(metadata: KafkaMetadata, value: bytes) -> None:
    record = decode_record(value)
    if record is not None:
        metadata.replay(record)


def bootstrap(
    topics: Iterable[TopicInfo],
    directory_of: Callable[[str, int], UUID],
    *,
    next_producer_id: int,
    features: Mapping[str, int],
    broker_configs: Mapping[str, Mapping[str, str]],
    group_configs: Mapping[str, Mapping[str, str]],
    acls: Iterable[Acl],
    quotas: QuotaSet,
    tokens: Iterable[DelegationToken],
    credentials: Iterable[UserScramCredentialRecord],
    now_ms: int,
) -> bytes:
    """Return the content of a `bootstrap.checkpoint`, from which Kafka's first controller creates these topics.

    ``directory_of(topic, partition)`` returns the id of the log directory that holds a partition. ``broker_configs``
    has dynamic settings. The key is the broker's id in decimal digits, or "" for the settings of all brokers.
    The key of ``group_configs`` is the group's id.
    """
    records: list[tuple[Message, int]] = [
        (FeatureLevelRecord(name=name, feature_level=level), 0)
        for name, level in {METADATA_FEATURE: METADATA_VERSION, **features}.items()
        if level > 0
    ]
    for topic in topics:
        records.append((TopicRecord(name=topic.name, topic_id=topic.topic_id), 0))
        for index, info in enumerate(topic.partitions):
            partition = PartitionRecord(
                partition_id=index,
                topic_id=topic.topic_id,
                replicas=list(info.replicas),
                isr=list(info.isr),
                leader=info.leader,
                leader_epoch=info.leader_epoch + 1,
                partition_epoch=0,
                directories=[directory_of(topic.name, index)] * len(info.replicas),
            )
            records.append((partition, 1))
        records += _settings(ResourceType.TOPIC, topic.name, topic.configs)
    for name, configs in sorted(broker_configs.items()):
        records += _settings(ResourceType.BROKER, name, configs)
    for name, configs in sorted(group_configs.items()):
        records += _settings(ResourceType.GROUP, name, configs)
    records += [(_acl_record(acl), 0) for acl in acls]
    records += _quota_records(quotas)
    records += [(_token_record(token), 0) for token in tokens]
    records += [(credential, 0) for credential in credentials]
    records.append((ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=next_producer_id), 0))
    rows = [
        Record(offset, now_ms, None, encode_record(message, version))
        for offset, (message, version) in enumerate(records)
    ]
    return b"".join(
        bytes(build_batch(rows[start : start + _RECORDS_A_BATCH], base_offset=start, leader_epoch=0))
        for start in range(0, len(rows), _RECORDS_A_BATCH)
    )


def _settings(kind: int, name: str, configs: Mapping[str, str]) -> list[tuple[Message, int]]:
    return [
        (ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value), 0)
        for key, value in sorted(configs.items())
    ]


def _quota_records(quotas: QuotaSet) -> list[tuple[Message, int]]:
    return [
        (
            ClientQuotaRecord(
                entity=[QuotaEntityRecordPart(entity_type=kind, entity_name=name) for kind, name in entity.parts],
                key=key,
                value=value,
            ),
            0,
        )
        for entity, values in quotas.by_entity.items()
        for key, value in sorted(values.items())
    ]


def _token_record(token: DelegationToken) -> DelegationTokenRecord:
    return DelegationTokenRecord(
        owner=token.owner,
        requester=token.requester,
        renewers=list(token.renewers),
        issue_timestamp=token.issued_ms,
        max_timestamp=token.max_ms,
        expiration_timestamp=token.expires_ms,
        token_id=token.token_id,
    )


def _acl_record(acl: Acl) -> AccessControlEntryRecord:
    return AccessControlEntryRecord(
        id=UUID(node_name(acl)),
        resource_type=acl.resource,
        resource_name=acl.name,
        pattern_type=acl.pattern,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )
