"""The page of a broker's settings, each with where its value comes from."""

from __future__ import annotations

from collections.abc import Iterable

from oncelog.client.admin.configs import SOURCES, ConfigEntry
from oncelog.console.formats import address
from oncelog.console.model import Page, View
from oncelog.console.tables import Column, Row, Table

COLUMNS = (
    Column("name", "Setting", "id"),
    Column("value", "Value"),
    Column("source", "Source", about="Where the value comes from"),
    Column("read_only", "Read-only", about="It changes only at a start"),
)


def rows(entries: Iterable[ConfigEntry]) -> list[Row]:
    """Return a row for each setting, those that differ from the default first. Secrets are not shown."""
    return [
        {
            "name": entry.name,
            "value": "(secret)" if entry.sensitive else entry.value,
            "source": SOURCES.get(entry.source, str(entry.source)),
            "read_only": True if entry.read_only else None,
        }
        for entry in sorted(entries, key=lambda entry: (entry.source, entry.name))
    ]


async def load(view: View) -> Page:
    """Load the settings of a broker, those that differ from the default first. Raises AuthorizationError."""
    brokers = [each.node_id for each in (await view.admin.describe_cluster()).brokers]
    broker = view.number("broker", brokers[0] if brokers else 0)
    entries = await view.admin.describe_config_entries("broker", broker)
    table = Table("settings", "Settings", COLUMNS, view.query).fill(rows(entries))
    choices = [(node, address("settings", broker=node)) for node in brokers]
    return Page("Settings", "settings.html", {"broker": broker}, [table], extra={"choices": choices})
