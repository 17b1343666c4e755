"""Make the shell of this broker's group coordinators from the broker's settings."""

from __future__ import annotations

from uuid import UUID

from oncelog.broker.config.dynamic import DynamicConfig
from oncelog.broker.config.group_configs import consumer_settings
from oncelog.broker.config.settings import BrokerConfig
from oncelog.broker.coordinators.shell import CoordinatorShell
from oncelog.broker.coordinators.terms import CoordinatorTerms
from oncelog.broker.coordinators.topics import ImageTopics
from oncelog.broker.storage.partitions import Partitions
from oncelog.broker.workers import Runtime
from oncelog.cluster.image import MetadataCache
from oncelog.coordinator.groups.coordinator import GroupCoordinator
from oncelog.coordinator.groups.records import decode_record
from oncelog.coordinator.groups.registry import ConsumerSettings, GroupConfig, GroupStatistics
from oncelog.protocol.topics import CONSUMER_OFFSETS


def _group_config(config: BrokerConfig) -> GroupConfig:
    return GroupConfig(
        min_session_timeout_ms=config.group_min_session_timeout_ms,
        max_session_timeout_ms=config.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        max_size=config.group_max_size,
        consumer_max_size=config.group_consumer_max_size,
        consumer_assignors=config.consumer_assignors,
        consumer_migration_policy=config.group_consumer_migration_policy.lower(),
        consumer_regex_refresh_interval_ms=config.group_consumer_regex_refresh_interval_ms,
        record_max_bytes=config.message_max_bytes,
        offset_metadata_max_bytes=config.offset_metadata_max_bytes,
        offsets_retention_ms=config.offsets_retention_minutes * 60_000,
        retention_check_interval_ms=config.offsets_retention_check_interval_ms,
    )


def group_shell(
    config: DynamicConfig,
    cache: MetadataCache,
    partitions: Partitions,
    runtime: Runtime,
    statistics: GroupStatistics | None = None,
) -> CoordinatorShell[GroupCoordinator]:
    """Return the shell of this broker's group coordinators. They count in `statistics`."""
    settings = _group_config(config.static)

    def new_uuid() -> str:
        return str(UUID(int=runtime.random_bits(128), version=4))

    def make_shard(_epoch: int) -> GroupCoordinator:
        return GroupCoordinator(settings, new_uuid, ImageTopics(cache), statistics, settings_of)

    def settings_of(group_id: str) -> ConsumerSettings:
        return consumer_settings(config.current, cache.image.group_configs.get(group_id, {}))

    terms = CoordinatorTerms(CONSUMER_OFFSETS, make_shard, decode_record, cache, partitions, runtime)
    commit_timeout_ms = config.static.offsets_commit_timeout_ms
    return CoordinatorShell(terms, cache, runtime, steady=True, commit_timeout_ms=commit_timeout_ms)
