"""The options that source and sink share, and the functions that read option values.

Names and meanings are those of Spark's Kafka connector. Options are checked before any request is sent.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Collection, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from oncelog.client.connections.pool import parse_bootstrap
from oncelog.client.options import is_security, read_security
from oncelog.client.other_options import advice_for_unsupported
from oncelog.errors import AuthenticationError, ConfigError, ConnectionFailedError
from oncelog.spark.commit.errors import MisuseError, SinkError
from oncelog.spark.user_errors import in_spark

if TYPE_CHECKING:
    from oncelog.client.blocking import BlockingCluster

log = logging.getLogger("oncelog.spark")

DEFAULT_BOOTSTRAP_MS = 30_000
"""How long the driver waits for the first response of a broker. Later calls have kafka.default.api.timeout.ms."""


class SparkOption(NamedTuple):
    """Default and description of an option, for the reference."""

    default: str
    doc: str
    user: str = ""
    """The part that uses a setting of Kafka's, if not all do."""
    argument: str = ""
    """The argument of `oncelog.client.BlockingCluster` that gets the value: a number if the default is one."""


SHARED_OPTIONS: dict[str, SparkOption] = {
    "bootstrapTimeoutMs": SparkOption(
        str(DEFAULT_BOOTSTRAP_MS), "How long the driver waits until a first broker answers, in ms."
    ),
}
SOURCE_OPTIONS: dict[str, SparkOption] = {
    "subscribe": SparkOption(
        "", "Topics to read, with commas between their names. Give one of `subscribe`, `subscribePattern` and `assign`."
    ),
    "subscribePattern": SparkOption("", "Regular expression for the names of the topics to read."),
    "assign": SparkOption("", 'Partitions to read, as JSON: `{"words": [0, 1]}`.'),
    "startingOffsets": SparkOption(
        "latest for streams, earliest for batch reads",
        (
            'Where to begin without a checkpoint: `earliest`, `latest`, or JSON by partition: `{"words": {"0": 23, '
            '"1": -2}}` (-2 earliest, -1 latest). A batch read cannot begin at `latest`.'
        ),
    ),
    "endingOffsets": SparkOption(
        "latest", "Where a batch read ends: `latest`, or JSON by partition, as for `startingOffsets`."
    ),
    "startingTimestamp": SparkOption(
        "",
        (
            "Begin at the first record at or after this time, in ms since the epoch. Overrides the other options for "
            "the beginning."
        ),
    ),
    "endingTimestamp": SparkOption(
        "", "End a batch read before the first record at or after this time, in ms since the epoch."
    ),
    "startingOffsetsByTimestamp": SparkOption(
        "", '`startingTimestamp` by partition, as JSON: `{"words": {"0": 1700000000000}}`. Overrides `startingOffsets`.'
    ),
    "endingOffsetsByTimestamp": SparkOption("", "`endingTimestamp` by partition, as JSON. Overrides `endingOffsets`."),
    "startingOffsetsByTimestampStrategy": SparkOption(
        "error",
        "What to do if a partition has no record at or after the time: `error`, or `latest` (begin at the end).",
    ),
    "maxOffsetsPerTrigger": SparkOption(
        "",
        (
            "Maximum number of offsets that a micro-batch reads, over all partitions. Each partition gets a share that "
            "depends on the number of its unread records, not on their time. So with a watermark, Spark may drop rows."
        ),
    ),
    "minOffsetsPerTrigger": SparkOption(
        "",
        (
            "A micro-batch waits until there are this many new offsets, or until `maxTriggerDelay` has passed. With "
            "the trigger `availableNow`, it does not wait."
        ),
    ),
    "maxTriggerDelay": SparkOption(
        "15m", "Longest time that `minOffsetsPerTrigger` delays a micro-batch: `200ms`, `30s`, `15m`, `2h`, `1d`."
    ),
    "minPartitions": SparkOption("", "Minimum number of Spark tasks to read with: large partitions are divided."),
    "maxRecordsPerPartition": SparkOption(
        "", "Maximum number of offsets per Spark task: larger partitions are divided."
    ),
    "failOnDataLoss": SparkOption(
        "true",
        (
            "Whether a query fails if records that it has not read are gone: retention, a deleted topic or partition, "
            "a topic that was deleted and created again. If `false`, it logs a warning and continues."
        ),
    ),
    "includeHeaders": SparkOption("false", "Whether rows have the column `headers`."),
    "groupIdPrefix": SparkOption(
        "",
        (
            "Group that a stream commits its progress to, so that lag tools show it. Nothing is appended to the name. "
            "The group is one batch late, because Spark reports a batch when it plans the next one. "
            "The checkpoint, not the group, decides where a query continues."
        ),
    ),
    "fetchOffset.numRetries": SparkOption(
        "3", "How often a query looks up the end offsets if brokers report lower ones than it has already read."
    ),
    "fetchOffset.retryIntervalMs": SparkOption("1000", "Pause between these attempts, in ms."),
    "kafkaConsumer.pollTimeoutMs": SparkOption("120000", "How long a task waits for records that must exist, in ms."),
    **SHARED_OPTIONS,
}
SINK_OPTIONS: dict[str, SparkOption] = {
    "topic": SparkOption("", "Topic of rows that have no column `topic`. The sink does not create it."),
    "transactionalIdPrefix": SparkOption(
        "",
        (
            "Required. Name of this query for its whole life: the same at every start, and used by no other query. "
            "Transactional ids begin with it."
        ),
    ),
    "decisionTopic": SparkOption(
        "<prefix>-commits",
        (
            "Topic in which the sink records which batches are committed. The sink creates it. No other prefix may use "
            "it. If it is deleted, the sink cannot recognize a batch that Spark replays."
        ),
    ),
    "adoptCheckpoint": SparkOption(
        "false",
        (
            "Accept a checkpoint that is ahead of the sink, for a query that moved here from another sink. Set it for "
            "one start, then remove it."
        ),
    ),
    "takeOver": SparkOption(
        "false",
        (
            "Replace the query that used the prefix before and never runs again, for example after its checkpoint was "
            "deleted. Set it for one start, then remove it."
        ),
    ),
    "acceptReplay": SparkOption(
        "",
        (
            "Id of a committed batch (or a `txnVersion`) for which Spark now writes other rows or offsets, for "
            "example because the source has lost rows. The sink keeps the committed batch and continues. It also "
            "accepts a `txnVersion` below the last one."
        ),
    ),
    "txnAppId": SparkOption(
        "",
        (
            "Batch writes: name of the writing program. With the same `txnAppId` and `txnVersion` as the last write, "
            "the sink writes nothing."
        ),
    ),
    "txnVersion": SparkOption(
        "", "Batch writes: number of this write. It must increase: the sink rejects a version below the last one."
    ),
    **SHARED_OPTIONS,
}
BOOTSTRAP = "kafka.bootstrap.servers"

