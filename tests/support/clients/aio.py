"""aiokafka, on a loop in its own thread, so that heartbeats continue between calls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Self, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from support.clients.base import Member, Outgoing, Seen

PATIENCE = 90.0

T = TypeVar("T")


class LoopThread:
    """An event loop in the background, one for all clients of the process."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="aiokafka", daemon=True).start()

    def run(self, work: Coroutine[Any, Any, T], timeout: float = 60) -> T:
        """Run a coroutine to its end, and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout)


LOOP = LoopThread()


def seen(record: Any) -> Seen:
    """Convert a record of the library."""
    return Seen(record.partition, record.offset, record.key, record.value, tuple(record.headers), record.timestamp)


async def send_all(producer: AIOKafkaProducer, topic: str, records: Sequence[Outgoing]) -> list[int]:
    """Send, and wait for every response. Raises the first error."""
    futures = [
        await producer.send(
            topic,
            record.value,
            record.key,
            partition=record.partition,
            timestamp_ms=record.timestamp,
            headers=list(record.headers),
        )
        for record in records
    ]
    done = await asyncio.gather(*futures)
    return [metadata.offset if metadata is not None else -1 for metadata in done]


class AioTransactions:
    """A transactional producer."""

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        async def start() -> AIOKafkaProducer:
            producer = AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
            )
            await producer.start()
            return producer

        self._producer = LOOP.run(start())

    def begin(self) -> None:
        LOOP.run(self._producer.begin_transaction())

    def send(self, topic: str, records: Sequence[Outgoing]) -> None:
        LOOP.run(send_all(self._producer, topic, records))

    def send_offsets(self, member: Member, offsets: dict[tuple[str, int], int]) -> None:
        assert isinstance(member, AioMember)
        positions = {TopicPartition(topic, part): offset for (topic, part), offset in offsets.items()}
        LOOP.run(self._producer.send_offsets_to_transaction(positions, member.group))

    def commit(self) -> None:
        LOOP.run(self._producer.commit_transaction())

    def abort(self) -> None:
        LOOP.run(self._producer.abort_transaction())

    def close(self) -> None:
        LOOP.run(self._producer.stop())


class AioMember:
    """A group member."""

    def __init__(self, bootstrap: str, group: str, topic: str, instance: str | None = None) -> None:
        self.group = group

        async def start() -> AIOKafkaConsumer:
            consumer = AIOKafkaConsumer(
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
            await consumer.start()
            return consumer

        self._consumer = LOOP.run(start())

    def take(self, count: int) -> list[Seen]:
        async def work() -> list[Seen]:
            return [seen(await self._consumer.getone()) for _ in range(count)]

        return LOOP.run(asyncio.wait_for(work(), PATIENCE))

    def assignment(self) -> set[int]:
        async def look() -> set[int]:
            return {part.partition for part in self._consumer.assignment()}

        return LOOP.run(look())

    def commit(self) -> None:
        LOOP.run(self._consumer.commit())

    def close(self) -> None:
        LOOP.run(self._consumer.stop())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class AioClient:
    """aiokafka against one server."""

    name = "aiokafka"

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def _with_admin(self, call: str, *arguments: Any) -> Any:
        async def work() -> Any:
            admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
            await admin.start()
            try:
                return await getattr(admin, call)(*arguments)
            finally:
                await admin.close()

        return LOOP.run(work())

    def create_topic(self, topic: str, partitions: int = 1, **configs: str) -> None:
        config = {key.replace("_", "."): value for key, value in configs.items()}
        answer = self._with_admin("create_topics", [NewTopic(topic, partitions, 1, topic_configs=config)])
        assert [error[1] for error in answer.topic_errors] == [0], answer

    def delete_topic(self, topic: str) -> None:
        self._with_admin("delete_topics", [topic])

    def topics(self) -> dict[str, int]:
        described = self._with_admin("describe_topics")
        return {topic["topic"]: len(topic["partitions"]) for topic in described}

    def topic_configs(self, topic: str) -> dict[str, str]:
        (answer,) = self._with_admin("describe_configs", [ConfigResource(ConfigResourceType.TOPIC, topic)])
        ((error_code, _, _, _, entries),) = answer.resources
        assert error_code == 0
        return {entry[0]: entry[1] for entry in entries}

    def cluster(self) -> tuple[int, set[int]]:
        described = self._with_admin("describe_cluster")
        return described["controller_id"], {broker["node_id"] for broker in described["brokers"]}

    def groups(self) -> set[str]:
        return {group for group, _ in self._with_admin("list_consumer_groups")}

    def group_state(self, group: str) -> tuple[str, int]:
        (answer,) = self._with_admin("describe_consumer_groups", [group])
        ((error_code, _, state, _, _, members, *_),) = answer.groups
        assert error_code == 0
        return state, len(members)

    def send(
        self,
        topic: str,
        records: Sequence[Outgoing],
        *,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int]:
        async def work() -> list[int]:
            producer = AIOKafkaProducer(
                bootstrap_servers=self._bootstrap,
                compression_type=None if codec == "none" else codec,
                acks=acks if acks == "all" else int(acks),
                enable_idempotence=idempotent,
            )
            await producer.start()
            try:
                return await send_all(producer, topic, records)
            finally:
                await producer.stop()

        return LOOP.run(work())

    def transactions(self, transactional_id: str, timeout_ms: int = 60000) -> AioTransactions:
        return AioTransactions(self._bootstrap, transactional_id, timeout_ms)

    def _with_consumer(self, work: Callable[[AIOKafkaConsumer], Awaitable[T]], **options: Any) -> T:
        async def run() -> T:
            consumer = AIOKafkaConsumer(bootstrap_servers=self._bootstrap, enable_auto_commit=False, **options)
            await consumer.start()
            try:
                return await asyncio.wait_for(work(consumer), PATIENCE)
            finally:
                await consumer.stop()

        return LOOP.run(run())

    def read(self, topic: str, partitions: int = 1, *, committed: bool) -> list[Seen]:
        parts = [TopicPartition(topic, part) for part in range(partitions)]

        async def work(consumer: AIOKafkaConsumer) -> list[Seen]:
            consumer.assign(parts)
            await consumer.seek_to_beginning()
            ends = await consumer.end_offsets(parts)
            found: list[Seen] = []
            while any([await consumer.position(part) < ends[part] for part in parts]):
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    found += map(seen, records)
            return sorted(found, key=lambda record: record[:2])

        level = "read_committed" if committed else "read_uncommitted"
        return self._with_consumer(work, isolation_level=level)

    def member(self, group: str, topic: str, instance: str | None = None) -> AioMember:
        return AioMember(self._bootstrap, group, topic, instance)

    def committed_offsets(self, group: str, topic: str, partitions: int) -> list[int | None]:
        found = self._with_admin("list_consumer_group_offsets", group)
        offsets = [found.get(TopicPartition(topic, part)) for part in range(partitions)]
        return [None if offset is None or offset.offset < 0 else offset.offset for offset in offsets]

    def offset_for_time(self, topic: str, timestamp: int) -> int | None:
        async def work(consumer: AIOKafkaConsumer) -> int | None:
            part = TopicPartition(topic, 0)
            found = (await consumer.offsets_for_times({part: timestamp}))[part]
            return found.offset if found is not None else None

        return self._with_consumer(work)
