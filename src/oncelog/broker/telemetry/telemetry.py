"""The telemetry of one broker: the subscriptions of the newest image, the client instances, and what they push."""

from __future__ import annotations

import logging
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from uuid import UUID

from oncelog.broker.config.client_metrics import MOST_SUBSCRIPTIONS, Subscription, parse
from oncelog.broker.telemetry.exported import MOST_SERIES_OF_CLIENT, ExportedMetrics
from oncelog.broker.telemetry.instances import MIN_EXPIRY_S, ClientInstances, Instance, Push
from oncelog.broker.telemetry.names import NamedMetrics, named
from oncelog.broker.telemetry.otlp import read_metrics
from oncelog.broker.workers import Runtime
from oncelog.cluster.image import MetadataCache
from oncelog.net.session import Session
from oncelog.protocol.compression import decompress
from oncelog.protocol.errors import ErrorCode, ProtocolError

ACCEPTED_CODECS = (4, 3, 1, 2)
"""zstd, lz4, gzip and snappy, in the order of preference. Uncompressed metrics are accepted, too, as in Kafka."""
LONGEST_CLIENT_ID = 200
"""The number of characters of a client id that are compared with patterns, and exported."""
MOST_POINTS = 2 * MOST_SERIES_OF_CLIENT


class Telemetry:
    """What GetTelemetrySubscriptions and PushTelemetry need."""

    def __init__(
        self,
        cache: MetadataCache,
        max_bytes: int,
        now: Callable[[], float],
        runtime: Runtime,
        exported: ExportedMetrics | None,
    ) -> None:
        """`now` is a monotonic clock in seconds. `exported` is None if nobody can read the metrics of clients.

        Then they are dropped, and clients are not told that the broker takes them, as in a Kafka without an exporter.
        """
        self.max_bytes = max_bytes
        """The maximum number of bytes of a push, before and after decompression."""
        self.exported = exported
        self.instances = ClientInstances()
        self.invalid = 0
        """The number of pushes that could not be decoded."""
        self.truncated = 0
        """The number of pushes of which only a part was read."""
        self._cache = cache
        self._now = now
        self._random_bits = runtime.random_bits
        self._workers = runtime.workers
        self._logger: logging.Logger = runtime.logger
        self._known: Mapping[str, Mapping[str, str]] = {}
        self._watched: set[int] = set()
        """The connections whose end is reported."""

    def subscribe(self, instance_id: UUID, client_id: str, session: Session) -> tuple[UUID, Instance]:
        """Return the client instance and its id, a new one if it has none. Raises THROTTLING_QUOTA_EXCEEDED."""
        self._follow()
        if not instance_id.int:
            instance_id = UUID(int=self._random_bits(128), version=4)
        attributes = _attributes(instance_id, client_id, session)
        self._watch(session)
        return instance_id, self.instances.subscribe(instance_id, attributes, session.connection_id, self._now())

    def push(self, push: Push, client_id: str, session: Session) -> Instance:
        """Return the client instance if it may push. Raises the errors of `ClientInstances.push`."""
        self._follow()
        attributes = _attributes(push.instance_id, client_id, session)
        self._watch(session)
        return self.instances.push(push, attributes, session.connection_id, self.max_bytes, self._now())

    async def export(self, instance: Instance, push: Push, metrics: bytes) -> None:
        """Export the metrics of an admitted push. Raises INVALID_RECORD if they cannot be decoded."""
        exported = self.exported
        if exported is None or not metrics:
            return
        try:
            pushed = await self._workers.compute(
                _decoded, push.codec, metrics, self.max_bytes, instance.wanted.includes
            )
        except ProtocolError as error:
            if error.code == ErrorCode.INVALID_RECORD:
                self.invalid += 1
                instance.last_error = error.code
            raise
        self.truncated += pushed.truncated
        lasts_s = max(MIN_EXPIRY_S, 3 * instance.wanted.interval_ms / 1000)
        exported.update(instance.attributes, pushed, push.subscription_id, self._now(), lasts_s)

    def expire(self) -> None:
        """Forget the clients that are gone."""
        now = self._now()
        self.instances.expire(now)
        if self.exported is not None:
            self.exported.expire(now)

    def _follow(self) -> None:
        """Use the subscriptions of the newest image."""
        settings = self._cache.image.client_metrics
        if settings is self._known:
            return
        self._known = settings
        found: dict[str, Subscription] = {}
        for name in sorted(settings)[:MOST_SUBSCRIPTIONS]:
            try:
                found[name] = parse(settings[name])
            except ProtocolError as error:
                self._logger.error("ignoring the client metrics subscription %r: %s", name, error)
        if found or len(self.instances):
            self.instances.replace(found)

    def _watch(self, session: Session) -> None:
        connection_id = session.connection_id
        if connection_id in self._watched:
            return
        self._watched.add(connection_id)

        def ended() -> None:
            self._watched.discard(connection_id)
            self.instances.disconnected(connection_id)

        session.on_disconnect(ended)


def _decoded(codec: int, metrics: bytes, max_bytes: int, wanted: Callable[[str], bool]) -> NamedMetrics:
    """Decompress and decode a push. Raises INVALID_RECORD. Blocks."""
    try:
        data = decompress(codec, metrics, max_bytes)
    except ProtocolError as error:
        raise ProtocolError(ErrorCode.INVALID_RECORD, f"the pushed metrics cannot be decompressed: {error}") from None
    return named(read_metrics(data, MOST_POINTS), wanted)


def kafka_id(instance_id: UUID) -> str:
    """Return an id as Kafka's clients show it."""
    return urlsafe_b64encode(instance_id.bytes).decode().rstrip("=")


def _attributes(instance_id: UUID, client_id: str, session: Session) -> dict[str, str]:
    name, version = session.software
    return {
        "client_instance_id": kafka_id(instance_id),
        "client_id": client_id[:LONGEST_CLIENT_ID],
        "client_software_name": name,
        "client_software_version": version,
        "client_source_address": session.host,
        "client_source_port": str(session.port),
    }
