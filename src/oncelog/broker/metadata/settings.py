"""Change the settings of topics, brokers, client metrics and groups, and the levels of features. Each change only
writes to the tree.

`BrokerSettings` applies those of brokers that are in the tree.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from oncelog.broker.config import group_configs
from oncelog.broker.config.client_metrics import MOST_SUBSCRIPTIONS, check_changed_settings
from oncelog.broker.config.consumer_group_settings import check_assignment_interval
from oncelog.broker.config.dynamic import DynamicConfig, check_broker_limits, check_changed_broker_configs
from oncelog.broker.config.dynamic_listeners import listeners_of, without_secrets
from oncelog.broker.config.errors import ConfigError
from oncelog.broker.config.settings import BrokerConfig
from oncelog.broker.config.topics import check_changed_configs, check_topic_configs, without_effect
from oncelog.broker.metadata.loader import MetadataLoader
from oncelog.broker.workers import Runtime
from oncelog.cluster import configs, features
from oncelog.cluster.features import SUPPORTED
from oncelog.cluster.image import MetadataCache, MetadataDelta, MetadataImage
from oncelog.cluster.named_configs import CLIENT_METRICS, GROUPS, NamedConfigs
from oncelog.cluster.users import add_user, update_user
from oncelog.protocol.errors import ErrorCode, ProtocolError

Change = Callable[[Mapping[str, str]], dict[str, str]]
"""Map the current settings to the requested ones. The result is not yet validated. Raises ProtocolError."""

CheckTls = Callable[[BrokerConfig, Sequence[str]], Awaitable[None]]
"""Check the TLS files that settings give to listeners. Raises INVALID_REQUEST."""


class _NamedResources(NamedTuple):
    """A kind of resources with settings of their own: where these are, how many may have some, and texts.

    `too_many` is the error message, with `%d` for `most`.
    """

    nodes: NamedConfigs
    known: Callable[[MetadataImage], Mapping[str, Mapping[str, str]]]
    most: int
    too_many: str
    what: str


_SUBSCRIPTIONS = _NamedResources(
    CLIENT_METRICS,
    lambda image: image.client_metrics,
    MOST_SUBSCRIPTIONS,
    "a cluster may have at most %d client metrics subscriptions",
    "the client metrics subscription",
)
_GROUPS = _NamedResources(
    GROUPS,
    lambda image: image.group_configs,
    group_configs.MOST_GROUPS,
    "at most %d groups of a cluster may have settings of their own",
    "group",
)


class SettingsAdministration:
    """Carry out the changes of settings that clients request."""

    def __init__(
        self,
        loader: MetadataLoader,
        cache: MetadataCache,
        config: DynamicConfig,
        check_tls: CheckTls,
        runtime: Runtime,
    ) -> None:
        self.node_id = config.static.node_id
        self.logger = runtime.logger
        self._loader = loader
        self._cache = cache
        self._config = config
        self._check_tls = check_tls
        self._workers = runtime.workers

    async def alter_topic(self, name: str, change: Change, *, validate_only: bool) -> None:
        """Change a topic's settings. They take effect before this returns.

        Raises INVALID_CONFIG, UNKNOWN_TOPIC_OR_PARTITION, REQUEST_TIMED_OUT.
        """

        def checked(before: Mapping[str, str]) -> dict[str, str]:
            return check_changed_configs(self._config.current, before, change(before))

        async with self._loader.changing() as log:
            topic = self._cache.image.topic(name)
            wanted = checked(topic.configs if topic else {})  # as in Kafka, an illegal value is reported first
            if topic is None:
                raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
            if validate_only:
                return
            for sentence in without_effect(set(wanted) - set(topic.configs)):
                self.logger.warning("topic %s: %s", name, sentence)
            written = await self._workers.write_store(configs.update_topic, log, name, checked)
        self.logger.info("settings of topic %s are now %s", name, written)

    async def alter_broker(
        self, node_id: int | None, change: Change, *, named: Collection[str] = (), validate_only: bool
    ) -> None:
        """Change the settings of this broker, or of all if `node_id` is None. They take effect before this returns.

        `named` are the settings that the request names. If one is for a listener with TLS, its files are checked, also
        if the value is the same as before.
        Raises INVALID_REQUEST if a setting is illegal or cannot change at run time, INVALID_CONFIG,
        REQUEST_TIMED_OUT.
        """
        config = self._config

        def checked(before: Mapping[str, str]) -> dict[str, str]:
            return check_changed_broker_configs(before, change(before), of_all=node_id is None)

        async with self._loader.changing() as log:
            wanted = checked(config.of_all if node_id is None else config.own)
            of_all, own = (wanted, config.own) if node_id is None else (config.of_all, wanted)
            resulting = _check_combination(config, of_all, own)
            changed = {name for name, _ in wanted.items() ^ (config.of_all if node_id is None else config.own).items()}
            await self._check_tls(resulting, listeners_of(config.static, {*named, *changed}))
            if validate_only:
                return
            written = await self._workers.write_store(configs.update_broker, log, node_id, checked)
        target = "all brokers" if node_id is None else "this broker"
        self.logger.info("settings of %s are now %s", target, without_secrets(written))

    async def alter_client_metrics(self, name: str, change: Change, *, validate_only: bool) -> None:
        """Change the settings of a client metrics subscription. They take effect before this returns.

        Without settings, there is no subscription. Raises INVALID_REQUEST, INVALID_CONFIG, REQUEST_TIMED_OUT, and
        POLICY_VIOLATION if there are too many.
        """

        def checked(before: Mapping[str, str]) -> dict[str, str]:
            return check_changed_settings(before, change(before))

        await self._alter_named(_SUBSCRIPTIONS, name, checked, validate_only=validate_only)

    async def alter_group(self, name: str, change: Change, *, validate_only: bool) -> None:
        """Change the settings that a group has of its own. They take effect before this returns.

        The group need not exist. Raises INVALID_CONFIG, REQUEST_TIMED_OUT, and POLICY_VIOLATION if too many groups have
        settings.
        """

        def checked(before: Mapping[str, str]) -> dict[str, str]:
            return group_configs.check_changed_settings(self._config.current, before, change(before))

        await self._alter_named(_GROUPS, name, checked, validate_only=validate_only)

    async def _alter_named(self, kind: _NamedResources, name: str, checked: Change, *, validate_only: bool) -> None:
        """Change the settings of one resource of a kind. `checked` returns legal settings, or raises."""
        async with self._loader.changing() as log:
            known = kind.known(self._cache.image)
            wanted = checked(known.get(name, {}))
            if wanted and name not in known and len(known) >= kind.most:
                raise ProtocolError(ErrorCode.POLICY_VIOLATION, kind.too_many % kind.most)
            if validate_only:
                return
            written = await self._workers.write_store(kind.nodes.update, log, name, checked)
        self.logger.info("settings of %s %r are now %s", kind.what, name, written)

    async def alter_user(self, name: str, wanted: Mapping[str, str | None]) -> None:
        """Set these settings of a user; None removes one. They take effect before this returns.

        Raises RESOURCE_NOT_FOUND, REQUEST_TIMED_OUT.
        """
        async with self._loader.changing() as log:
            await self._workers.write_store(update_user, log, name, wanted)
        self.logger.info("changed the credentials of user %r: %s", name, ", ".join(sorted(wanted)))

    async def add_user(self, name: str, settings: Mapping[str, str]) -> None:
        """Add a user with these settings, unless the user exists. Raises REQUEST_TIMED_OUT."""
        async with self._loader.changing() as log:
            added = await self._workers.write_store(add_user, log, name, settings)
        if added:
            self.logger.info("added user %r: %s", name, ", ".join(sorted(settings)))

    async def update_features(self, wanted: Sequence[features.Change], *, validate_only: bool) -> None:
        """Change all these levels of features, or none. Raises INVALID_UPDATE_VERSION, REQUEST_TIMED_OUT."""
        async with self._loader.changing() as log:
            await self._workers.write_store(
                lambda: features.update(log, wanted, SUPPORTED, validate_only=validate_only)
            )
        if not validate_only:
            self.logger.info("feature levels are now %s", dict(self._cache.image.feature_levels))


class BrokerSettings:
    """Keep the settings of this broker as the newest image has them."""

    def __init__(self, config: DynamicConfig, cache: MetadataCache, logger: logging.Logger) -> None:
        self.config = config
        self._cache = cache
        self._logger = logger

    def apply(self) -> None:
        """Apply the settings in the newest image, and log those that cannot be used."""
        configs, node_id = self._cache.image.broker_configs, self.config.static.node_id
        for name in self.config.replace_dynamic(of_all=configs.get(None, {}), own=configs.get(node_id, {})):
            self._logger.error(
                "ignoring a broker setting of the metadata, because its name or value is invalid: %s", name
            )

    def metadata_changed(self, delta: MetadataDelta) -> None:
        """Apply changed settings. Other subscribers, which read them, must come later."""
        if delta.broker_configs_changed(self.config.static.node_id):
            self.apply()


def _check_combination(config: DynamicConfig, of_all: Mapping[str, str], own: Mapping[str, str]) -> BrokerConfig:
    """Return the resulting settings of this broker. Raises INVALID_REQUEST if they are illegal together.

    A topic without settings of its own gets a combination from the broker.
    """
    try:
        resulting = config.resulting(of_all, own)
        check_broker_limits(resulting)
        check_assignment_interval(resulting)
        check_topic_configs(resulting, {})
    except (ConfigError, ProtocolError) as error:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, str(error)) from error
    return resulting
