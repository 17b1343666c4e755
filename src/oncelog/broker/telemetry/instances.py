"""Which metrics each client instance shall push, and whether it may push now. Source: Kafka's `ClientMetricsManager`.

Times are seconds of a monotonic clock. An instance is forgotten when its connection closes, when it sends nothing for
three push intervals, or when there are too many.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from crc32c import crc32c

from oncelog.broker.config.client_metrics import ALL_METRICS, DEFAULT_INTERVAL_MS, Subscription
from oncelog.protocol.compression import Codec
from oncelog.protocol.errors import ErrorCode, ProtocolError

MOST_INSTANCES = 16_384
"""The number of instances to remember, as in Kafka. The least recently used one is forgotten first."""
MIN_EXPIRY_S = 60.0
RESERVED_IDS = frozenset({UUID(int=0), UUID(int=1)})
_CODECS = frozenset(int(codec) for codec in Codec)
_MOST_KINDS = 1000
"""The number of combinations of subscriptions whose metrics are remembered."""


class Wanted(NamedTuple):
    """What the clients that match some subscriptions push. `checksum` identifies it."""

    metrics: tuple[str, ...]
    """Prefixes of names, or only `*`."""
    interval_ms: int
    checksum: int

    def includes(self, name: str) -> bool:
        """Return whether the clients shall push the metric of this name."""
        return self.metrics == (ALL_METRICS,) or name.startswith(self.metrics)


class Instance:
    """One client instance."""

    __slots__ = (
        "attributes",
        "connection_id",
        "expires",
        "got",
        "last_error",
        "pushed",
        "terminating",
        "version",
        "wanted",
    )

    def __init__(self, attributes: Mapping[str, str], wanted: Wanted, version: int) -> None:
        self.attributes = attributes
        self.wanted = wanted
        self.version = version
        """The version of the subscriptions that `wanted` follows from."""
        self.got = self.pushed = float("-inf")
        """When the client was told what to push, and when it last pushed."""
        self.terminating = False
        self.last_error = ErrorCode.NONE
        self.expires = 0.0
        self.connection_id = 0

    def subscription_id(self, instance_id: UUID) -> int:
        """Return the id of what this client pushes, an int32."""
        bits = instance_id.int
        mixed = (bits >> 96) ^ (bits >> 64) ^ (bits >> 32) ^ bits ^ self.wanted.checksum
        return (mixed + 2**31) % 2**32 - 2**31


class Push(NamedTuple):
    """What a PushTelemetry says besides the metrics."""

    instance_id: UUID
    subscription_id: int
    terminating: bool
    codec: int
    size: int


class ClientInstances:
    """All client instances of one broker."""

    def __init__(self) -> None:
        self._instances: OrderedDict[UUID, Instance] = OrderedDict()
        self._connections: dict[int, UUID] = {}
        """The instance that a connection has last used."""
        self._subscriptions: Mapping[str, Subscription] = {}
        self._version = 0
        self._kinds: dict[tuple[str, ...], Wanted] = {}
        self.throttled = 0
        self.unknown_subscriptions = 0

    def __len__(self) -> int:
        return len(self._instances)

    def __contains__(self, instance_id: UUID) -> bool:
        return instance_id in self._instances

    def replace(self, subscriptions: Mapping[str, Subscription]) -> None:
        """Use these subscriptions from now on. Clients with an older subscription id get an error, and ask again."""
        self._subscriptions = subscriptions
        self._version += 1
        self._kinds.clear()

    def subscribe(self, instance_id: UUID, attributes: Mapping[str, str], connection_id: int, now: float) -> Instance:
        """Return the instance with what the client shall push.

        Raises THROTTLING_QUOTA_EXCEEDED if it asks too early.
        """
        instance = self._use(instance_id, attributes, connection_id, now)
        early = now - max(instance.got, instance.pushed) < instance.wanted.interval_ms / 1000
        if not early:
            instance.got = now
        elif instance.last_error not in (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE):
            self.throttled += 1
            raise _too_early(attributes)
        instance.last_error = ErrorCode.NONE
        return instance

    def push(
        self, push: Push, attributes: Mapping[str, str], connection_id: int, most_bytes: int, now: float
    ) -> Instance:
        """Return the instance if it may push now.

        Raises INVALID_REQUEST, THROTTLING_QUOTA_EXCEEDED, UNKNOWN_SUBSCRIPTION_ID, UNSUPPORTED_COMPRESSION_TYPE and
        TELEMETRY_TOO_LARGE.
        """
        if push.instance_id in RESERVED_IDS:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "the client has no client instance id")
        instance = self._use(push.instance_id, attributes, connection_id, now)
        try:
            self._check(instance, push, most_bytes, now)
        except ProtocolError as error:
            instance.last_error = error.code
            raise
        finally:
            instance.terminating = push.terminating
        instance.last_error = ErrorCode.NONE
        return instance

    def _check(self, instance: Instance, push: Push, most_bytes: int, now: float) -> None:
        if instance.terminating:
            message = f"client instance {push.instance_id} has already pushed its last metrics"
            raise ProtocolError(ErrorCode.INVALID_REQUEST, message)
        # A client adds jitter to its first push, so the push that follows the subscription is never too early.
        admitted = instance.got > instance.pushed or now - instance.pushed >= instance.wanted.interval_ms / 1000
        if admitted:
            instance.pushed = now
        elif not push.terminating:
            self.throttled += 1
            raise _too_early(instance.attributes)
        if push.subscription_id != instance.subscription_id(push.instance_id):
            self.unknown_subscriptions += 1
            message = f"client instance {push.instance_id} pushes for an unknown or former subscription"
            raise ProtocolError(ErrorCode.UNKNOWN_SUBSCRIPTION_ID, message)
        if push.codec not in _CODECS:
            message = f"unknown compression type {push.codec}"
            raise ProtocolError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, message)
        if push.size > most_bytes:
            message = f"the pushed metrics have {push.size} bytes; the limit is telemetry.max.bytes, {most_bytes}"
            raise ProtocolError(ErrorCode.TELEMETRY_TOO_LARGE, message)

    def disconnected(self, connection_id: int) -> None:
        """Forget the instance that the closed connection has last used, unless another connection has used it since."""
        instance_id = self._connections.pop(connection_id, None)
        instance = self._instances.get(instance_id) if instance_id is not None else None
        if instance_id is not None and instance is not None and instance.connection_id == connection_id:
            del self._instances[instance_id]

    def expire(self, now: float) -> None:
        """Forget the instances that have sent nothing for too long, from the least recently used one on."""
        while self._instances and next(iter(self._instances.values())).expires <= now:
            self._forget_oldest()

    def _use(self, instance_id: UUID, attributes: Mapping[str, str], connection_id: int, now: float) -> Instance:
        self.expire(now)
        instance = self._instances.get(instance_id)
        if instance is None:
            instance = self._instances[instance_id] = Instance(attributes, self._wanted(attributes), self._version)
            if len(self._instances) > MOST_INSTANCES:
                self._forget_oldest()
        elif instance.version != self._version:
            instance = self._instances[instance_id] = Instance(
                instance.attributes, self._wanted(instance.attributes), self._version
            )
        self._instances.move_to_end(instance_id)
        instance.expires = now + max(MIN_EXPIRY_S, 3 * instance.wanted.interval_ms / 1000)
        instance.connection_id = connection_id
        self._connections[connection_id] = instance_id
        return instance

    def _forget_oldest(self) -> None:
        instance_id, instance = self._instances.popitem(last=False)
        if self._connections.get(instance.connection_id) == instance_id:
            del self._connections[instance.connection_id]

    def _wanted(self, attributes: Mapping[str, str]) -> Wanted:
        """Return what a client with these attributes shall push."""
        names = tuple(name for name, each in self._subscriptions.items() if each.selects(attributes))
        found = self._kinds.get(names)
        if found is None:
            if len(self._kinds) >= _MOST_KINDS:
                self._kinds.clear()
            found = self._kinds[names] = _combined([self._subscriptions[name] for name in names])
        return found


def _combined(subscriptions: list[Subscription]) -> Wanted:
    """Return all metrics of the subscriptions, with the shortest interval."""
    metrics = sorted(frozenset[str]().union(*(each.metrics for each in subscriptions)))
    if ALL_METRICS in metrics:
        metrics = [ALL_METRICS]
    interval_ms = min([DEFAULT_INTERVAL_MS, *(each.interval_ms for each in subscriptions)])
    return Wanted(tuple(metrics), interval_ms, crc32c(f"{','.join(metrics)} {interval_ms}".encode(errors="replace")))


def _too_early(attributes: Mapping[str, str]) -> ProtocolError:
    message = (
        f"client instance {attributes['client_instance_id']} sends its request before the push interval has passed"
    )
    return ProtocolError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, message)
