"""Store the SCRAM credentials of users in the versioned tree. Reads and writes block.

The node `/config/users/NAME` has a setting for each mechanism. Kafka's ZooKeeper tree has the same nodes. In the path,
a name is percent-encoded. The node also has the user's quotas, which this module leaves (`quota_nodes`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from urllib.parse import quote, unquote

import msgspec

from oncelog.cluster import configs
from oncelog.cluster.changes import ChangeLog, cannot_write, until_written
from oncelog.cluster.store import (
    Create,
    Delete,
    MetadataStore,
    NodeExistsError,
    Operation,
    Set,
    StoreError,
    read_children,
)
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.kinds import SCRAM_MECHANISMS

USERS = "/config/users"
CLIENTS_OF_USER = "clients"
"""The name of the node below a user's that has the quotas of the user's clients."""
DEFAULT_NODE = "<default>"
"""The name of the node with the quotas of all users without their own. The name of a user is encoded differently."""

_log = logging.getLogger("oncelog.cluster")


def user_path(name: str) -> str:
    """Return the path of a user's settings."""
    return f"{USERS}/{quote(name, safe='')}"


def touched(paths: Iterable[str]) -> bool:
    """Return whether one of the paths may have credentials."""
    return any(path.startswith(f"{USERS}/") and path.count("/") == USERS.count("/") + 1 for path in paths)


def read_users(store: MetadataStore) -> dict[str, dict[str, str]]:
    """Return the credentials of all users that have some. Those that cannot be read are logged and omitted."""
    found = {}
    for name, node in read_children(store, USERS).items():
        if name == DEFAULT_NODE:
            continue
        try:
            settings = configs.decode(node)
        except (msgspec.MsgspecError, ValueError):
            _log.error("cannot read the settings of user %r", unquote(name))
            continue
        credentials = {key: text for key, text in settings.items() if key in SCRAM_MECHANISMS}
        if credentials:
            found[unquote(name)] = credentials
    return found


def add_user(changes: ChangeLog, name: str, settings: Mapping[str, str]) -> bool:
    """Add a user with these settings. Return False if the user exists. Raises REQUEST_TIMED_OUT."""
    path = user_path(name)
    try:
        changes.write([Create(path, configs.encode(settings))], path)
    except NodeExistsError:
        return False
    except StoreError as error:
        raise cannot_write("user", error) from error
    return True


def update_user(changes: ChangeLog, name: str, wanted: Mapping[str, str | None]) -> None:
    """Set these settings of a user; None removes one. A user without settings has no node.

    Raises RESOURCE_NOT_FOUND if one to remove does not exist, and REQUEST_TIMED_OUT.
    """
    path = user_path(name)
    until_written("user", lambda: changes.write([_change(changes.store, path, wanted)], path))


def check_deletions(before: Mapping[str, str], wanted: Mapping[str, str | None]) -> None:
    """Raise RESOURCE_NOT_FOUND if a setting to remove (None) does not exist."""
    if any(text is None and key not in before for key, text in wanted.items()):
        raise ProtocolError(ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")


def _change(store: MetadataStore, path: str, wanted: Mapping[str, str | None]) -> Operation:
    node = store.get(path) if store.exists(path) else None
    before = configs.decode_for_change(path, node) or {}
    check_deletions(before, wanted)
    after = {key: text for key, text in {**before, **wanted}.items() if text is not None}
    if node is None:
        return Create(path, configs.encode(after))
    if after or store.exists(f"{path}/{CLIENTS_OF_USER}"):
        return Set(path, configs.encode(after), node.version)
    return Delete(path, node.version)
