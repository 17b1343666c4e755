"""Take part in the cluster: enter it, register, hand the partitions over, and leave it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from oncelog.broker.metadata.cluster_entry import ClusterEntry
from oncelog.broker.metadata.controller import Controller, led_elsewhere
from oncelog.broker.metadata.delegation_tokens import TokenAdministration
from oncelog.broker.metadata.loader import SHARED_POLL_S, MetadataLoader
from oncelog.broker.metadata.registration import Registration
from oncelog.broker.metadata.settings import BrokerSettings
from oncelog.broker.storage.log_dir_registry import Lost
from oncelog.broker.workers import Runtime
from oncelog.cluster.brokers import Endpoint
from oncelog.cluster.image import MetadataImage
from oncelog.cluster.store import StoreError

HANDOVER_POLLS = 100
"""How often a broker that stops checks whether others lead its partitions: for 5 s."""


@dataclass(frozen=True, slots=True)
class ClusterMember:
    """This broker as a member of its cluster."""

    registration: Registration
    entry: ClusterEntry
    loader: MetadataLoader
    settings: BrokerSettings
    controller: Controller
    tokens: TokenAdministration
    runtime: Runtime

    @property
    def image(self) -> MetadataImage:
        """The newest metadata."""
        return self.loader.cache.image

    async def enter(self) -> Lost:
        """Open the session, read the metadata, and open the log directories. Return the logs that are lost.

        The session is first, so that no other process of this broker is running. The directories are checked before
        anything changes, and opened before the registration, which names what is missing in them.
        """
        offload = self.runtime.workers.offload
        await offload(self.registration.open)
        self.registration.start()
        await self.entry.enter()
        await offload(self._load)
        lost: Lost = await offload(self.entry.open_directories, self.image)
        self.loader.start()
        return lost

    def _load(self) -> None:
        """Read the metadata. Before anything changes, check that the log directories belong to it. Blocks."""
        self.entry.check_directories()
        self.loader.load()
        self.settings.apply()

    async def register(self, endpoints: Mapping[str, Endpoint], lost: Lost, *, starting: bool) -> None:
        """Publish the addresses, read the metadata, and become the controller if there is none.

        For `lost` and `starting`, see `Registration.register`. Raises StoreError.
        """
        await self.registration.register(endpoints, self.image, lost, starting=starting)
        await self.loader.catch_up()
        await self.controller.start()
        self.tokens.start()

    async def hand_over(self) -> None:
        """Ask the controller to let others lead, and wait until they do, for a limited time.

        Do nothing without other brokers, or without `controlled.shutdown.enable`.
        """
        config = self.settings.config.static
        if not config.controlled_shutdown_enable or len(self.image.brokers) <= 1:
            return
        try:
            await self.registration.update(shutting_down=True)
            for _ in range(HANDOVER_POLLS):
                await self.loader.refresh()
                if not led_elsewhere(self.image, config.node_id):
                    break
                await asyncio.sleep(SHARED_POLL_S)
        except StoreError as error:
            self.runtime.logger.error("cannot hand over the partitions of this broker: %r", error)

    async def leave(self) -> None:
        """End the session, so that others may lead, and stop following the metadata."""
        await self.registration.close()
        self.loader.close()
