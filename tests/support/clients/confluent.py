"""confluent-kafka, which is based on librdkafka."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Self

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

from support.clients.base import Member, Outgoing, Seen

PATIENCE = 90.0
"""Seconds after which an expected event counts as missing."""


def seen(message: Any) -> Seen:
    """Convert a message of the library."""
    headers = tuple((name, value) for name, value in message.headers() or [])
    kind_and_time = message.timestamp()
    return Seen(message.partition(), message.offset(), message.key(), message.value(), headers, kind_and_time[1])


def send_all(producer: Producer, topic: str, records: Sequence[Outgoing]) -> list[int]:
    """Produce, and wait for every delivery report. Raises the first error."""
    offsets: list[int] = []
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Any) -> None:
        if error is not None:
            errors.append(error)
        offsets.append(message.offset())

    for record in records:
        more: dict[str, Any] = {} if record.timestamp is None else {"timestamp": record.timestamp}
        producer.produce(
            topic,
            record.value,
            record.key,
            record.partition,
            on_delivery=delivered,
            headers=list(record.headers),
            **more,
        )
    left = producer.flush(PATIENCE)
    if errors:
        raise KafkaException(errors[0])
    assert left == 0
    assert len(offsets) == len(records)
    return offsets


class ConfluentTransactions:
    """A transactional producer."""

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
            }
        )
        self._producer.init_transactions(PATIENCE)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, records: Sequence[Outgoing]) -> None:
        send_all(self._producer, topic, records)

    def send_offsets(self, member: Member, offsets: dict[tuple[str, int], int]) -> None:
        assert isinstance(member, ConfluentMember)
        positions = [TopicPartition(topic, part, offset) for (topic, part), offset in offsets.items()]
        self._producer.send_offsets_to_transaction(positions, member.consumer.consumer_group_metadata(), PATIENCE)

    def commit(self) -> None:
        self._producer.commit_transaction(PATIENCE)

    def abort(self) -> None:
        self._producer.abort_transaction(PATIENCE)

    def close(self) -> None:
        del self._producer


class ConfluentMember:
    """A group member."""

    def __init__(self, bootstrap: str, group: str, topic: str, instance: str | None = None) -> None:
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 300,
                **({} if instance is None else {"group.instance.id": instance}),
            }
        )
        self.consumer.subscribe([topic])

    def take(self, count: int) -> list[Seen]:
        found: list[Seen] = []
        deadline = time.monotonic() + PATIENCE
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} records arrived"
            for message in self.consumer.consume(count - len(found), 0.2):
                if message.error():
                    raise KafkaException(message.error())
                found.append(seen(message))
        return found

    def assignment(self) -> set[int]:
        message = self.consumer.poll(0.05)
        assert message is None, "a record arrived while only the assignment was expected"
        return {part.partition for part in self.consumer.assignment()}

    def commit(self) -> None:
        self.consumer.commit(asynchronous=False)

    def close(self) -> None:
        self.consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class ConfluentClient:
    """confluent-kafka against one server."""

    name = "confluent-kafka"

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def create_topic(self, topic: str, partitions: int = 1, **configs: str) -> None:
        config = {key.replace("_", "."): value for key, value in configs.items()}
        futures = self._admin.create_topics([NewTopic(topic, partitions, 1, config=config)])
        futures[topic].result(PATIENCE)

    def delete_topic(self, topic: str) -> None:
        self._admin.delete_topics([topic])[topic].result(PATIENCE)

    def topics(self) -> dict[str, int]:
        listed = self._admin.list_topics(timeout=PATIENCE).topics
        return {name: len(topic.partitions) for name, topic in listed.items()}

    def topic_configs(self, topic: str) -> dict[str, str]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        entries = self._admin.describe_configs([resource])[resource].result(PATIENCE)
        return {name: entry.value for name, entry in entries.items()}

    def cluster(self) -> tuple[int, set[int]]:
        described = self._admin.describe_cluster().result(PATIENCE)
        return described.controller.id, {node.id for node in described.nodes}

    def groups(self) -> set[str]:
        listed = self._admin.list_consumer_groups().result(PATIENCE)
        assert not listed.errors
        return {group.group_id for group in listed.valid}

    def group_state(self, group: str) -> tuple[str, int]:
        described = self._admin.describe_consumer_groups([group])[group].result(PATIENCE)
        return described.state.name.capitalize(), len(described.members)

    def send(
        self,
        topic: str,
        records: Sequence[Outgoing],
        *,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int]:
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "compression.type": codec,
                "acks": acks,
                "enable.idempotence": idempotent,
            }
        )
        return send_all(producer, topic, records)

    def transactions(self, transactional_id: str, timeout_ms: int = 60000) -> ConfluentTransactions:
        return ConfluentTransactions(self._bootstrap, transactional_id, timeout_ms)

    def read(self, topic: str, partitions: int = 1, *, committed: bool) -> list[Seen]:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
            }
        )
        consumer.assign([TopicPartition(topic, part, 0) for part in range(partitions)])
        found: list[Seen] = []
        at_end: set[int | None] = set()
        deadline = time.monotonic() + PATIENCE
        while len(at_end) < partitions:
            assert time.monotonic() < deadline, f"partitions {at_end} of {partitions} were read to their end"
            message = consumer.poll(0.2)
            if message is None:
                continue
            error = message.error()
            if error is None:
                found.append(seen(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                at_end.add(message.partition())
            else:
                raise KafkaException(error)
        consumer.close()
        return sorted(found, key=lambda record: record[:2])

    def member(self, group: str, topic: str, instance: str | None = None) -> ConfluentMember:
        return ConfluentMember(self._bootstrap, group, topic, instance)

    def committed_offsets(self, group: str, topic: str, partitions: int) -> list[int | None]:
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": group})
        asked = [TopicPartition(topic, part) for part in range(partitions)]
        answered = consumer.committed(asked, timeout=PATIENCE)
        consumer.close()
        return [part.offset if part.offset >= 0 else None for part in answered]

    def offset_for_time(self, topic: str, timestamp: int) -> int | None:
        part = TopicPartition(topic, 0)
        futures = self._admin.list_offsets(
            {part: OffsetSpec.for_timestamp(timestamp)},
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
        )
        offset = futures[part].result(PATIENCE).offset
        return offset if offset >= 0 else None
