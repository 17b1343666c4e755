"""The options of source and sink: defaults and descriptions, who uses them, and which of Kafka's have no effect.

Names and meanings are those of Spark's Kafka connector.
"""

from __future__ import annotations

from typing import NamedTuple

DEFAULT_BOOTSTRAP_MS = 30_000
"""How long the driver waits for the first response of a broker. Later calls have kafka.default.api.timeout.ms."""
DEFAULT_REGISTRY_MS = 10_000
"""How long a request to the schema registry may take, with its retries."""


class SparkOption(NamedTuple):
    """Default and description of an option, for the reference."""

    default: str
    doc: str
    user: str = ""
    """The part that uses a setting of Kafka's, if not all do."""
    argument: str = ""
    """The argument of `oncelog.client.BlockingCluster` that gets the value: a number if the default is one."""


SHARED_OPTIONS: dict[str, SparkOption] = {
    "valueFormat": SparkOption(
        "bytes",
        (
            "How values are encoded: `bytes`, `string` (UTF-8), `json` or `avro`. JSON and Avro become a struct (or "
            "what the schema says). `avro` needs `oncelog[avro]`."
        ),
    ),
    "valueSchema": SparkOption(
        "",
        (
            "Type of the values: for `json`, DDL such as `id bigint, tags array<string>`; for `avro`, the schema's "
            "JSON. With `schemaRegistryUrl`, values that were written with another schema are converted to this one "
            "by Avro's rules. By default, it is the latest schema of `valueSubject` when the query starts. A sink "
            "writes with it, and may omit it for `json`."
        ),
    ),
    "valueSubject": SparkOption(
        "TOPIC-value", "Subject in the schema registry: of the latest schema, or of `valueSchema`."
    ),
    "valueSubjectStrategy": SparkOption(
        "topic",
        (
            "Without `valueSubject`, how the subject is named: `topic` (TOPIC-value), `record` (the full name of the "
            "record) or `topic_record` (TOPIC-RECORD), as Confluent's TopicNameStrategy, RecordNameStrategy and "
            "TopicRecordNameStrategy."
        ),
    ),
    "valueRecordName": SparkOption(
        "", "Full name of the record, for `valueSubjectStrategy`. By default, that of `valueSchema`."
    ),
    "keyFormat": SparkOption("bytes", "How keys are encoded, as for `valueFormat`."),
    "keySchema": SparkOption("", "Type of the keys, as for `valueSchema`."),
    "keySubject": SparkOption("TOPIC-key", "Subject of the keys, as for `valueSubject`."),
    "keySubjectStrategy": SparkOption(
        "topic", "How the subject of the keys is named, as for `valueSubjectStrategy`: `topic` is TOPIC-key."
    ),
    "keyRecordName": SparkOption("", "Full name of the record in the keys, as for `valueRecordName`."),
    "schemaRegistryUrl": SparkOption(
        "",
        (
            "Schema registry with Confluent's REST API, or several URLs of it with commas. Avro values then begin with "
            "a zero byte and the id of their schema in four bytes."
        ),
    ),
    "schemaRegistryUsername": SparkOption("", "User name for the registry's basic authentication."),
    "schemaRegistryPassword": SparkOption("", "Password for the registry's basic authentication."),
    "schemaRegistryToken": SparkOption("", "Bearer token for the registry. Give this, or user name and password."),
    "schemaRegistryCaFile": SparkOption(
        "", "PEM file with the authorities that the registry's certificate is checked with."
    ),
    "schemaRegistryTimeoutMs": SparkOption(
        str(DEFAULT_REGISTRY_MS),
        "How long a request to the registry may take, with its retries, in ms. Then the query fails.",
    ),
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
    "schemaIdsInHeaders": SparkOption(
        "false",
        (
            "Whether ids of schemas may also be in headers, where Confluent's HeaderSchemaIdSerializer writes them. "
            "Needs `avro` and `schemaRegistryUrl`."
        ),
    ),
    "flatten": SparkOption("false", "Whether the fields of a struct in `value` are columns of their own."),
    "badRecords": SparkOption(
        "fail",
        (
            "What happens to keys and values that cannot be read: `fail` (the error names topic, partition and "
            "offset), `null`, or `column`: null, and their bytes are in the column `_corrupt_record` or `_corrupt_key`."
        ),
    ),
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
    "autoRegister": SparkOption(
        "false",
        (
            "Whether the sink registers `valueSchema` and `keySchema` in the schema registry. Otherwise, they must be "
            "there, or not be given: then the sink writes with the latest schema of the subject."
        ),
    ),
    "twoPhaseCommit": SparkOption(
        "auto",
        (
            "Whether the tasks' transactions have no timeout (KIP-939), so that the sink can commit a decided batch "
            "whenever its driver returns. `auto`: if the brokers permit it; `true`: the query fails otherwise."
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
    **{name: SOURCE for name in SOURCE_OPTIONS if name not in SHARED_OPTIONS},
    **dict.fromkeys(STREAM_OPTIONS, STREAM),
    **{name: SINK for name in SINK_OPTIONS if name not in SHARED_OPTIONS},
    **{name: each.user for name, each in KAFKA_OPTIONS.items() if each.user},
}
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
