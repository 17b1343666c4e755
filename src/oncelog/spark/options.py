"""Options that source and sink share, and how option values are read.

Names and meaning are those of Spark's Kafka connector. Options are checked before anything else happens.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from oncelog.client.connections.pool import parse_bootstrap
from oncelog.errors import ConfigError, ConnectionFailedError
from oncelog.spark.commit.errors import MisuseError, SinkError

if TYPE_CHECKING:
    from oncelog.client.blocking import BlockingCluster

log = logging.getLogger("oncelog.spark")

SOURCE_OPTIONS = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "groupIdPrefix",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "kafkaConsumer.pollTimeoutMs",
    "bootstrapTimeoutMs",
)
SINK_OPTIONS = (
    "topic",
    "transactionalIdPrefix",
    "decisionTopic",
    "adoptCheckpoint",
    "takeOver",
    "acceptReplay",
    "txnAppId",
    "txnVersion",
    "bootstrapTimeoutMs",
)
BOOTSTRAP = "kafka.bootstrap.servers"

CLIENT = {
    "kafka.client.id": ("client_id", str),
    "kafka.request.timeout.ms": ("request_timeout_ms", int),
    "kafka.default.api.timeout.ms": ("api_timeout_ms", int),
    "kafka.retry.backoff.ms": ("retry_backoff_ms", int),
    "kafka.retry.backoff.max.ms": ("retry_backoff_max_ms", int),
    "kafka.metadata.max.age.ms": ("metadata_max_age_ms", int),
    "kafka.socket.connection.setup.timeout.ms": ("connect_timeout_ms", int),
}
"""Kafka's name: argument of `oncelog.client.BlockingCluster`, type."""

SOURCE, STREAM, SINK = "a source", "a streaming read", "a sink"
OURS = {
    "kafka.isolation.level": SOURCE,
    "kafka.transaction.timeout.ms": SINK,
    "kafka.group.id": STREAM,
    "kafka.compression.type": SINK,
    "kafka.max.partition.fetch.bytes": SOURCE,
    "kafka.max.request.size": SINK,
}
"""More of Kafka's settings that have an effect here, and what uses each."""
STREAM_OPTIONS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "groupIdPrefix")
USED_BY = {
    **dict.fromkeys(SOURCE_OPTIONS, SOURCE),
    **dict.fromkeys(STREAM_OPTIONS, STREAM),
    **dict.fromkeys(SINK_OPTIONS, SINK),
    **OURS,
}
del USED_BY["bootstrapTimeoutMs"]  # everything uses it
"""What uses an option. One dictionary may serve all: each logs a warning about options that it does not use."""

NO_EFFECT = {
    "kafka.linger.ms",
    "kafka.batch.size",
    "kafka.buffer.memory",
    "kafka.fetch.min.bytes",
    "kafka.fetch.max.wait.ms",
    "kafka.fetch.max.bytes",
    "kafka.max.poll.records",
    "kafka.max.poll.interval.ms",
    "kafka.session.timeout.ms",
    "kafka.heartbeat.interval.ms",
    "kafka.check.crcs",
    "kafka.receive.buffer.bytes",
    "kafka.send.buffer.bytes",
    "kafka.connections.max.idle.ms",
    "kafka.reconnect.backoff.ms",
    "kafka.reconnect.backoff.max.ms",
}
"""Accepted without an effect: oncelog writes and reads whole Arrow batches."""

FORBIDDEN = {
    "kafka.transactional.id": "the sink makes its ids from transactionalIdPrefix",
    "kafka.enable.idempotence": "the sink is always idempotent",
    "kafka.acks": "the sink always waits for all in-sync replicas",
    "kafka.enable.auto.commit": "Spark's checkpoint holds the offsets; groupIdPrefix shows them to lag tools",
    "kafka.auto.offset.reset": "use startingOffsets",
    "kafka.key.serializer": "key and value are binary or string columns",
    "kafka.value.serializer": "key and value are binary or string columns",
    "kafka.key.deserializer": "key and value are binary columns: cast them",
    "kafka.value.deserializer": "key and value are binary columns: cast them",
    "kafka.interceptor.classes": "there are no interceptors here",
}

PLAINTEXT_ONLY = ("kafka.ssl.", "kafka.sasl.")

MAX_LONG = (1 << 63) - 1
UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_NUMBER = re.compile(r"-?[0-9]{1,19}")
_DURATION = re.compile(r"([0-9]{1,12})\s*(ms|s|m|min|h|d)?")

DEFAULT_BOOTSTRAP_MS = 30_000
"""How long the driver waits for a first broker. Later calls have kafka.default.api.timeout.ms."""


