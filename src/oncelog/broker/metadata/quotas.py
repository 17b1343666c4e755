"""Change client quotas. Each change only writes to the tree, and the brokers follow the image."""

from __future__ import annotations

from collections.abc import Mapping

from oncelog.broker.metadata.loader import MetadataLoader
from oncelog.broker.workers import Runtime
from oncelog.cluster import quota_nodes
from oncelog.cluster.image import MetadataCache
from oncelog.cluster.quotas import QuotaEntity
from oncelog.protocol.errors import ErrorCode, ProtocolError

MOST_CHANGES = 10_000
"""The maximum number of quotas that one request changes, as in Kafka."""
MOST_ENTITIES = 100_000
"""The maximum number of entities with quotas in a cluster."""


class QuotaAdministration:
    """Carry out the changes of quotas that clients request."""

    def __init__(self, loader: MetadataLoader, cache: MetadataCache, runtime: Runtime) -> None:
        self._loader = loader
        self._cache = cache
        self._workers = runtime.workers
        self._logger = runtime.logger

    async def alter(self, wanted: Mapping[QuotaEntity, Mapping[str, float | None]]) -> None:
        """Make all changes, or none. The value None removes a quota. They take effect before this returns.

        The caller has checked the entities and values. Raises POLICY_VIOLATION if there are too many, and
        REQUEST_TIMED_OUT.
        """
        if sum(map(len, wanted.values())) > MOST_CHANGES:
            raise ProtocolError(ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
        async with self._loader.changing() as log:
            known = self._cache.image.quotas.by_entity
            if len(known) + sum(entity not in known for entity in wanted) > MOST_ENTITIES:
                message = f"at most {MOST_ENTITIES} users, client ids and addresses may have quotas"
                raise ProtocolError(ErrorCode.POLICY_VIOLATION, message)
            await self._workers.write_store(quota_nodes.update, log, wanted)
        for entity, values in wanted.items():
            self._logger.info("changed the quotas of %s: %s", entity, values)
