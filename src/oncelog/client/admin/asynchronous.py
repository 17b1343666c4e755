"""The admin client for asyncio."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from oncelog.client.admin import configs as config_calls
from oncelog.client.admin import features as feature_calls
from oncelog.client.admin import group_descriptions as group_views
from oncelog.client.admin import groups as group_calls
from oncelog.client.admin import log_dirs as log_dir_calls
from oncelog.client.admin import topics as calls
from oncelog.client.admin import transactions as transaction_calls
from oncelog.client.admin.face import AdminFace, admin_options, names
from oncelog.client.cluster import ClusterClient
from oncelog.client.types import TopicPartition


class Admin(AdminFace):
    """Topics, groups, transactions and settings of a cluster. `async with`, or `await close()`. See `oncelog.Admin`."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        servers, found = admin_options(config, {**options, "bootstrap_servers": bootstrap_servers})
        self.cluster = ClusterClient(servers, **found)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Hang up."""
        await self.cluster.close()

    async def reach(self, timeout: float) -> None:
        """Be connected to some broker within so many seconds; ConnectionFailedError names the address tried last."""
        await self.cluster.reach(timeout * 1000)

    # -- topics -----------------------------------------------------------------------------------------------

    async def create_topics(
        self,
        topics: str | Iterable[str],
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
        *,
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> list[calls.CreatedTopic]:
        """Create one or more topics alike and wait until they are known; -1: the broker's default.

        `assignments` are the brokers of each partition, its leader first, in place of the two numbers; `validate_only`
        has the broker check everything and make nothing. KafkaError (TOPIC_ALREADY_EXISTS, INVALID_CONFIG,
        INVALID_REPLICATION_FACTOR ...) once all were tried.
        """
        return await calls.create_topics(
            self.cluster,
            names(topics),
            partitions,
            replication_factor,
            configs,
            assignments=assignments,
            validate_only=validate_only,
        )

    async def delete_topics(self, topics: str | Iterable[str]) -> None:
        """Delete one or more topics; KafkaError (UnknownTopicError, TOPIC_DELETION_DISABLED) once all were tried."""
        await calls.delete_topics(self.cluster, names(topics))

    async def delete_records(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records before an offset in each partition (-1: all that is committed); where each begins now.

        OffsetOutOfRangeError; KafkaError (POLICY_VIOLATION) for a topic that is only compacted.
        """
        return await calls.delete_records(self.cluster, offsets)

    async def list_topics(self, *, internal: bool = False) -> dict[str, int]:
        """Number of partitions by topic name; the coordinators' own topics with `internal`."""
        return {item.name: item.partitions for item in await calls.list_topics(self.cluster, internal=internal)}

    async def topics(self, *, internal: bool = False) -> list[calls.TopicListing]:
        """All topics by name, with ids and replication factors; the coordinators' own with `internal`."""
        return await calls.list_topics(self.cluster, internal=internal)

    async def describe_topics(self, topics: str | Iterable[str]) -> list[calls.TopicInfo]:
        """Topics with leader, ISR, first offset, HW, LSO and LEO of each partition; UnknownTopicError."""
        return await calls.describe_topics(self.cluster, names(topics))

    async def offsets(
        self, wanted: Mapping[TopicPartition, int], *, committed_only: bool = False
    ) -> dict[TopicPartition, int]:
        """Offset by partition for a timestamp each: -2 the first, -1 the end, -3 the record with the highest timestamp,
        else ms since the epoch (-1: no such record). With `committed_only` an end is the last stable offset.
        """
        return await calls.offsets_for(self.cluster, wanted, committed_only=committed_only)

    async def create_partitions(
        self,
        topic: str,
        count: int,
        *,
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Let a topic grow to so many partitions; keys may go to other ones than before.

        `assignments` are the brokers of each new partition. UnknownTopicError, KafkaError (INVALID_PARTITIONS).
        """
        await config_calls.create_partitions(
            self.cluster, topic, count, assignments=assignments, validate_only=validate_only
        )

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The high watermarks of those of these partitions that are there and have a leader."""
        return await group_views.ends(self.cluster, partitions)

    # -- settings ---------------------------------------------------------------------------------------------

    async def describe_configs(self, kind: str, name: str | int, *, all_: bool = True) -> dict[str, str | None]:
        """Settings of a "topic", "broker", "broker_logger" (both by node id; a broker's name "": what all brokers were
        given) or "group", by name; with `all_` False only those that somebody has set. Sensitive ones are None.

        UnknownTopicError, KafkaError (BROKER_ID_NOT_REGISTERED), UnsupportedError.
        """
        return await calls.describe_configs(self.cluster, kind, str(name), all_=all_)

    async def describe_config_entries(self, kind: str, name: str | int) -> list[calls.ConfigEntry]:
        """The same with where each value comes from and whether it may change."""
        return await calls.describe_config_entries(self.cluster, kind, str(name))

    async def alter_configs(
        self,
        kind: str,
        name: str | int,
        to_set: Mapping[str, str],
        to_unset: Iterable[str] = (),
        *,
        validate_only: bool = False,
    ) -> None:
        """Change settings of what `describe_configs` knows, all or none; those to be unset go back to their defaults.

        KafkaError (INVALID_CONFIG, INVALID_REQUEST, BROKER_ID_NOT_REGISTERED), UnknownTopicError.
        """
        await config_calls.alter_configs(self.cluster, kind, str(name), to_set, to_unset, validate_only=validate_only)

    async def alter_topic_configs(
        self, topic: str, to_set: Mapping[str, str], to_unset: Iterable[str] = (), *, validate_only: bool = False
    ) -> None:
        """Change settings of a topic; those to be unset go back to the broker's."""
        await config_calls.alter_topic_configs(self.cluster, topic, to_set, to_unset, validate_only=validate_only)

    async def alter_broker_configs(
        self,
        broker: int | None,
        to_set: Mapping[str, str],
        to_unset: Iterable[str] = (),
        *,
        validate_only: bool = False,
    ) -> None:
        """Change settings of a broker, or (None) of all brokers, while they run."""
        await config_calls.alter_broker_configs(self.cluster, broker, to_set, to_unset, validate_only=validate_only)

    # -- cluster ----------------------------------------------------------------------------------------------

    async def describe_cluster(self) -> calls.ClusterInfo:
        """Brokers, controller, finalized features."""
        return await calls.describe_cluster(self.cluster)

    async def describe_log_dirs(
        self, brokers: Sequence[int] | None = None, partitions: Iterable[TopicPartition] | None = None
    ) -> list[log_dir_calls.LogDir]:
        """The log directories of these brokers or of all: bytes of space and of partitions, and whether it is online.

        KafkaError (BROKER_ID_NOT_REGISTERED).
        """
        return await log_dir_calls.describe_log_dirs(self.cluster, brokers, partitions)

    async def describe_features(self) -> list[feature_calls.FeatureInfo]:
        """Features with the levels that the brokers support and the cluster's; UnsupportedError before Kafka 3.9."""
        return await feature_calls.describe_features(self.cluster)

    async def update_features(
        self, levels: Mapping[str, int], kind: str = "upgrade", *, validate_only: bool = False
    ) -> None:
        """Set levels of features, all or none; `kind` is "upgrade", "safe_downgrade" or "unsafe_downgrade".

        KafkaError (INVALID_UPDATE_VERSION ...).
        """
        await feature_calls.update_features(self.cluster, levels, kind, validate_only=validate_only)

    # -- groups -----------------------------------------------------------------------------------------------

    async def list_groups(self, states: Sequence[str] = (), types: Sequence[str] = ()) -> list[group_views.GroupInfo]:
        """All groups, or those in certain states (as "Stable") and of certain types (as "Classic"), by name.

        ConfigError for a state or type that there is none of.
        """
        return await group_views.list_groups(self.cluster, states, types)

    async def describe_group(self, group_id: str) -> group_views.GroupDescription:
        """State and members of a classic group or one of KIP-848; a group that does not exist is Dead."""
        return await group_views.describe_group(self.cluster, group_id)

    async def committed(self, group_id: str, *, require_stable: bool = True) -> dict[TopicPartition, int]:
        """Every committed offset of a group, none of one that does not exist; each with `leader_epoch` and `metadata`.

        With `require_stable` it waits for open transactions that hold offsets of the group (KIP-447).
        """
        return await group_views.committed(self.cluster, group_id, require_stable=require_stable)

    async def set_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set a group's committed offsets while it has no members; GroupError while it has some."""
        await group_calls.set_offsets(self.cluster, group_id, offsets)

    async def delete_groups(self, groups: str | Iterable[str]) -> None:
        """Delete groups that have no members, with their offsets; KafkaError (NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND)."""
        await group_calls.delete_groups(self.cluster, names(groups))

    async def delete_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Forget a group's offsets of partitions that no member reads; KafkaError (GROUP_SUBSCRIBED_TO_TOPIC)."""
        await group_calls.delete_offsets(self.cluster, group_id, partitions)

    async def seek_group(
        self,
        group_id: str,
        target: group_calls.Target,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        dry_run: bool = False,
    ) -> list[group_calls.Step]:
        """Set where a group without members goes on, in some partitions or all that it has offsets of.

        What `target` is: `group_calls.Target`; outside a partition it becomes its first offset or its end. UsageError
        while the group has members. With `dry_run` nothing changes.
        """
        return await (group_calls.plan_seek if dry_run else group_calls.seek)(
            self.cluster, group_id, target, partitions
        )

    async def remove_members(
        self,
        group_id: str,
        instance_ids: Iterable[str] = (),
        *,
        all_: bool = False,
        reason: str = "removed by an administrator",
    ) -> list[str]:
        """Let static members leave a group (KIP-345), or with `all_` every member; their instance or member ids.

        A member that is alive joins anew. KafkaError (UNKNOWN_MEMBER_ID, GROUP_ID_NOT_FOUND).
        """
        return await group_calls.remove_members(self.cluster, group_id, instance_ids, all_=all_, reason=reason)

    # -- transactions -----------------------------------------------------------------------------------------

    async def list_transactions(
        self,
        states: Sequence[str] = (),
        *,
        producer_ids: Sequence[int] = (),
        longer_than_ms: int = -1,
        pattern: str | None = None,
    ) -> list[transaction_calls.TransactionListing]:
        """Transactional ids by name: in certain states (as "Ongoing"), of some producers, open for longer than so many
        ms, or that match a pattern of RE2's syntax as a whole.

        ConfigError for a state that there is none of; KafkaError (INVALID_REGULAR_EXPRESSION); UnsupportedError.
        """
        return await transaction_calls.list_transactions(
            self.cluster, states, producer_ids=producer_ids, longer_than_ms=longer_than_ms, pattern=pattern
        )

    async def describe_transaction(self, transactional_id: str) -> transaction_calls.TransactionInfo:
        """What the coordinator knows of a transactional id; KafkaError (TRANSACTIONAL_ID_NOT_FOUND)."""
        return await transaction_calls.describe_transaction(self.cluster, transactional_id)

    async def describe_producers(
        self, topic: str, partition: int, *, broker: int | None = None
    ) -> list[transaction_calls.ProducerInfo]:
        """What a partition's leader, or its replica on `broker`, remembers of its producers; UnknownTopicError."""
        return await transaction_calls.describe_producers(self.cluster, topic, partition, broker)

    async def find_hanging_transactions(
        self,
        topic: str | None = None,
        partition: int | None = None,
        *,
        broker: int | None = None,
        older_than_ms: int = transaction_calls.MAX_TRANSACTION_TIMEOUT_MS,
    ) -> list[transaction_calls.HangingTransaction]:
        """Open transactions that no coordinator will end: in a topic or partition, or wherever `broker` has a replica.

        `older_than_ms`: transaction.max.timeout.ms of the brokers; what has written since is left out.
        """
        return await transaction_calls.find_hanging(
            self.cluster, topic, partition, broker=broker, older_than_ms=older_than_ms
        )

    async def abort_transaction(
        self,
        topic: str,
        partition: int,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int = transaction_calls.FIRST_COORDINATOR_EPOCH,
    ) -> None:
        """Abort a hanging transaction in one partition, past its coordinator: not for one that a coordinator knows of.

        The numbers are those of `describe_producers`. KafkaError (INVALID_PRODUCER_EPOCH,
        TRANSACTION_COORDINATOR_FENCED).
        """
        await transaction_calls.abort_transaction(
            self.cluster,
            topic,
            partition,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
        )

    async def fence_producers(self, transactional_ids: str | Iterable[str]) -> dict[str, tuple[int, int]]:
        """Fence whoever produces under these ids, aborting what they have open; the new (producer id, epoch) of each.

        Ids that do not exist yet are made, as in Kafka.
        """
        return await transaction_calls.fence_producers(self.cluster, names(transactional_ids))

    async def terminate_transaction(self, transactional_id: str) -> None:
        """Abort what a transactional id has open, and fence its producer; KafkaError (TRANSACTIONAL_ID_NOT_FOUND)."""
        await transaction_calls.terminate_transaction(self.cluster, transactional_id)