class Options:
    """The options of a data source, by case-insensitive name. Raises MisuseError, which names the wrong option."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        self._known = known
        self._check_names(given)

    def _check_names(self, given: Mapping[str, str]) -> None:
        kafka = {name.lower() for name in (BOOTSTRAP, *CLIENT, *OURS, *NO_EFFECT)}
        lower = {name.lower(): name for name in self._known}
        for name in given:
            small = name.lower()
            if small in FORBIDDEN:
                raise MisuseError(f"option {name}: {FORBIDDEN[small]}")
            if small == "kafka.security.protocol" or small.startswith(PLAINTEXT_ONLY):
                if given[name] != "PLAINTEXT":
                    raise MisuseError(f"option {name}: oncelog's client has no TLS and no SASL yet, only PLAINTEXT")
            elif small.startswith("kafka."):
                if small not in kafka:
                    near = difflib.get_close_matches(small, kafka, 1)
                    hint = f"; did you mean {near[0]}?" if near else ""
                    raise MisuseError(f"option {name} is not known to oncelog's client{hint}")
            elif small not in lower:
                near = difflib.get_close_matches(small, lower, 1, 0.8)
                if near:
                    raise MisuseError(f"option {name} is not known; did you mean {lower[near[0]]}?")

    def text(self, name: str, default: str | None = None) -> str | None:
        """Return an option as it was given."""
        return self._given.get(name.lower(), default)

    def required(self, name: str, why: str) -> str:
        """Return an option that must be given."""
        value = self.text(name)
        if not value:
            raise MisuseError(f"option {name} is missing: {why}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """Return true or false."""
        value = (self.text(name) or str(default)).lower()
        if value not in ("true", "false"):
            raise MisuseError(f"option {name}={value!r}: true or false")
        return value == "true"

    def choice(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        """Return one of these words, given in any case."""
        value = self.text(name) or default
        if value.lower() not in allowed:
            raise MisuseError(f"option {name}={value!r}: one of {', '.join(allowed)}")
        return value.lower()

    def number(self, name: str, default: int | None = None, *, least: int = 1, most: int = MAX_LONG) -> int | None:
        """Return a whole number."""
        value = self.text(name)
        if value is None:
            return default
        if not _NUMBER.fullmatch(value.strip()) or not least <= int(value) <= most:
            upto = "on" if most == MAX_LONG else f"to {most}"
            raise MisuseError(f"option {name}={value!r}: a whole number from {least} {upto}")
        return int(value)

    def duration_ms(self, name: str, default: int) -> int:
        """Return a time that is written as in Spark: `15m`, `30s`, `200ms`. A number without a unit is milliseconds."""
        value = self.text(name)
        if value is None:
            return default
        match = _DURATION.fullmatch(value.strip().lower())
        if match is None:
            raise MisuseError(f"option {name}={value!r}: a time such as 200ms, 30s, 15m, 2h, 1d")
        return int(match[1]) * UNITS_MS[match[2] or "ms"]

    def json(self, name: str) -> Any:
        """Return the decoded JSON text, or None if the option is not given."""
        value = self.text(name)
        if value is None:
            return None
        try:
            return json.loads(value)
        except ValueError as error:
            raise MisuseError(f"option {name}={value!r}: not JSON ({error})") from None

    def bootstrap_ms(self) -> int:
        """Return option bootstrapTimeoutMs."""
        return self.number("bootstrapTimeoutMs", DEFAULT_BOOTSTRAP_MS) or DEFAULT_BOOTSTRAP_MS

    def client(self) -> dict[str, Any]:
        """Return the arguments of the client, with its bootstrap servers."""
        servers = self.required(BOOTSTRAP, "the brokers, as host:port,host:port")
        try:
            parse_bootstrap(servers)
        except ConfigError:
            raise MisuseError(f"option {BOOTSTRAP}={servers!r}: wanted is host:port,host:port") from None
        arguments: dict[str, Any] = {"bootstrap_servers": servers}
        for name, (argument, kind) in CLIENT.items():
            value = self.text(name) if kind is str else self.number(name, least=0)
            if value is not None:
                arguments[argument] = value
        return arguments


def warn_of_unused(given: Mapping[str, str], *users: str) -> None:
    """Log, once a process, which of the options have no effect on any of these users."""
    small = {name.lower() for name in given}
    unused = [name for name, user in USED_BY.items() if name.lower() in small and user not in users]
    if unused:
        _warn(f"options without effect on {users[0]}: {', '.join(unused)}")


@cache
def _warn(what: str) -> None:
    log.warning("%s", what)


def reach(cluster: BlockingCluster, servers: str, timeout_ms: int) -> None:
    """Wait until a broker answers. Raises SinkError, which names the option, after `timeout_ms`."""
    try:
        cluster.reach(timeout_ms)
    except ConnectionFailedError as error:
        raise SinkError(f"option {BOOTSTRAP}={servers}: {error} (bootstrapTimeoutMs = {timeout_ms})") from error