SOURCE, STREAM, SINK = "a source", "a streaming read", "a sink"
STREAM_OPTIONS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "groupIdPrefix")
KAFKA_OPTIONS: dict[str, SparkOption] = {
    "kafka.bootstrap.servers": SparkOption("", "Required. Brokers to connect to first, as `host:port,host:port`."),
    "kafka.isolation.level": SparkOption(
        "read_committed",
        "Source: `read_committed` reads no records of open and aborted transactions, `read_uncommitted` reads all.",
        SOURCE,
    ),
    "kafka.group.id": SparkOption("", "Streams: the same as `groupIdPrefix`, and takes precedence over it.", STREAM),
    "kafka.max.partition.fetch.bytes": SparkOption(
        "8388608", "Source: maximum bytes of one partition in the response to a fetch.", SOURCE
    ),
    "kafka.client.rack": SparkOption(
        "",
        "Source: rack of the executors. Tasks then read from a replica in that rack, if the brokers allow it.",
        SOURCE,
    ),
    "kafka.transaction.timeout.ms": SparkOption(
        "900000",
        (
            "Sink: the coordinator aborts a task's transaction after this time. Tasks and commit must complete 60 s "
            "earlier. For longer batches, raise it together with the broker's `transaction.max.timeout.ms`."
        ),
        SINK,
    ),
    "kafka.compression.type": SparkOption("none", "Sink: codec of batches: none, gzip, snappy, lz4 or zstd.", SINK),
    "kafka.max.request.size": SparkOption(
        "1048576", "Sink: largest request, and therefore largest record, in bytes.", SINK
    ),
    "kafka.client.id": SparkOption("oncelog", "Name of the client in requests.", argument="client_id"),
    "kafka.request.timeout.ms": SparkOption(
        "30000", "How long to wait for the response to one request.", argument="request_timeout_ms"
    ),
    "kafka.default.api.timeout.ms": SparkOption(
        "60000", "How long a call retries before it fails.", argument="api_timeout_ms"
    ),
    "kafka.retry.backoff.ms": SparkOption(
        "50", "Pause before the first retry of a request. It doubles with each retry.", argument="retry_backoff_ms"
    ),
    "kafka.retry.backoff.max.ms": SparkOption(
        "1000", "Longest pause between two retries of a request.", argument="retry_backoff_max_ms"
    ),
    "kafka.metadata.max.age.ms": SparkOption(
        "300000", "Refresh topics, partitions and leaders after this time.", argument="metadata_max_age_ms"
    ),
    "kafka.socket.connection.setup.timeout.ms": SparkOption(
        "10000", "How long one attempt to connect to a broker may take.", argument="connect_timeout_ms"
    ),
}
"""Settings of Kafka's clients that have an effect here."""

