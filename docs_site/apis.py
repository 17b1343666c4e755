"""Generate the table of the APIs that the broker serves, beside those of Apache Kafka."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from docs_site.kafka_apis import APIS, KAFKA_VERSION
from docs_site.markdown import anchor, summary, table
from oncelog.broker.requests.apis import PRODUCE_ADVERTISED_MIN, SERVED
from oncelog.protocol.apis import ApiKey

WHY_NOT = {
    "ReplicaLogDirs": "a partition stays in its log directory",
    "UnregisterBroker": "not there yet",
    "Raft": "there is no Raft log: the metadata are in a store",
    "Share": "not there yet: share groups (KIP-932)",
    "Streams": "not there yet: groups of Kafka Streams (KIP-1071)",
}
"""By a part of the API's name."""


def page() -> str:
    """Return the page."""
    return "\n".join(
        [
            "# APIs and versions\n",
            f"The APIs of Kafka's protocol that the broker serves, beside those of an Apache Kafka {KAFKA_VERSION} "
            "broker. For differences in behaviour, see [compatibility](../compatibility.md).\n",
            f"ApiVersions reports Produce from version {PRODUCE_ADVERTISED_MIN} on, as Apache Kafka does for old "
            f"clients. Both reject versions below {SERVED[ApiKey.PRODUCE].min_version}. InitProducerId 6 (KIP-939) is "
            f"in Apache Kafka {KAFKA_VERSION}, too, but not served there.\n",
            "## Served { #served }\n",
            table(("key", "API", "oncelog", f"Apache Kafka {KAFKA_VERSION}", "what the broker does"), _served()),
            "## Not served { #not-served }\n",
            "The broker does not list these APIs in its response to ApiVersions, so clients do not send them.\n",
            table(("key", "API", f"Apache Kafka {KAFKA_VERSION}", "why not"), _not_served()),
        ]
    )


def api_name(key: int) -> str:
    """Return the name of an API as Kafka's protocol guide writes it."""
    return APIS[key].name


def _served() -> Iterator[tuple[str, ...]]:
    for key, served in sorted(SERVED.items()):
        ours = _versions(served.min_version, served.max_version)
        kafka = _versions(APIS[key].min_version, APIS[key].max_version)
        yield anchor(api_name(key)) + str(int(key)), api_name(key), ours, kafka, _described(served.handler)


def _described(handler: str) -> str:
    """Return the first paragraph of the docstring of an API's handler module."""
    module = importlib.import_module(f"oncelog.broker.handlers.{handler.partition('.')[0]}")
    return summary(module)


def _not_served() -> Iterator[tuple[str, ...]]:
    for key, api in sorted(APIS.items()):
        if key not in SERVED:
            yield str(key), api.name, _versions(api.min_version, api.max_version), _reason(api.name)


def _reason(name: str) -> str:
    """Return why an API is not served. Raises ValueError unless exactly one reason is known."""
    (reason,) = (reason for part, reason in WHY_NOT.items() if part in name)
    return reason


def _versions(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"
