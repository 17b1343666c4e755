"""Options of source and sink: names and meaning of Spark's Kafka connector, checked before anything happens."""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from oncelog.client.connections.pool import parse_bootstrap
from oncelog.errors import ConfigError, ConnectionFailedError
from oncelog.spark.commit.errors import MisuseError, SinkError
from oncelog.spark.commit.names import check_prefix, decision_topic
from oncelog.spark.commit.ownership import Permission

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
"""Further settings of the client that mean something here, and to whom."""
STREAM_OPTIONS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "groupIdPrefix")
FACES = {
    **dict.fromkeys(SOURCE_OPTIONS, SOURCE),
    **dict.fromkeys(STREAM_OPTIONS, STREAM),
    **dict.fromkeys(SINK_OPTIONS, SINK),
    **OURS,
}
del FACES["bootstrapTimeoutMs"]  # of all
"""Who goes by an option. One dictionary may serve all: what is another's is passed over, with a warning."""

IDLE = {
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
"""Accepted without an effect: whole Arrow batches are written and read at a time."""

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

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
OVERHEAD_BYTES = 1024
"""Kept free of `kafka.max.request.size` for what is not records."""
MAX_INT = (1 << 31) - 1
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")

DEFAULT_TIMEOUT_MS = 900_000
"""transaction.timeout.ms of the tasks: as long as a broker allows if its transaction.max.timeout.ms is the default."""


DEFAULT_BOOTSTRAP_MS = 30_000
"""How long the driver looks for a first broker. Calls later on have kafka.default.api.timeout.ms."""


class Options:
    """The options of a data source, by case-insensitive name. MisuseError names what is wrong."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        self._known = known
        self._check_names(given)

    def _check_names(self, given: Mapping[str, str]) -> None:
        kafka = {name.lower() for name in (BOOTSTRAP, *CLIENT, *OURS, *IDLE)}
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
        """An option as it is given."""
        return self._given.get(name.lower(), default)

    def required(self, name: str, why: str) -> str:
        """An option that must be given."""
        value = self.text(name)
        if not value:
            raise MisuseError(f"option {name} is missing: {why}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """true or false."""
        value = (self.text(name) or str(default)).lower()
        if value not in ("true", "false"):
            raise MisuseError(f"option {name}={value!r}: true or false")
        return value == "true"

    def choice(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        """One of these words, in any case."""
        value = self.text(name) or default
        if value.lower() not in allowed:
            raise MisuseError(f"option {name}={value!r}: one of {', '.join(allowed)}")
        return value.lower()

    def number(self, name: str, default: int | None = None, *, least: int = 1, most: int = MAX_LONG) -> int | None:
        """A whole number."""
        value = self.text(name)
        if value is None:
            return default
        if not _NUMBER.fullmatch(value.strip()) or not least <= int(value) <= most:
            upto = "on" if most == MAX_LONG else f"to {most}"
            raise MisuseError(f"option {name}={value!r}: a whole number from {least} {upto}")
        return int(value)

    def duration_ms(self, name: str, default: int) -> int:
        """A time as Spark writes it: `15m`, `30s`, `200ms`; without a unit milliseconds."""
        value = self.text(name)
        if value is None:
            return default
        match = _DURATION.fullmatch(value.strip().lower())
        if match is None:
            raise MisuseError(f"option {name}={value!r}: a time such as 200ms, 30s, 15m, 2h, 1d")
        return int(match[1]) * UNITS_MS[match[2] or "ms"]

    def json(self, name: str) -> Any:
        """A JSON text, None if not given."""
        value = self.text(name)
        if value is None:
            return None
        try:
            return json.loads(value)
        except ValueError as error:
            raise MisuseError(f"option {name}={value!r}: not JSON ({error})") from None

    def bootstrap_ms(self) -> int:
        """Option bootstrapTimeoutMs."""
        return self.number("bootstrapTimeoutMs", DEFAULT_BOOTSTRAP_MS) or DEFAULT_BOOTSTRAP_MS

    def client(self) -> dict[str, Any]:
        """Arguments of the client, its bootstrap servers among them."""
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


def warn_of_idle(given: Mapping[str, str], *faces: str) -> None:
    """Tell, once a process, which of the options have no effect on any of these faces."""
    small = {name.lower() for name in given}
    idle = [name for name, face in FACES.items() if name.lower() in small and face not in faces]
    if idle:
        _warn(f"options without effect on {faces[0]}: {', '.join(idle)}")


@cache
def _warn(what: str) -> None:
    log.warning("%s", what)


def reach(cluster: BlockingCluster, servers: str, timeout_ms: int) -> None:
    """On the driver, before anything else: some broker answers, or a SinkError names the option that is wrong."""
    try:
        cluster.reach(timeout_ms)
    except ConnectionFailedError as error:
        raise SinkError(f"option {BOOTSTRAP}={servers}: {error} (bootstrapTimeoutMs = {timeout_ms})") from error


@dataclass(frozen=True)
class SinkOptions:
    """What the sink is told."""

    prefix: str
    decision_topic: str
    topic: str | None
    permission: Permission
    timeout_ms: int
    compression: str
    max_request_size: int
    app: tuple[str, int] | None
    client: dict[str, Any] = field(hash=False)
    bootstrap_ms: int = DEFAULT_BOOTSTRAP_MS
    checkpoint: str = ""
    """Where a streaming query keeps its own; "" where Spark does not tell."""


def _check_topic(option: str, name: str) -> str:
    """The name itself; MisuseError if it can be none of a topic."""
    if not _TOPIC.fullmatch(name) or name in (".", ".."):
        raise MisuseError(f"option {option}={name!r}: no topic's name: 1 to 249 letters, digits, '.', '_' or '-'")
    return name


def sink_options(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """The checked options of a sink; MisuseError."""
    options = Options(given, (*SINK_OPTIONS, *SOURCE_OPTIONS))
    prefix = check_prefix(
        options.required("transactionalIdPrefix", "a name for this sink, the same at every start, of no other query")
    )
    app, version = options.text("txnAppId"), options.number("txnVersion", least=0)
    if (app is None) != (version is None):
        raise MisuseError("options txnAppId and txnVersion belong together")
    if app is not None and streaming:
        raise MisuseError("options txnAppId and txnVersion are for batch writes: a streaming query has its own ids")
    accepted = options.number("acceptReplay", least=0)
    topic, decisions = options.text("topic"), options.text("decisionTopic") or decision_topic(prefix)
    if topic is not None:
        _check_topic("topic", topic)
    if topic == _check_topic("decisionTopic", decisions):
        raise MisuseError(f"option decisionTopic={decisions!r} is option topic: decisions need a topic of their own")
    return SinkOptions(
        prefix=prefix,
        decision_topic=decisions,
        topic=topic,
        permission=Permission(options.flag("adoptCheckpoint"), options.flag("takeOver"), accepted),
        timeout_ms=options.number("kafka.transaction.timeout.ms", most=MAX_INT) or DEFAULT_TIMEOUT_MS,
        compression=options.choice("kafka.compression.type", COMPRESSIONS, "none"),
        max_request_size=options.number("kafka.max.request.size", least=2 * OVERHEAD_BYTES, most=MAX_INT) or 1 << 20,
        app=None if app is None or version is None else (app, version),
        client=options.client(),
        bootstrap_ms=options.bootstrap_ms(),
        checkpoint=options.text("checkpointLocation") or "",
    )