USED_BY = {
    **dict.fromkeys(SOURCE_OPTIONS, SOURCE),
    **dict.fromkeys(STREAM_OPTIONS, STREAM),
    **dict.fromkeys(SINK_OPTIONS, SINK),
    **{name: each.user for name, each in KAFKA_OPTIONS.items() if each.user},
}
del USED_BY["bootstrapTimeoutMs"]  # every part uses it
"""Option -> the part that uses it. Source and sink may get the same options, and warn of those without effect."""

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
    "kafka.retries",
    "kafka.max.in.flight.requests.per.connection",
}
"""Settings of Kafka's that are accepted without effect. oncelog moves whole Arrow batches, and always retries."""

FIXED = {"kafka.acks": ("all", "-1"), "kafka.enable.idempotence": ("true",)}
"""Settings of Kafka's that the sink does not change, with the values that it accepts."""

FORBIDDEN = {
    "kafka.transactional.id": "the sink creates its transactional ids from transactionalIdPrefix; omit the option",
    "kafka.enable.idempotence": "the sink is always idempotent; set it to true, or omit it",
    "kafka.acks": "the sink always waits for all in-sync replicas; set it to all, or omit it",
    "kafka.delivery.timeout.ms": "the sink retries until kafka.transaction.timeout.ms has passed; set that option",
    "kafka.enable.auto.commit": "Spark's checkpoint has the offsets; to show them to lag tools, set groupIdPrefix",
    "kafka.auto.offset.reset": "use startingOffsets instead",
    "kafka.key.serializer": "key and value are binary or string columns; omit the option",
    "kafka.value.serializer": "key and value are binary or string columns; omit the option",
    "kafka.key.deserializer": "key and value are binary columns; cast them in the query",
    "kafka.value.deserializer": "key and value are binary columns; cast them in the query",
    "kafka.interceptor.classes": "interceptors are not supported; omit the option",
}

INLINE_KEYS = ("ssl.keystore.key", "ssl.key.pem", "ssl_keystore_key", "ssl_key_pem")
"""Options with a private key. Spark redacts only options with secret, password, token or access key in name or value
(`spark.redaction.regex`).
"""
MAX_LONG = (1 << 63) - 1
UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_NUMBER = re.compile(r"-?[0-9]{1,19}")
_DURATION = re.compile(r"([0-9]{1,12})\s*(ms|s|m|min|h|d)?")


