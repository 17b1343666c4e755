"""The broker's settings for groups of the consumer protocol, with Kafka's names. `BrokerConfig` has them, too.

Source: KIP-848 and Kafka's `GroupCoordinatorConfig`, also for the checks between the settings.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Annotated

from msgspec import Meta

from oncelog.broker.config.errors import ConfigError
from oncelog.broker.config.quota_settings import QuotaSettings
from oncelog.broker.config.setting_types import INT_MAX, Int0, Int1, TextList

CONSUMER, CLASSIC = "consumer", "classic"
_PROTOCOLS = (CONSUMER, CLASSIC, "share", "streams")
_JAVA = "org.apache.kafka.coordinator.group.assignor."
_ASSIGNORS = {
    "uniform": "uniform",
    "range": "range",
    f"{_JAVA}UniformAssignor": "uniform",
    f"{_JAVA}RangeAssignor": "range",
}
"""The known assignors: the name, and that of Kafka's class, to the name."""
_SESSION, _HEARTBEAT, _ASSIGNMENT = "session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms"

MigrationPolicy = Annotated[str, Meta(pattern="^(?i:disabled|downgrade|upgrade|bidirectional)$")]


class ConsumerGroupSettings(QuotaSettings, frozen=True, kw_only=True):
    """The settings. The others are those of its base, because a `Struct` has only one. Times are in ms."""

    initial_group_version: Annotated[int, Meta(ge=0, le=1)] = 1
    """oncelog only: the level of `group.version` in a new cluster (Kafka: `kafka-storage format --feature`). Without
    level 1, the consumer protocol (KIP-848) is refused."""
    group_coordinator_rebalance_protocols: TextList = "classic,consumer,streams"
    """The protocols of groups. `classic` must be one of them. Without `consumer`, the consumer protocol (KIP-848) is
    refused. `share` and `streams` have no effect."""
    group_consumer_session_timeout_ms: Int1 = 45_000
    """Remove a member of the consumer protocol that has sent no heartbeat for this time. A group may have a time of
    its own (`consumer.session.timeout.ms`)."""
    group_consumer_min_session_timeout_ms: Int1 = 45_000
    """Smallest session timeout that a group may have of its own."""
    group_consumer_max_session_timeout_ms: Int1 = 60_000
    """Largest session timeout that a group may have of its own."""
    group_consumer_heartbeat_interval_ms: Int1 = 5_000
    """Time between two heartbeats that members of the consumer protocol are told. A group may have a time of its own
    (`consumer.heartbeat.interval.ms`)."""
    group_consumer_min_heartbeat_interval_ms: Int1 = 5_000
    """Smallest heartbeat interval that a group may have of its own."""
    group_consumer_max_heartbeat_interval_ms: Int1 = 15_000
    """Largest heartbeat interval that a group may have of its own."""
    group_consumer_max_size: Int1 = INT_MAX
    """Maximum number of members of a group of the consumer protocol."""
    group_consumer_assignors: TextList = "uniform,range"
    """Assignors that members may choose. The first one is for members that choose none. Of classes,
    only Kafka's own are known."""
    group_consumer_migration_policy: MigrationPolicy = "bidirectional"
    """Moves of groups while members change their protocol: `upgrade` to the consumer protocol, `downgrade` to the
    classic protocol, `bidirectional` or `disabled`."""
    group_consumer_assignment_interval_ms: Int0 = 1_000
    """Least time between two assignments of a group (KIP-1263). A group may have a time of its own
    (`consumer.assignment.interval.ms`)."""
    group_consumer_min_assignment_interval_ms: Int0 = 0
    """Smallest assignment interval that a group may have of its own."""
    group_consumer_max_assignment_interval_ms: Int0 = 15_000
    """Largest assignment interval that a group may have of its own."""
    group_consumer_regex_refresh_interval_ms: Annotated[int, Meta(ge=10_000, le=INT_MAX)] = 600_000
    """Time after which a group compares its regular expressions with the topics again."""

    @property
    def consumer_protocol_enabled(self) -> bool:
        """Return whether the settings allow the consumer protocol. The feature `group.version` must allow it, too."""
        return CONSUMER in listed(self.group_coordinator_rebalance_protocols)

    @property
    def consumer_assignors(self) -> tuple[str, ...]:
        """Return the names of the assignors, the default first."""
        return tuple(dict.fromkeys(_ASSIGNORS[name] for name in listed(self.group_consumer_assignors)))


def listed(text: str) -> tuple[str, ...]:
    """Return the parts of a list that is written with commas, each once."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(","))) if text.strip() else ()


def check_consumer_groups(config: ConsumerGroupSettings) -> None:
    """Check the settings together. Raises ConfigError."""
    for name in (_HEARTBEAT, _SESSION, _ASSIGNMENT):
        _check_range(config, name)
    if config.group_consumer_heartbeat_interval_ms >= config.group_consumer_session_timeout_ms:
        raise ConfigError(f"group.consumer.{_HEARTBEAT} must be less than group.consumer.{_SESSION}")
    _check_list("group.consumer.assignors", listed(config.group_consumer_assignors), ("uniform", "range"), _ASSIGNORS)
    protocols = listed(config.group_coordinator_rebalance_protocols)
    _check_list("group.coordinator.rebalance.protocols", protocols, _PROTOCOLS, _PROTOCOLS)
    if CLASSIC not in protocols:
        raise ConfigError("group.coordinator.rebalance.protocols must have classic: it cannot be turned off")


def check_assignment_interval(config: ConsumerGroupSettings) -> None:
    """Check the only one of these settings that may change while the broker runs. Raises ConfigError."""
    _check_range(config, _ASSIGNMENT)


def _check_range(config: ConsumerGroupSettings, name: str) -> None:
    field = name.replace(".", "_")
    low, value, high = (getattr(config, f"group_consumer_{part}{field}") for part in ("min_", "", "max_"))
    for wrong, first, relation, second in (
        (high < low, "max.", "greater", "min."),
        (value < low, "", "greater", "min."),
        (value > high, "", "less", "max."),
    ):
        if wrong:
            raise ConfigError(
                f"group.consumer.{first}{name} must be {relation} than or equal to group.consumer.{second}{name}"
            )


def _check_list(name: str, items: Sequence[str], choices: Sequence[str], known: Container[str]) -> None:
    if not items:
        raise ConfigError(f"{name} must not be empty")
    for item in items:
        if item not in known:
            reason = "; the broker cannot load classes" if "." in item else ""
            raise ConfigError(f"{name} must have {', '.join(choices)} only, not {item!r}{reason}")
