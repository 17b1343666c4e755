"""Our own client with the interface of the other libraries, with which it must agree."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Self

from oncelog import Admin, Consumer, Producer
from oncelog.client.types import ConsumerRecord
from support.clients.base import Outgoing, Seen

PATIENCE = 90.0


def seen(record: ConsumerRecord) -> Seen:
    return Seen(record.partition, record.offset, record.key, record.value, record.headers, record.timestamp)


def send_all(producer: Producer, topic: str, records: Sequence[Outgoing]) -> list[int]:
    futures = [
        producer.send(
            topic,
            record.value,
            record.key,
            partition=record.partition,
            timestamp=record.timestamp,
            headers=record.headers,
        )
        for record in records
    ]
    return [future.result(PATIENCE).offset for future in futures]


class OurTransactions:
    """A transactional producer."""

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self._producer = Producer(bootstrap, transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, records: Sequence[Outgoing]) -> None:
        send_all(self._producer, topic, records)

    def send_offsets(self, member: OurMember, offsets: dict[tuple[str, int], int]) -> None:
        self._producer.send_offsets(member.consumer.group_metadata(), offsets)

    def commit(self) -> None:
        self._producer.commit_transaction(PATIENCE)

    def abort(self) -> None:
        self._producer.abort_transaction(PATIENCE)

    def close(self) -> None:
        """Leave without aborting, as the others do: `close` would abort an open transaction."""
        self._producer.detach()


class OurMember:
    """A group member."""

    def __init__(self, bootstrap: str, group: str, topic: str, instance: str | None = None) -> None:
        self.consumer = Consumer(
            bootstrap,
            group_id=group,
            group_instance_id=instance,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            session_timeout_ms=6000,
            heartbeat_interval_ms=300,
        )
        self.consumer.subscribe([topic])

    def take(self, count: int) -> list[Seen]:
        found: list[Seen] = []
        deadline = time.monotonic() + PATIENCE
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} records arrived"
            found += [seen(record) for record in self.consumer.poll(0.2, count - len(found))]
        return found

    def assignment(self) -> set[int]:
        assert self.consumer.poll(0.05) == [], "a record arrived while only the assignment was expected"
        return {partition for _, partition in self.consumer.assignment()}

    def commit(self) -> None:
        self.consumer.commit()

    def close(self) -> None:
        self.consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class OurClient:
    """oncelog against one server."""

    name = "oncelog"

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def _admin(self) -> Admin:
        return Admin(self._bootstrap)

    def create_topic(self, topic: str, partitions: int = 1, **configs: str) -> None:
        with self._admin() as admin:
            settings = {key.replace("_", "."): value for key, value in configs.items()}
            admin.create_topics(topic, partitions, 1, settings)

    def delete_topic(self, topic: str) -> None:
        with self._admin() as admin:
            admin.delete_topics(topic)

    def topics(self) -> dict[str, int]:
        with self._admin() as admin:
            return admin.list_topics(internal=True)

    def topic_configs(self, topic: str) -> dict[str, str]:
        with self._admin() as admin:
            return {name: value or "" for name, value in admin.describe_configs("topic", topic).items()}

    def cluster(self) -> tuple[int, set[int]]:
        with self._admin() as admin:
            info = admin.describe_cluster()
            return info.controller_id, {broker.node_id for broker in info.brokers}

    def groups(self) -> set[str]:
        with self._admin() as admin:
            return {group.group_id for group in admin.list_groups()}

    def group_state(self, group: str) -> tuple[str, int]:
        with self._admin() as admin:
            found = admin.describe_group(group)
            return found.state, len(found.members)

    def send(
        self,
        topic: str,
        records: Sequence[Outgoing],
        *,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int]:
        with Producer(self._bootstrap, compression_type=codec, acks=acks, enable_idempotence=idempotent) as producer:
            return send_all(producer, topic, records)

    def transactions(self, transactional_id: str, timeout_ms: int = 60000) -> OurTransactions:
        return OurTransactions(self._bootstrap, transactional_id, timeout_ms)

    def read(self, topic: str, partitions: int = 1, *, committed: bool) -> list[Seen]:
        level = "read_committed" if committed else "read_uncommitted"
        with Consumer(self._bootstrap, auto_offset_reset="earliest", isolation_level=level) as consumer:
            assigned = [(topic, partition) for partition in range(partitions)]
            consumer.assign(assigned)
            ends = consumer.end_offsets(assigned)
            found: list[Seen] = []
            deadline = time.monotonic() + PATIENCE
            while any(consumer.position(*tp) < end for tp, end in ends.items()):
                assert time.monotonic() < deadline, f"{consumer.positions()} of {ends}"
                found += [seen(record) for record in consumer.poll(0.2)]
            return sorted(found, key=lambda record: record[:2])

    def member(self, group: str, topic: str, instance: str | None = None) -> OurMember:
        return OurMember(self._bootstrap, group, topic, instance)

    def committed_offsets(self, group: str, topic: str, partitions: int) -> list[int | None]:
        with self._admin() as admin:
            found = admin.committed(group)
        return [found.get((topic, partition)) for partition in range(partitions)]

    def offset_for_time(self, topic: str, timestamp: int) -> int | None:
        with self._admin() as admin:
            offset = admin.offsets({(topic, 0): timestamp})[topic, 0]
        return None if offset < 0 else offset
