"""Store the client metrics subscriptions of a cluster in the versioned tree (KIP-714). Reads and writes block.

The node `/config/client-metrics/NAME` has the settings of one subscription. In the path, the name is percent-encoded.
A subscription without settings has no node.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from urllib.parse import quote, unquote

import msgspec

from oncelog.cluster import configs
from oncelog.cluster.changes import ChangeLog, until_written
from oncelog.cluster.store import (
    Create,
    Delete,
    MetadataStore,
    Set,
    read_children,
)

SUBSCRIPTIONS = "/config/client-metrics"

_log = logging.getLogger("oncelog.cluster")


def subscription_path(name: str) -> str:
    """Return the path of a subscription's settings."""
    return f"{SUBSCRIPTIONS}/{quote(name, safe='')}"


def touched(paths: Iterable[str]) -> bool:
    """Return whether one of the paths is a subscription's."""
    return any(path.startswith(f"{SUBSCRIPTIONS}/") for path in paths)


def read_all(store: MetadataStore) -> dict[str, dict[str, str]]:
    """Return the settings of all subscriptions. Those that cannot be read are logged and omitted."""
    found = {}
    for name, node in read_children(store, SUBSCRIPTIONS).items():
        try:
            found[unquote(name)] = configs.decode(node)
        except (msgspec.MsgspecError, ValueError) as error:
            _log.error("cannot read the client metrics subscription %r: %s", unquote(name), error)
    return found


def update(changes: ChangeLog, name: str, change: configs.Change) -> dict[str, str]:
    """Change the settings of a subscription, and return them. The change of a damaged node begins with no settings.

    Raises REQUEST_TIMED_OUT, and the ProtocolError of `change`.
    """
    path = subscription_path(name)

    def write() -> dict[str, str]:
        node = changes.store.get(path) if changes.store.exists(path) else None
        wanted = change(configs.decode_for_change(path, node) or {})
        if node is not None:
            changes.write(
                [Set(path, configs.encode(wanted), node.version) if wanted else Delete(path, node.version)], path
            )
        elif wanted:
            changes.write([Create(path, configs.encode(wanted))], path)
        return wanted

    return until_written("client metrics subscription", write)
