"""The clients for asyncio: same names and options as the blocking ones in `oncelog`, with `await`.

    async with Producer("localhost:9092", transactional_id="etl-1") as producer:
        async with producer.transaction() as txn:
            await txn.send("out", b"value")

`send` waits for room and metadata only; what it returns can be awaited for the record's place. Time-outs are in
seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

from oncelog import errors
from oncelog.client import admin_calls, config_calls, group_calls, log_dir_calls
from oncelog.client.async_consumer import Consumer
from oncelog.client.batch import TopicPartition
from oncelog.client.cluster import ClusterClient
from oncelog.client.committed import OffsetAndMetadata
from oncelog.client.delivery import OnDelivery, RecordFuture, RecordMetadata
from oncelog.client.fetcher import ConsumerRecord
from oncelog.client.group import GroupMetadata
from oncelog.client.options import ADMIN, cluster_options, producer_options, read_options
from oncelog.client.prepared import Outcome, PreparedTransaction
from oncelog.client.producer_face import ProducerFace, abort_failed, closing_failed
from oncelog.client.records import Text, to_bytes
from oncelog.client.resumed import AsyncResumedTransaction
from oncelog.client.sender import Sender

if TYPE_CHECKING:
    from oncelog.client.tables import TableFuture
    from oncelog.columns.values import Format

__all__ = [
    "Admin",
    "Consumer",
    "ConsumerRecord",
    "GroupMetadata",
    "OffsetAndMetadata",
    "Outcome",
    "PreparedTransaction",
    "Producer",
    "RecordFuture",
    "RecordMetadata",
    "Transaction",
]


def _with_servers(servers: str | Sequence[str] | None, options: dict[str, Any]) -> dict[str, Any]:
    return options if servers is None else {**options, "bootstrap_servers": servers}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


class Producer(ProducerFace):
    """Sends records. `async with`, or `await start()` and `await close()`. See `oncelog.Producer`."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.options = producer_options(config, _with_servers(bootstrap_servers, options))

    async def start(self) -> None:
        """Take the running loop; with a transactional id, get producer id and epoch, fencing predecessors."""
        loop = asyncio.get_running_loop()
        self._started = Sender(self.options, loop, clock=lambda: int(loop.time() * 1000))
        if self.options["transactional_id"] is not None:
            try:
                await self._started.init_transactions()
            except BaseException:
                await self._started.close(0)
                raise

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            await self.close()
        except errors.OncelogError as second:
            if error is None:
                raise
            closing_failed(error, second)

    async def close(self, timeout: float | None = None) -> None:
        """As `oncelog.Producer.close`: what failed, and nobody has looked at, is raised here."""
        await self._sender.close(_ms(timeout))

    async def detach(self) -> None:
        """As `oncelog.Producer.detach`: hang up, leaving the transaction open."""
        await self._sender.close(detach=True)
        if self._sender.manager is not None:
            self._sender.manager.require_no_error()

    async def send(
        self,
        topic: str,
        value: Text = None,
        key: Text = None,
        *,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        on_delivery: OnDelivery | None = None,
    ) -> RecordFuture:
        """Send a record; await what it returns for the record's place. `on_delivery` as in `oncelog.Producer.send`."""
        sender = self._sender
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.options["max_block_ms"] / 1000
        data, name = to_bytes(value), to_bytes(key)
        while True:
            future = sender.append(topic, data, name, partition, timestamp, headers)
            if future is not None:
                if on_delivery is not None:
                    future.on_delivery(on_delivery)
                return future
            if topic not in sender.counts:
                await sender.learn_topic(topic)
                continue
            left = deadline - loop.time()
            if left <= 0:
                raise self._no_room()
            await sender.memory_freed(min(left, 0.5))

    async def send_table(
        self, topic: str, table: object, *, key: Format | None = None, value: Format | None = None
    ) -> TableFuture:
        """As `oncelog.Producer.send_table`; await what it returns for the offsets."""
        from oncelog.client.tables import send_table_async

        if topic not in self._sender.counts:
            await self._sender.learn_topic(topic)
        return await send_table_async(self._sender, topic, table, self._no_room, key=key, value=value)

    async def flush(self, timeout: float | None = None) -> None:
        """Send everything now and wait for the answers."""
        await self._sender.flush(_ms(timeout))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """A transaction around a block: committed at its end, aborted if the block raises or the commit is refused."""
        self.begin_transaction()
        try:
            yield self
            if not self._is_prepared():
                await self.commit_transaction()
        except BaseException as error:
            await self._abort_after(error)
            raise

    async def _abort_after(self, error: BaseException) -> None:
        if not self._may_abort():
            return
        try:
            await self.abort_transaction()
        except errors.KafkaError as second:
            abort_failed(error, second)

    async def commit_transaction(self, timeout: float | None = None) -> None:
        """As `oncelog.Producer.commit_transaction`."""
        await self._sender.commit(_ms(timeout))

    async def abort_transaction(self, timeout: float | None = None) -> None:
        """Abort; afterwards another transaction may begin."""
        await self._sender.abort(_ms(timeout))

    async def prepare(self, timeout: float | None = None) -> PreparedTransaction:
        """As `oncelog.Producer.prepare`: a handle with which any process can end the transaction."""
        return await self._sender.prepare(_ms(timeout))


