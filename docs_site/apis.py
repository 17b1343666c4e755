"""Generate the table of the APIs that the broker serves, beside those of Apache Kafka."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from docs_site.kafka_apis import APIS, KAFKA_VERSION
from docs_site.markdown import anchor, summary, table
from oncelog.broker.requests.apis import PRODUCE_ADVERTISED_MIN, SERVED
from oncelog.protocol.apis import ApiKey


def page() -> str:
    """Return the page."""
    return "\n".join(
        [
            "# APIs and versions\n",
            f"The APIs of Kafka's protocol that the broker serves, beside those of an Apache Kafka {KAFKA_VERSION} "
            "broker. For differences in behaviour, see [compatibility](../compatibility.md).\n",
            f"ApiVersions reports Produce from version {PRODUCE_ADVERTISED_MIN} on, as Apache Kafka does for old "
            f"clients. Both reject versions below {SERVED[ApiKey.PRODUCE].min_version}.\n",
            "## Served { #served }\n",
            table(("key", "API", "oncelog", f"Apache Kafka {KAFKA_VERSION}", "what the broker does"), _served()),
            "## Not served { #not-served }\n",
            "The broker does not list these APIs in its response to ApiVersions, so clients do not send them.\n",
            table(("key", "API", f"Apache Kafka {KAFKA_VERSION}"), _not_served()),
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
            yield str(key), api.name, _versions(api.min_version, api.max_version)


def _versions(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"
