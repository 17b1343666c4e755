"""The options of the sink: the output topic, the prefix, and the permissions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from oncelog.spark.commit.errors import MisuseError
from oncelog.spark.commit.names import check_prefix, decision_topic
from oncelog.spark.commit.ownership import Permission
from oncelog.spark.formats.field import FieldFormat
from oncelog.spark.formats.options import field_formats
from oncelog.spark.option_tables import DEFAULT_BOOTSTRAP_MS, SINK_OPTIONS, SOURCE_OPTIONS
from oncelog.spark.options import Options

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
OVERHEAD_BYTES = 1024
"""Bytes of `kafka.max.request.size` that are reserved for everything but records."""
MAX_INT = (1 << 31) - 1
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")

DEFAULT_TIMEOUT_MS = 900_000
"""The tasks' transaction.timeout.ms. It is the default of the broker's transaction.max.timeout.ms."""


@dataclass(frozen=True)
class SinkOptions:
    """The checked options of the sink."""

    prefix: str
    decision_topic: str
    topic: str | None
    permission: Permission
    timeout_ms: int
    two_phase: str
    compression: str
    max_request_size: int
    app: tuple[str, int] | None
    formats: tuple[FieldFormat, ...]
    register: bool
    client: dict[str, Any] = field(hash=False)
    bootstrap_ms: int = DEFAULT_BOOTSTRAP_MS
    checkpoint: str = ""
    """The place of a streaming query's checkpoint, or "" if Spark does not report it."""


def _check_topic(option: str, name: str) -> str:
    """Return the name. Raises MisuseError if no topic can have it."""
    if not _TOPIC.fullmatch(name) or name in (".", ".."):
        raise MisuseError(f"option {option}={name!r}: a topic name must be 1 to 249 letters, digits, '.', '_' or '-'")
    return name


def sink_options(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Return the checked options. Raises MisuseError."""
    options = Options(given, (*SINK_OPTIONS, *SOURCE_OPTIONS))
    prefix = check_prefix(
        options.required(
            "transactionalIdPrefix", "a name that the query has at every start, and that no other query has"
        )
    )
    app, version = options.text("txnAppId"), options.number("txnVersion", least=0)
    if (app is None) != (version is None):
        raise MisuseError("options txnAppId and txnVersion must be set together")
    if app is not None and streaming:
        raise MisuseError(
            "options txnAppId and txnVersion are for batch writes, because a streaming query has ids; omit them"
        )
    accepted = options.number("acceptReplay", least=0)
    topic, decisions = options.text("topic"), options.text("decisionTopic") or decision_topic(prefix)
    if topic is not None:
        _check_topic("topic", topic)
    if topic == _check_topic("decisionTopic", decisions):
        raise MisuseError(f"option decisionTopic={decisions!r}: it must not be the topic of option topic")
    return SinkOptions(
        prefix=prefix,
        decision_topic=decisions,
        topic=topic,
        permission=Permission(options.flag("adoptCheckpoint"), options.flag("takeOver"), accepted),
        timeout_ms=options.number("kafka.transaction.timeout.ms", most=MAX_INT) or DEFAULT_TIMEOUT_MS,
        two_phase=options.choice("twoPhaseCommit", ("auto", "true", "false"), "auto"),
        compression=options.choice("kafka.compression.type", COMPRESSIONS, "none"),
        max_request_size=options.number("kafka.max.request.size", least=2 * OVERHEAD_BYTES, most=MAX_INT) or 1 << 20,
        app=None if app is None or version is None else (app, version),
        formats=field_formats(options, reading=False),
        register=options.flag("autoRegister"),
        client=options.client(),
        bootstrap_ms=options.bootstrap_ms(),
        checkpoint=options.text("checkpointLocation") or "",
    )
