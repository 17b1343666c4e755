"""The blocking admin client."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from oncelog.client.admin import configs as config_calls
from oncelog.client.admin import features as feature_calls
from oncelog.client.admin import group_descriptions as group_views
from oncelog.client.admin import groups as group_calls
from oncelog.client.admin import log_dirs as log_dir_calls
from oncelog.client.admin import topics as calls
from oncelog.client.admin import transactions as transaction_calls
from oncelog.client.admin.face import admin_options, names, refuse
from oncelog.client.blocking import LoopThread
from oncelog.client.cluster import ClusterClient
from oncelog.client.types import TopicPartition

__all__ = ["Admin"]

T = TypeVar("T")


class Admin:
    """Topics, groups, transactions and settings of a cluster. Use as a context manager, or `close` it.

    Options carry Kafka's names with `_` for `.`. Errors: `oncelog.errors`. What passes by itself is tried again until
    default_api_timeout_ms (60 s); an address where nobody has ever answered is given up after 10 s, unless that option
    says how long. `oncelog.aio.Admin` has the same methods as coroutines.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        servers, found = admin_options(bootstrap_servers, config, options)
        self._thread = LoopThread.shared()
        self.cluster = ClusterClient(servers, **found)

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    if not TYPE_CHECKING:  # a type checker finds a mistyped name by itself

        def __getattr__(self, name: str) -> NoReturn:
            refuse(name)

    def close(self) -> None:
        """Hang up."""
        self._run(self.cluster.close())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.run(work)

    def reach(self, timeout: float) -> None:
        """Be connected to some broker within so many seconds; ConnectionFailedError names the address tried last."""
        self._run(self.cluster.reach(timeout * 1000))

    # -- topics -----------------------------------------------------------------------------------------------

    def create_topics(
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
        return self._run(
            calls.create_topics(
                self.cluster,
                names(topics),
                partitions,
                replication_factor,
                configs,
                assignments=assignments,
                validate_only=validate_only,
            )
        )

    def delete_topics(self, topics: str | Iterable[str]) -> None:
        """Delete one or more topics; KafkaError (UnknownTopicError, TOPIC_DELETION_DISABLED) once all were tried."""
        self._run(calls.delete_topics(self.cluster, names(topics)))

    def delete_records(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records before an offset in each partition (-1: all that is committed); where each begins now.

        OffsetOutOfRangeError; KafkaError (POLICY_VIOLATION) for a topic that is only compacted.
        """
        return self._run(calls.delete_records(self.cluster, offsets))

    def list_topics(self, *, internal: bool = False) -> dict[str, int]:
        """Number of partitions by topic name; the coordinators' own topics with `internal`."""
        return {item.name: item.partitions for item in self._run(calls.list_topics(self.cluster, internal=internal))}

    def topics(self, *, internal: bool = False) -> list[calls.TopicListing]:
        """All topics by name, with ids and replication factors; the coordinators' own with `internal`."""
        return self._run(calls.list_topics(self.cluster, internal=internal))

    def describe_topics(self, topics: str | Iterable[str]) -> list[calls.TopicInfo]:
        """Topics with leader, ISR, first offset, HW, LSO and LEO of each partition; UnknownTopicError."""
        return self._run(calls.describe_topics(self.cluster, names(topics)))

    def offsets(
        self, wanted: Mapping[TopicPartition, int], *, committed_only: bool = False
    ) -> dict[TopicPartition, int]:
        """Offset by partition for a timestamp each: -2 the first, -1 the end, -3 the record with the highest timestamp,
        else ms since the epoch (-1: no such record). With `committed_only` an end is the last stable offset.
        """
        return self._run(calls.offsets_for(self.cluster, wanted, committed_only=committed_only))

    def create_partitions(
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
        self._run(
            config_calls.create_partitions(
                self.cluster, topic, count, assignments=assignments, validate_only=validate_only
            )
        )

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The high watermarks of those of these partitions that are there and have a leader."""
        return self._run(group_views.ends(self.cluster, partitions))

    # -- settings ---------------------------------------------------------------------------------------------

    def describe_configs(self, kind: str, name: str | int, *, all_: bool = True) -> dict[str, str | None]:
        """Settings of a "topic", "broker", "broker_logger" (both by node id; a broker's name "": what all brokers were
        given) or "group", by name; with `all_` False only those that somebody has set. Sensitive ones are None.

        UnknownTopicError, KafkaError (BROKER_ID_NOT_REGISTERED), UnsupportedError.
        """
        return self._run(calls.describe_configs(self.cluster, kind, str(name), all_=all_))

    def describe_config_entries(self, kind: str, name: str | int) -> list[calls.ConfigEntry]:
        """The same with where each value comes from and whether it may change."""
        return self._run(calls.describe_config_entries(self.cluster, kind, str(name)))

    def alter_configs(
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
        self._run(
            config_calls.alter_configs(self.cluster, kind, str(name), to_set, to_unset, validate_only=validate_only)
        )

    def alter_topic_configs(
        self, topic: str, to_set: Mapping[str, str], to_unset: Iterable[str] = (), *, validate_only: bool = False
    ) -> None:
        """Change settings of a topic; those to be unset go back to the broker's."""
        self._run(config_calls.alter_topic_configs(self.cluster, topic, to_set, to_unset, validate_only=validate_only))

    def alter_broker_configs(
        self,
        broker: int | None,
        to_set: Mapping[str, str],
        to_unset: Iterable[str] = (),
        *,
        validate_only: bool = False,
    ) -> None:
        """Change settings of a broker, or (None) of all brokers, while they run."""
        self._run(
            config_calls.alter_broker_configs(self.cluster, broker, to_set, to_unset, validate_only=validate_only)
        )

    # -- cluster ----------------------------------------------------------------------------------------------

    def describe_cluster(self) -> calls.ClusterInfo:
        """Brokers, controller, finalized features."""
        return self._run(calls.describe_cluster(self.cluster))

    def describe_log_dirs(
        self, brokers: Sequence[int] | None = None, partitions: Iterable[TopicPartition] | None = None
    ) -> list[log_dir_calls.LogDir]:
        """The log directories of these brokers or of all: bytes of space and of partitions, and whether it is online.

        KafkaError (BROKER_ID_NOT_REGISTERED).
        """
        return self._run(log_dir_calls.describe_log_dirs(self.cluster, brokers, partitions))

    def describe_features(self) -> list[feature_calls.FeatureInfo]:
        """Features with the levels that the brokers support and the cluster's; UnsupportedError before Kafka 3.9."""
        return self._run(feature_calls.describe_features(self.cluster))

    def update_features(self, levels: Mapping[str, int], kind: str = "upgrade", *, validate_only: bool = False) -> None:
        """Set levels of features, all or none; `kind` is "upgrade", "safe_downgrade" or "unsafe_downgrade".

        KafkaError (INVALID_UPDATE_VERSION ...).
        """
        self._run(feature_calls.update_features(self.cluster, levels, kind, validate_only=validate_only))

    # -- groups -----------------------------------------------------------------------------------------------

    def list_groups(self, states: Sequence[str] = (), types: Sequence[str] = ()) -> list[group_views.GroupInfo]:
        """All groups, or those in certain states (as "Stable") and of certain types (as "Classic"), by name.

        ConfigError for a state or type that there is none of.
        """
        return self._run(group_views.list_groups(self.cluster, states, types))

    def describe_group(self, group_id: str) -> group_views.GroupDescription:
        """State and members of a classic group or one of KIP-848; a group that does not exist is Dead."""
        return self._run(group_views.describe_group(self.cluster, group_id))

    def committed(self, group_id: str, *, require_stable: bool = True) -> dict[TopicPartition, int]:
        """Every committed offset of a group, none of one that does not exist; each with `leader_epoch` and `metadata`.

        With `require_stable` it waits for open transactions that hold offsets of the group (KIP-447).
        """
        return self._run(group_views.committed(self.cluster, group_id, require_stable=require_stable))

    def set_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set a group's committed offsets while it has no members; GroupError while it has some."""
        self._run(group_calls.set_offsets(self.cluster, group_id, offsets))

    def delete_groups(self, groups: str | Iterable[str]) -> None:
        """Delete groups that have no members, with their offsets; KafkaError (NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND)."""
        self._run(group_calls.delete_groups(self.cluster, names(groups)))

    def delete_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Forget a group's offsets of partitions that no member reads; KafkaError (GROUP_SUBSCRIBED_TO_TOPIC)."""
        self._run(group_calls.delete_offsets(self.cluster, group_id, partitions))

    def seek_group(
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
        return self._run(
            (group_calls.plan_seek if dry_run else group_calls.seek)(self.cluster, group_id, target, partitions)
        )

    def remove_members(
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
        return self._run(group_calls.remove_members(self.cluster, group_id, instance_ids, all_=all_, reason=reason))

    # -- transactions -----------------------------------------------------------------------------------------

    def list_transactions(
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
        return self._run(
            transaction_calls.list_transactions(
                self.cluster, states, producer_ids=producer_ids, longer_than_ms=longer_than_ms, pattern=pattern
            )
        )

    def describe_transaction(self, transactional_id: str) -> transaction_calls.TransactionInfo:
        """What the coordinator knows of a transactional id; KafkaError (TRANSACTIONAL_ID_NOT_FOUND)."""
        return self._run(transaction_calls.describe_transaction(self.cluster, transactional_id))

    def describe_producers(
        self, topic: str, partition: int, *, broker: int | None = None
    ) -> list[transaction_calls.ProducerInfo]:
        """What a partition's leader, or its replica on `broker`, remembers of its producers; UnknownTopicError."""
        return self._run(transaction_calls.describe_producers(self.cluster, topic, partition, broker))

    def find_hanging_transactions(
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
        return self._run(
            transaction_calls.find_hanging(self.cluster, topic, partition, broker=broker, older_than_ms=older_than_ms)
        )

    def abort_transaction(
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
        self._run(
            transaction_calls.abort_transaction(
                self.cluster,
                topic,
                partition,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                coordinator_epoch=coordinator_epoch,
            )
        )

    def fence_producers(self, transactional_ids: str | Iterable[str]) -> dict[str, tuple[int, int]]:
        """Fence whoever produces under these ids, aborting what they have open; the new (producer id, epoch) of each.

        Ids that do not exist yet are made, as in Kafka.
        """
        return self._run(transaction_calls.fence_producers(self.cluster, names(transactional_ids)))

    def terminate_transaction(self, transactional_id: str) -> None:
        """Abort what a transactional id has open, and fence its producer; KafkaError (TRANSACTIONAL_ID_NOT_FOUND)."""
        self._run(transaction_calls.terminate_transaction(self.cluster, transactional_id))
