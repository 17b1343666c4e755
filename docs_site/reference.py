"""Name every page and picture that is generated, with its generator."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from docs_site import (
    apis,
    broker_metrics,
    command_line,
    error_pages,
    metrics,
    options,
    permissions,
    python_client,
    settings,
    states,
)

PAGES: dict[str, Callable[[], str]] = {
    "reference/python-client.md": python_client.page,
    "reference/client-options.md": options.client_page,
    "reference/spark-options.md": options.spark_page,
    "reference/broker-settings.md": settings.broker_page,
    "reference/topic-settings.md": settings.topic_page,
    "reference/metrics.md": metrics.page,
    "reference/broker-metrics.md": broker_metrics.page,
    "reference/errors.md": error_pages.page,
    "reference/command-line.md": command_line.page,
    "reference/apis.md": apis.page,
    "reference/permissions.md": permissions.page,
    "reference/state-machines.md": states.page,
}
"""The generated pages, by their path under `docs/`."""


def generated() -> Iterator[tuple[str, str]]:
    """Yield the path under `docs/` and the content of each generated file."""
    for path, page in PAGES.items():
        yield path, page()
    for name, machine in states.MACHINES.items():
        yield f"reference/{name}.svg", states.drawing(machine)
