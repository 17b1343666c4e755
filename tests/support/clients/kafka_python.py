"""kafka-python."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Self

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.structs import OffsetAndMetadata

from support.clients.base import Member, Outgoing, Seen

PATIENCE = 90.0


def seen(record: Any) -> Seen:
    """Convert a record of the library."""
    headers = tuple((name, value) for name, value in record.headers)
    return Seen(record.partition, record.offset, record.key, record.value, headers, record.timestamp)


def send_all(producer: KafkaProducer, topic: str, records: Sequence[Outgoing]) -> list[int]:
    """Send, and wait for every response. Raises the first error."""
    futures = [
        producer.send(
            topic,
            record.value,
            record.key,
            headers=list(record.headers),
            partition=record.partition,
            timestamp_ms=record.timestamp,
        )
        for record in records
    ]
    producer.flush(PATIENCE)
    return [future.get(PATIENCE).offset for future in futures]


class KafkaPythonTransactions:
    """A transactional producer."""

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self._producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            enable_idempotence=True,
        )
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, records: Sequence[Outgoing]) -> None:
        send_all(self._producer, topic, records)

    def send_offsets(self, member: Member, offsets: dict[tuple[str, int], int]) -> None:
        assert isinstance(member, KafkaPythonMember)
        positions = {
            TopicPartition(topic, part): OffsetAndMetadata(offset, "", -1) for (topic, part), offset in offsets.items()
        }
        self._producer.send_offsets_to_transaction(positions, member.consumer.group_metadata())

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(timeout=1)


class KafkaPythonMember:
    """A group member."""

    def __init__(self, bootstrap: str, group: str, topic: str, instance: str | None = None) -> None:
        self.consumer = KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            group_instance_id=instance,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            session_timeout_ms=6000,
            heartbeat_interval_ms=300,
        )

    def take(self, count: int) -> list[Seen]:
        found: list[Seen] = []
        deadline = time.monotonic() + PATIENCE
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} records arrived"
            # If a poll ends between SyncGroup and its response, the assignment is lost. The timeout suffices for a busy
            # machine.
            for records in self.consumer.poll(2000, max_records=count - len(found)).values():
                found += map(seen, records)
        return found

    def assignment(self) -> set[int]:
        assert not self.consumer.poll(1000), "a record arrived while only the assignment was expected"
        return {part.partition for part in self.consumer.assignment()}

    def commit(self) -> None:
        self.consumer.commit()

    def close(self) -> None:
        self.consumer.close(autocommit=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class KafkaPythonClient:
    """kafka-python against one server."""

    name = "kafka-python"

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def _admin(self) -> Any:
        return KafkaAdminClient(bootstrap_servers=self._bootstrap)

    def create_topic(self, topic: str, partitions: int = 1, **configs: str) -> None:
        config = {key.replace("_", "."): value for key, value in configs.items()}
        with_configs = {"num_partitions": partitions, "replication_factor": 1, "configs": config}
        admin = self._admin()
        admin.create_topics({topic: with_configs})
        admin.close()

    def delete_topic(self, topic: str) -> None:
        admin = self._admin()
        admin.delete_topics([topic])
        admin.close()

    def topics(self) -> dict[str, int]:
        admin = self._admin()
        described = admin.describe_topics()
        admin.close()
        return {topic["name"]: len(topic["partitions"]) for topic in described}

    def topic_configs(self, topic: str) -> dict[str, str]:
        admin = self._admin()
        found = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)], config_filter="all")
        admin.close()
        return {key: entry["value"] for key, entry in found["topic"][topic].items()}

    def cluster(self) -> tuple[int, set[int]]:
        admin = self._admin()
        described = admin.describe_cluster()
        admin.close()
        return described["controller_id"], {broker["broker_id"] for broker in described["brokers"]}

    def groups(self) -> set[str]:
        admin = self._admin()
        listed = admin.list_groups()
        admin.close()
        return {group["group_id"] for group in listed}

    def group_state(self, group: str) -> tuple[str, int]:
        admin = self._admin()
        described = admin.describe_groups([group])[group]
        admin.close()
        return described["group_state"], len(described["members"])

    def send(
        self,
        topic: str,
        records: Sequence[Outgoing],
        *,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int]:
        producer = KafkaProducer(
            bootstrap_servers=self._bootstrap,
            compression_type=None if codec == "none" else codec,
            acks=acks if acks == "all" else int(acks),
            enable_idempotence=idempotent,
        )
        try:
            return send_all(producer, topic, records)
        finally:
            producer.close(timeout=1)

    def transactions(self, transactional_id: str, timeout_ms: int = 60000) -> KafkaPythonTransactions:
        return KafkaPythonTransactions(self._bootstrap, transactional_id, timeout_ms)

    def _consumer(self, **options: object) -> Any:
        return KafkaConsumer(bootstrap_servers=self._bootstrap, enable_auto_commit=False, **options)

    def read(self, topic: str, partitions: int = 1, *, committed: bool) -> list[Seen]:
        consumer = self._consumer(isolation_level="read_committed" if committed else "read_uncommitted")
        parts = [TopicPartition(topic, part) for part in range(partitions)]
        consumer.assign(parts)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(parts)
        found: list[Seen] = []
        deadline = time.monotonic() + PATIENCE
        while any(consumer.position(part) < ends[part] for part in parts):
            assert time.monotonic() < deadline, (
                f"the end was not reached: the positions are {[consumer.position(p) for p in parts]}"
            )
            for records in consumer.poll(200).values():
                found += map(seen, records)
        consumer.close()
        return sorted(found, key=lambda record: record[:2])

    def member(self, group: str, topic: str, instance: str | None = None) -> KafkaPythonMember:
        return KafkaPythonMember(self._bootstrap, group, topic, instance)

    def committed_offsets(self, group: str, topic: str, partitions: int) -> list[int | None]:
        consumer = self._consumer(group_id=group)
        offsets = [consumer.committed(TopicPartition(topic, part)) for part in range(partitions)]
        consumer.close()
        return offsets

    def offset_for_time(self, topic: str, timestamp: int) -> int | None:
        consumer = self._consumer()
        part = TopicPartition(topic, 0)
        found = consumer.offsets_for_times({part: timestamp})[part]
        consumer.close()
        return found.offset if found is not None else None
