"""The blocking admin client."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from oncelog.client import admin_calls as calls
from oncelog.client import config_calls, group_calls, log_dir_calls
from oncelog.client.batch import TopicPartition
from oncelog.client.blocking import LoopThread
from oncelog.client.cluster import ClusterClient
from oncelog.client.options import ADMIN, cluster_options, read_options

__all__ = ["Admin"]

T = TypeVar("T")


class Admin:
    """Topics, groups, transactions and settings of a cluster. Use as a context manager, or `close` it.

    Options carry Kafka's names with `_` for `.`. Errors: `oncelog.errors`; errors that pass by themselves are tried
    again until default_api_timeout_ms.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if bootstrap_servers is not None:
            options["bootstrap_servers"] = bootstrap_servers
        found, _ = read_options(ADMIN, config, options)
        self._thread = LoopThread.shared()
        self.cluster = ClusterClient(found["bootstrap_servers"], **cluster_options(found))

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        self._run(self.cluster.close())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.run(work)

    # -- topics ---------------------------------------------------------------------------------------------------

    def create_topics(
        self,
        topics: str | Iterable[str],
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create one or more topics alike and wait until they are known; -1: the broker's default."""
        names = [topics] if isinstance(topics, str) else list(topics)
        self._run(calls.create_topics(self.cluster, names, partitions, replication_factor, configs))

    def delete_topics(self, topics: str | Iterable[str]) -> None:
        """Delete one or more topics."""
        self._run(calls.delete_topics(self.cluster, [topics] if isinstance(topics, str) else list(topics)))

    def delete_records(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records before an offset in each partition (-1: all that is committed); where each begins now."""
        return self._run(calls.delete_records(self.cluster, offsets))

    def list_topics(self, *, internal: bool = False) -> dict[str, int]:
        """Number of partitions by topic name."""
        found = self._run(self.cluster.topics(internal=internal))
        return {name: len(found[name].partitions) for name in sorted(found)}

    def describe_topics(self, topics: str | Iterable[str]) -> list[calls.TopicInfo]:
        """Topics with leader, ISR, first offset, HW, LSO and LEO of each partition."""
        return self._run(calls.describe_topics(self.cluster, [topics] if isinstance(topics, str) else list(topics)))

    def offsets(
        self, wanted: Mapping[TopicPartition, int], *, committed_only: bool = False
    ) -> dict[TopicPartition, int]:
        """Offset by partition for a timestamp each: -2 the first, -1 the end, else ms since the epoch (-1: no such
        record).
        """
        return self._run(calls.offsets_for(self.cluster, wanted, committed_only=committed_only))

    def create_partitions(self, topic: str, count: int) -> None:
        """Let a topic grow to so many partitions; keys may go to other ones than before."""
        self._run(config_calls.create_partitions(self.cluster, topic, count))

    def alter_topic_configs(self, topic: str, to_set: Mapping[str, str], to_unset: Iterable[str] = ()) -> None:
        """Change settings of a topic; those to be unset go back to the broker's."""
        self._run(config_calls.alter_topic_configs(self.cluster, topic, to_set, to_unset))

    # -- cluster --------------------------------------------------------------------------------------------------

    def describe_log_dirs(
        self, brokers: Sequence[int] | None = None, partitions: Iterable[TopicPartition] | None = None
    ) -> list[log_dir_calls.LogDir]:
        """The log directories of these brokers or of all: space, partitions, and whether the disk has failed."""
        return self._run(log_dir_calls.describe_log_dirs(self.cluster, brokers, partitions))

    def describe_cluster(self) -> calls.ClusterInfo:
        """Brokers, controller, features."""
        return self._run(calls.describe_cluster(self.cluster))

    def describe_configs(self, kind: str, name: str | int, *, all_: bool = True) -> dict[str, str | None]:
        """Settings of a "topic" or "broker"; with `all_` False only those that somebody has set."""
        return self._run(calls.describe_configs(self.cluster, kind, str(name), all_=all_))

    def alter_broker_configs(
        self, broker: int | None, to_set: Mapping[str, str], to_unset: Iterable[str] = ()
    ) -> None:
        """Change settings of a broker, or (None) of all brokers, while they run."""
        self._run(config_calls.alter_broker_configs(self.cluster, broker, to_set, to_unset))

    # -- groups ---------------------------------------------------------------------------------------------------

    def list_groups(self) -> list[calls.GroupInfo]:
        """All groups."""
        return self._run(calls.list_groups(self.cluster))

    def describe_group(self, group_id: str) -> calls.GroupDescription:
        """State and members of a classic group."""
        return self._run(calls.describe_group(self.cluster, group_id))

    def committed(self, group_id: str) -> dict[TopicPartition, int]:
        """Every committed offset of a group."""
        return self._run(calls.committed(self.cluster, group_id))

    def set_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set a group's committed offsets, while it has no members."""
        self._run(calls.set_offsets(self.cluster, group_id, offsets))

    def delete_groups(self, groups: str | Iterable[str]) -> None:
        """Delete one or more groups that have no members, with their offsets."""
        names = [groups] if isinstance(groups, str) else list(groups)
        self._run(group_calls.delete_groups(self.cluster, names))

    def delete_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Forget a group's offsets of partitions that no member reads."""
        self._run(group_calls.delete_offsets(self.cluster, group_id, partitions))

    def seek_group(
        self,
        group_id: str,
        target: group_calls.Target,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        dry_run: bool = False,
    ) -> list[group_calls.Step]:
        """Set where a group without members goes on, in some partitions or all that it has offsets of."""
        call = group_calls.plan_seek if dry_run else group_calls.seek
        return self._run(call(self.cluster, group_id, target, partitions))

    # -- transactions ---------------------------------------------------------------------------------------------

    def list_transactions(self, states: Sequence[str] = ()) -> list[calls.TransactionListing]:
        """Transactional ids, in certain states (as "Ongoing") or all."""
        return self._run(calls.list_transactions(self.cluster, states))

    def describe_transaction(self, transactional_id: str) -> calls.TransactionInfo:
        """What the coordinator knows of a transactional id."""
        return self._run(calls.describe_transaction(self.cluster, transactional_id))

    def describe_producers(self, topic: str, partition: int) -> list[calls.ProducerInfo]:
        """What a partition knows of its producers."""
        return self._run(calls.describe_producers(self.cluster, topic, partition))
