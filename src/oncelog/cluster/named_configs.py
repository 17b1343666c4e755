"""Store the settings of client metrics subscriptions (KIP-714) and groups (KIP-848) in the versioned tree.

The node of a resource is `/config/client-metrics/NAME` or `/config/groups/NAME`. In the path, the name is
percent-encoded. A resource without settings has no node. Reads and writes block.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote, unquote

import msgspec

from oncelog.cluster import configs
from oncelog.cluster.changes import ChangeLog, until_written
from oncelog.cluster.store import (
    Create,
    Delete,
    MetadataStore,
    Node,
    Set,
    read_children,
)

_log = logging.getLogger("oncelog.cluster")


class NamedConfigs(NamedTuple):
    """The settings of all resources of a kind. `what` is the kind in messages."""

    parent: str
    what: str

    def path(self, name: str) -> str:
        """Return the path of a resource's settings."""
        return f"{self.parent}/{quote(name, safe='')}"

    def touched(self, paths: Iterable[str]) -> list[str]:
        """Return the names of the resources whose paths are among these."""
        return [unquote(path[len(self.parent) + 1 :]) for path in paths if path.startswith(f"{self.parent}/")]

    def read_all(self, store: MetadataStore) -> dict[str, dict[str, str]]:
        """Return the settings of all resources. Those that cannot be read are logged and omitted."""
        nodes = read_children(store, self.parent)
        found = {unquote(name): self._decoded(unquote(name), node) for name, node in nodes.items()}
        return {name: settings for name, settings in found.items() if settings is not None}

    def read_changed(
        self, store: MetadataStore, known: Mapping[str, Mapping[str, str]], names: Sequence[str]
    ) -> dict[str, Mapping[str, str]]:
        """Return `known` with the settings that these resources have now."""
        after = dict(known)
        for name, node in zip(names, store.get_many([self.path(name) for name in names]), strict=True):
            settings = None if node is None else self._decoded(name, node)
            if settings is None:
                after.pop(name, None)
            else:
                after[name] = settings
        return after

    def update(self, changes: ChangeLog, name: str, change: configs.Change) -> dict[str, str]:
        """Change the settings of a resource, and return them. The change of a damaged node begins with no settings.

        Raises REQUEST_TIMED_OUT, and the ProtocolError of `change`.
        """
        path = self.path(name)

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

        return until_written(self.what, write)

    def _decoded(self, name: str, node: Node) -> dict[str, str] | None:
        try:
            return configs.decode(node)
        except (msgspec.MsgspecError, ValueError) as error:
            _log.error("cannot read the settings of the %s %r: %s", self.what, name, error)
            return None


CLIENT_METRICS = NamedConfigs("/config/client-metrics", "client metrics subscription")
GROUPS = NamedConfigs("/config/groups", "group")