class Options:
    """The options of a data source, by case-insensitive name. Raises MisuseError, which names the wrong option."""

    def __init__(self, given: Mapping[str, str], known: Collection[str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        self._known = known
        self._check_names(given)

    def _check_names(self, given: Mapping[str, str]) -> None:
        kafka = {name.lower() for name in (*KAFKA_OPTIONS, *NO_EFFECT)}
        lower = {name.lower(): name for name in self._known}
        for name in given:
            small = name.lower()
            if given[name].strip().lower() in FIXED.get(small, ()):
                continue
            if small in FORBIDDEN:
                raise MisuseError(f"option {name}: {FORBIDDEN[small]}")
            if small.startswith("kafka."):
                bare = small.removeprefix("kafka.")
                if small not in kafka and not is_security(bare):
                    if bare.startswith(("ssl.", "sasl.")) and (
                        advice := advice_for_unsupported(bare.replace(".", "_"))
                    ):
                        raise MisuseError(f"option {name}: {in_spark(advice)}")
                    near = difflib.get_close_matches(small, kafka, 1)
                    hint = f"; did you mean {near[0]}?" if near else ""
                    raise MisuseError(f"unknown option {name}{hint}")
            elif small not in lower:
                near = difflib.get_close_matches(small, lower, 1, 0.8)
                if near:
                    raise MisuseError(f"unknown option {name}; did you mean {lower[near[0]]}?")

    def text(self, name: str, default: str | None = None) -> str | None:
        """Return the value of an option as it was given, or the default."""
        return self._given.get(name.lower(), default)

    def required(self, name: str, why: str) -> str:
        """Return the value of a required option. Raises MisuseError; `why` says what the value is."""
        value = self.text(name)
        if not value:
            raise MisuseError(f"option {name} is missing; set it to {why}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """Return the value of an option that is true or false."""
        value = (self.text(name) or str(default)).strip().lower()
        if value not in ("true", "false"):
            raise MisuseError(f"option {name}={value!r}: it must be true or false")
        return value == "true"

    def choice(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        """Return the value of an option that is one of these words, in any case."""
        value = (self.text(name) or default).strip().lower()
        if value not in allowed:
            raise MisuseError(f"option {name}={self.text(name)!r}: it must be one of {', '.join(allowed)}")
        return value

    def number(self, name: str, default: int | None = None, *, least: int = 1, most: int = MAX_LONG) -> int | None:
        """Return the value of an option that is a whole number."""
        value = self.text(name)
        if value is None:
            return default
        if not _NUMBER.fullmatch(value.strip()) or not least <= int(value) <= most:
            limits = f"of at least {least}" if most == MAX_LONG else f"from {least} to {most}"
            raise MisuseError(f"option {name}={value!r}: it must be a whole number {limits}")
        return int(value)

    def duration_ms(self, name: str, default: int) -> int:
        """Return a duration in ms. It is written as in Spark: `15m`, `30s`, `200ms`. Without a unit, it is in ms."""
        value = self.text(name)
        if value is None:
            return default
        match = _DURATION.fullmatch(value.strip().lower())
        if match is None:
            raise MisuseError(f"option {name}={value!r}: it must be a duration such as 200ms, 30s, 15m, 2h or 1d")
        return int(match[1]) * UNITS_MS[match[2] or "ms"]

    def json(self, name: str) -> Any:
        """Return the decoded JSON value of an option, or None if the option is not given."""
        value = self.text(name)
        if value is None:
            return None
        try:
            return json.loads(value)
        except ValueError as error:
            raise MisuseError(f"option {name}={value!r}: it must be JSON ({error})") from None

    def bootstrap_ms(self) -> int:
        """Return the option bootstrapTimeoutMs, in ms."""
        return self.number("bootstrapTimeoutMs", DEFAULT_BOOTSTRAP_MS) or DEFAULT_BOOTSTRAP_MS

    def client(self) -> dict[str, Any]:
        """Return the arguments of the client, with its bootstrap servers."""
        servers = self.required(BOOTSTRAP, "the addresses of brokers, such as host:9092,host:9092")
        try:
            parse_bootstrap(servers)
        except ConfigError:
            raise MisuseError(f"option {BOOTSTRAP}={servers!r}: it must be host:port,host:port") from None
        arguments: dict[str, Any] = {"bootstrap_servers": servers}
        for name, option in KAFKA_OPTIONS.items():
            if not option.argument:
                continue
            value = self.number(name, least=0) if option.default.isdecimal() else self.text(name)
            if value is not None:
                arguments[option.argument] = value
        secured = {name.removeprefix("kafka."): value for name, value in self._given.items() if _is_secured(name)}
        if secured:
            _require_hidden_key(secured)
            try:
                arguments["security"] = read_security(secured)
            except ConfigError as error:
                raise MisuseError(f"option {in_spark(str(error))}") from None
        return arguments


def _require_hidden_key(secured: Mapping[str, str]) -> None:
    """Reject a private key that is not encrypted, because Spark would show it."""
    for name in INLINE_KEYS:
        if (value := secured.get(name)) is not None and "ENCRYPTED" not in value:
            raise MisuseError(
                f"option kafka.{name}: Spark shows this key in plans and in its event log; encrypt it and set "
                "kafka.ssl.key.password, or set kafka.ssl.keystore.location"
            )


def _is_secured(name: str) -> bool:
    return name.startswith("kafka.") and is_security(name.removeprefix("kafka."))


def warn_of_unused(given: Mapping[str, str], *users: str) -> None:
    """Log a warning, once per process, about options without effect on these users, such as "a source"."""
    small = {name.lower() for name in given}
    unused = [name for name, user in USED_BY.items() if name.lower() in small and user not in users]
    if unused:
        warn_once(f"options without effect on {users[0]}: {', '.join(unused)}")


@cache
def warn_once(what: str) -> None:
    """Log a warning, once per process."""
    log.warning("%s", what)


def reach(cluster: BlockingCluster, servers: str, timeout_ms: int) -> None:
    """Wait until a broker answers. Raises SinkError that names the option after `timeout_ms`, or if it rejects us."""
    try:
        cluster.reach(timeout_ms)
    except AuthenticationError as error:
        raise SinkError(f"option {BOOTSTRAP}={servers}: {in_spark(str(error))}") from error
    except ConnectionFailedError as error:
        raise SinkError(
            f"option {BOOTSTRAP}={servers}: {error.message} (bootstrapTimeoutMs = {timeout_ms}). Check the addresses, "
            "and that a broker runs"
        ) from error
