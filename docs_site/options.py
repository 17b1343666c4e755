"""Generate the reference of the clients' options and of Spark's, from the tables that the code reads them with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from docs_site.markdown import anchor, code, table, text
from oncelog.client.consumer.options import CONSUMER
from oncelog.client.option_readers import Option
from oncelog.client.options import COMMON
from oncelog.client.other_options import OTHER_OPTIONS, OTHER_PREFIXES, Advice, Alias
from oncelog.client.producer.options import PRODUCER
from oncelog.protocol.compression import Codec
from oncelog.spark import option_tables as spark

_SECTIONS: dict[str, tuple[str, Mapping[str, Option]]] = {
    "client": ("All clients", COMMON),
    "producer": ("Producer", {name: each for name, each in PRODUCER.items() if name not in COMMON}),
    "consumer": ("Consumer", {name: each for name, each in CONSUMER.items() if name not in COMMON}),
}


def client_page() -> str:
    """Return the page of the clients' options."""
    parts = [
        "# Client options\n",
        'Options have Kafka\'s names with `_` for `.`: `Producer("localhost:9092", linger_ms=20)`. The second argument '
        'takes Kafka\'s own names: `Producer("localhost:9092", {"linger.ms": 20})`. An unknown name is an error that '
        "suggests the nearest known one. Times are in milliseconds, sizes in bytes.\n",
        "`Admin` has the options of all clients.\n",
    ]
    for kind, (title, options) in _SECTIONS.items():
        rows = (
            (anchor(f"{kind}-{name}") + code(name), code(default(name, options[name].default)), text(options[name].doc))
            for name in sorted(options)
        )
        parts += [f"## {title}\n", table(("option", "default", "what it does"), rows)]
    others = sorted({**OTHER_OPTIONS, **{f"{prefix}*": advice for prefix, advice in OTHER_PREFIXES.items()}}.items())
    instead = ((code(name), text(each.text), each.source) for name, each in others if isinstance(each, Advice))
    aliases = ((code(name), code(each.name)) for name, each in others if isinstance(each, Alias))
    parts += [
        "## librdkafka's names\n",
        "These names of librdkafka (confluent-kafka) are accepted, too.\n",
        table(("librdkafka", "here"), aliases),
        "## Options of other clients that are rejected\n",
        "The error says what to do instead.\n",
        table(("option", "instead", "client"), instead),
    ]
    return "\n".join(parts)


def default(name: str, value: Any) -> str:
    """Return an option's default as a program writes it."""
    if isinstance(value, Codec | bool):
        return (value.name if isinstance(value, Codec) else str(value)).lower()
    if isinstance(value, tuple):
        return ", ".join(value)
    return "all" if name == "acks" else "" if value in (None, "") else str(value)


def spark_page() -> str:
    """Return the page of the Spark source's and sink's options."""
    head = ("option", "default", "what it does")
    parts = [
        "# Spark options\n",
        'Options of `format("oncelog")`. If Spark\'s Kafka connector has an option, name and meaning are the same. '
        "Names are not case-sensitive. The [guide](../spark.md) shows them in use.\n",
    ]
    for title, options in (
        ("Source and sink", spark.SHARED_OPTIONS),
        ("Source", {name: each for name, each in spark.SOURCE_OPTIONS.items() if name not in spark.SHARED_OPTIONS}),
        ("Sink", {name: each for name, each in spark.SINK_OPTIONS.items() if name not in spark.SHARED_OPTIONS}),
        ("Settings of Kafka's clients", spark.KAFKA_OPTIONS),
    ):
        rows = ((anchor(name) + code(name), code(each.default), text(each.doc)) for name, each in options.items())
        parts += [f"## {title}\n", table(head, rows)]
    rejected = ((anchor(name) + code(name), text(reason)) for name, reason in spark.FORBIDDEN.items())
    parts += ["## Rejected settings\n", table(("option", "reason"), rejected)]
    parts += [
        "## Accepted without effect\n",
        "Source and sink move whole Arrow batches and always retry, "
        + "so these settings of Kafka's clients have no effect: "
        + ", ".join(code(name) for name in sorted(spark.NO_EFFECT))
        + ".\n",
        "## TLS and logins\n",
        f"{code('kafka.security.protocol')}, {code('kafka.ssl.*')} and {code('kafka.sasl.*')} are the "
        "[options of the Python clients](client-options.md), with dots.\n",
    ]
    return "\n".join(parts)