class Transaction:
    """`async with Transaction.resume(handle, "localhost:9092") as transaction: await transaction.commit()`."""

    @staticmethod
    def resume(
        handle: PreparedTransaction | str,
        bootstrap_servers: str | Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> AsyncResumedTransaction:
        """As `oncelog.Transaction.resume`."""
        return AsyncResumedTransaction(handle, bootstrap_servers, config, options)


class Admin:
    """Topics, groups and transactions of a cluster. See `oncelog.Admin` and `oncelog.client.admin_calls`."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        found, _ = read_options(ADMIN, config, _with_servers(bootstrap_servers, options))
        self.cluster = ClusterClient(found["bootstrap_servers"], **cluster_options(found))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Hang up."""
        await self.cluster.close()

    async def create_topics(
        self,
        topics: str | Iterable[str],
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create one or more topics alike."""
        names = [topics] if isinstance(topics, str) else list(topics)
        await admin_calls.create_topics(self.cluster, names, partitions, replication_factor, configs)

    async def delete_topics(self, topics: str | Iterable[str]) -> None:
        """Delete one or more topics."""
        await admin_calls.delete_topics(self.cluster, [topics] if isinstance(topics, str) else list(topics))

    async def delete_records(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records before an offset in each partition (-1: all that is committed); where each begins now."""
        return await admin_calls.delete_records(self.cluster, offsets)

    async def list_topics(self, *, internal: bool = False) -> dict[str, int]:
        """Number of partitions by topic name."""
        found = await self.cluster.topics(internal=internal)
        return {name: len(found[name].partitions) for name in sorted(found)}

    async def describe_topics(self, topics: str | Iterable[str]) -> list[admin_calls.TopicInfo]:
        """Topics with leaders and offsets."""
        names = [topics] if isinstance(topics, str) else list(topics)
        return await admin_calls.describe_topics(self.cluster, names)

    async def create_partitions(self, topic: str, count: int) -> None:
        """Let a topic grow to so many partitions; keys may go to other ones than before."""
        await config_calls.create_partitions(self.cluster, topic, count)

    async def alter_topic_configs(self, topic: str, to_set: Mapping[str, str], to_unset: Iterable[str] = ()) -> None:
        """Change settings of a topic; those to be unset go back to the broker's."""
        await config_calls.alter_topic_configs(self.cluster, topic, to_set, to_unset)

    async def alter_broker_configs(
        self, broker: int | None, to_set: Mapping[str, str], to_unset: Iterable[str] = ()
    ) -> None:
        """Change settings of a broker, or (None) of all brokers, while they run."""
        await config_calls.alter_broker_configs(self.cluster, broker, to_set, to_unset)

    async def describe_log_dirs(
        self, brokers: Sequence[int] | None = None, partitions: Iterable[TopicPartition] | None = None
    ) -> list[log_dir_calls.LogDir]:
        """The log directories of these brokers or of all: space, partitions, and whether the disk has failed."""
        return await log_dir_calls.describe_log_dirs(self.cluster, brokers, partitions)

    async def describe_cluster(self) -> admin_calls.ClusterInfo:
        """Brokers, controller, features."""
        return await admin_calls.describe_cluster(self.cluster)

    async def describe_configs(self, kind: str, name: str | int, *, all_: bool = True) -> dict[str, str | None]:
        """Settings of a "topic" or "broker"."""
        return await admin_calls.describe_configs(self.cluster, kind, str(name), all_=all_)

    async def list_groups(self) -> list[admin_calls.GroupInfo]:
        """All groups."""
        return await admin_calls.list_groups(self.cluster)

    async def describe_group(self, group_id: str) -> admin_calls.GroupDescription:
        """State and members of a classic group."""
        return await admin_calls.describe_group(self.cluster, group_id)

    async def committed(self, group_id: str) -> dict[TopicPartition, int]:
        """Every committed offset of a group."""
        return await admin_calls.committed(self.cluster, group_id)

    async def set_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set a group's committed offsets, while it has no members."""
        await admin_calls.set_offsets(self.cluster, group_id, offsets)

    async def delete_groups(self, groups: str | Iterable[str]) -> None:
        """Delete one or more groups that have no members, with their offsets."""
        names = [groups] if isinstance(groups, str) else list(groups)
        await group_calls.delete_groups(self.cluster, names)

    async def delete_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Forget a group's offsets of partitions that no member reads."""
        await group_calls.delete_offsets(self.cluster, group_id, partitions)

    async def seek_group(
        self,
        group_id: str,
        target: group_calls.Target,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        dry_run: bool = False,
    ) -> list[group_calls.Step]:
        """Set where a group without members goes on, in some partitions or all that it has offsets of."""
        call = group_calls.plan_seek if dry_run else group_calls.seek
        return await call(self.cluster, group_id, target, partitions)

    async def list_transactions(self, states: Sequence[str] = ()) -> list[admin_calls.TransactionListing]:
        """Transactional ids, in certain states or all."""
        return await admin_calls.list_transactions(self.cluster, states)

    async def describe_transaction(self, transactional_id: str) -> admin_calls.TransactionInfo:
        """What the coordinator knows of a transactional id."""
        return await admin_calls.describe_transaction(self.cluster, transactional_id)

    async def describe_producers(self, topic: str, partition: int) -> list[admin_calls.ProducerInfo]:
        """What a partition knows of its producers."""
        return await admin_calls.describe_producers(self.cluster, topic, partition)
