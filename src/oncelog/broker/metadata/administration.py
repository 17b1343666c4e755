"""What an administrator changes while the broker runs: settings of topics and brokers, numbers of partitions.

A change goes to the tree first, then to the image and to the logs that are open. Changes of one broker are made one at
a time, so that the image sees them in the tree's order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from oncelog.broker.config.dynamic import DynamicConfig, check_changed_broker_configs
from oncelog.broker.config.topics import check_changed_configs, check_topic_configs, without_effect
from oncelog.broker.metadata.deadline import Deadline
from oncelog.cluster import configs
from oncelog.cluster.metadata import PartitionInfo, TopicInfo
from oncelog.protocol.errors import ErrorCode, ProtocolError

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker

Change = Callable[[Mapping[str, str]], dict[str, str]]
"""From the settings that are to those that are wanted, which need not be legal; ProtocolError."""


class Administration:
    """Changes of one broker's metadata."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.layers = DynamicConfig(broker.config)
        self.changing = asyncio.Lock()
        """Held while metadata that exists is changed."""

    def load(self) -> None:
        """Reads the brokers' settings from the tree (blocking) and puts them into force."""
        broker = self._broker
        of_all = configs.read_broker(broker.tree, None)
        own = configs.read_broker(broker.tree, broker.node_id)
        broker.config = self.layers.admit(of_all=of_all, own=own)
        used = {**self.layers.of_all, **self.layers.own}
        for name in sorted({*of_all, *own} - set(used)):
            broker.log.error("the tree has a setting of brokers that cannot be used: %s", name)

    # -- settings ---------------------------------------------------------------------------------------------------

    async def alter_topic(self, name: str, change: Change, *, validate_only: bool) -> None:
        """Changes a topic's settings; they act at once.

        INVALID_CONFIG, UNKNOWN_TOPIC_OR_PARTITION, REQUEST_TIMED_OUT.
        """
        broker = self._broker

        def checked(before: Mapping[str, str]) -> dict[str, str]:
            return check_changed_configs(broker.config, before, change(before))

        async with self.changing:
            topic = broker.metadata.topic(name)
            wanted = checked(topic.configs if topic else {})  # Kafka looks at the values first
            if topic is None:
                raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
            if validate_only:
                return
            for sentence in without_effect(set(wanted) - set(topic.configs)):
                broker.log.warning("topic %s: %s", name, sentence)
            altered = replace(topic, configs=await broker.offload(configs.update_topic, broker.tree, name, checked))
            broker.metadata.admit(altered)
            broker.partitions.reconfigure(altered)
            broker.log.info("settings of topic %s are now %s", name, dict(altered.configs))

    async def alter_broker(self, node_id: int | None, change: Change, *, validate_only: bool) -> None:
        """Changes the settings of this broker, or (None) of all; they act at once.

        INVALID_REQUEST for what cannot be changed while it runs or is not legal, INVALID_CONFIG, REQUEST_TIMED_OUT.
        """
        broker, layers = self._broker, self.layers

        def checked(before: Mapping[str, str]) -> dict[str, str]:
            return check_changed_broker_configs(before, change(before))

        async with self.changing:
            before = layers.of_all if node_id is None else layers.own
            wanted = checked(before)
            of_all, own = (wanted, layers.own) if node_id is None else (layers.of_all, wanted)
            _check_combination(layers, of_all, own)
            if validate_only:
                return
            written = await broker.offload(configs.update_broker, broker.tree, node_id, checked)
            layer = {"of_all": written} if node_id is None else {"own": written}
            broker.config = layers.admit(**layer)
            for topic in broker.metadata.topics():
                broker.partitions.reconfigure(topic)
            broker.limit_connections(broker.config.max_connections)
            broker.log.info("settings of %s are now %s", "all brokers" if node_id is None else "this broker", written)

    # -- partitions -------------------------------------------------------------------------------------------------

    async def add_partitions(
        self, topic: TopicInfo, added: list[tuple[int, ...]], deadline: Deadline | None = None
    ) -> None:
        """Adds partitions with these replicas; UNKNOWN_TOPIC_OR_PARTITION, INVALID_PARTITIONS, REQUEST_TIMED_OUT."""
        broker = self._broker
        async with self.changing:
            if deadline is not None:
                deadline.check()
            known = broker.metadata.topic(topic.name)
            if known is None or known.topic_id != topic.topic_id:
                raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic.name!r} does not exist")
            if known.partition_count != topic.partition_count:
                message = f"topic {topic.name!r} has {known.partition_count} partitions by now"
                raise ProtocolError(ErrorCode.INVALID_PARTITIONS, message)
            infos = [PartitionInfo(replicas[0], 0, replicas, replicas) for replicas in added]
            grown = await broker.offload(broker.metadata.add_partitions, known, infos)
            broker.metadata.admit(grown)
            broker.log.info("topic %s has %d partitions now", topic.name, grown.partition_count)


def _check_combination(layers: DynamicConfig, of_all: Mapping[str, str], own: Mapping[str, str]) -> None:
    """What broker settings mean together for a topic without settings of its own."""
    try:
        check_topic_configs(layers.resulting(of_all, own), {})
    except ProtocolError as error:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, str(error)) from error
