"""Read and change the cluster's finalized features in the versioned tree (KIP-584). Reads and writes block.

The node is `/feature`, as in Kafka's ZooKeeper tree. Its version is the epoch that clients see in ApiVersions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from oncelog.cluster.changes import ChangeLog
from oncelog.cluster.store import BadVersionError, MetadataStore, NodeExistsError, Set, StoreError
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.kinds import UpgradeType

PATH = "/feature"
TRANSACTION_VERSION = "transaction.version"
GROUP_VERSION = "group.version"
"""Level 1 has the consumer protocol of groups (KIP-848)."""
SUPPORTED: Mapping[str, tuple[int, int]] = {GROUP_VERSION: (0, 1), TRANSACTION_VERSION: (0, 2)}
"""The features that this software knows, with their lowest and highest level (KIP-584)."""


class Change(NamedTuple):
    """A requested change. `upgrade_type` is the number on the wire."""

    feature: str
    level: int
    upgrade_type: int = UpgradeType.UPGRADE


class _FeatureNode(msgspec.Struct):
    features: dict[str, int]
    status: int = 1
    version: int = 2


def initialize(store: MetadataStore, initial: Mapping[str, int]) -> None:
    """Write the levels of a new cluster, unless the tree already has the node."""
    node = _FeatureNode({name: level for name, level in initial.items() if level > 0})
    with suppress(NodeExistsError):
        store.create(PATH, msgspec.json.encode(node))


def read(store: MetadataStore) -> tuple[dict[str, int], int]:
    """Return (levels, epoch). Raises NoNodeError before `initialize`."""
    node = store.get(PATH)
    return msgspec.json.decode(node.data, type=_FeatureNode).features, node.version


def update(
    log: ChangeLog,
    changes: Sequence[Change],
    supported: Mapping[str, tuple[int, int]],
    *,
    validate_only: bool = False,
) -> None:
    """Make all changes or none. Raises INVALID_UPDATE_VERSION, REQUEST_TIMED_OUT.

    `supported` has the lowest and highest level of each feature that this software knows.
    """
    try:
        while True:
            before, epoch = read(log.store)
            levels = changed(before, changes, supported)
            if validate_only:
                return
            with suppress(BadVersionError):  # another writer has changed the node: read it again
                log.write([Set(PATH, msgspec.json.encode(_FeatureNode(levels)), epoch)], PATH)
                return
    except StoreError as error:
        message = f"cannot change the features: {error!r}"
        raise ProtocolError(ErrorCode.REQUEST_TIMED_OUT, message) from error


def changed(
    levels: Mapping[str, int], changes: Sequence[Change], supported: Mapping[str, tuple[int, int]]
) -> dict[str, int]:
    """Return the levels after the changes. Raises INVALID_UPDATE_VERSION for the first illegal change.

    Rules and messages are those of Kafka's `FeatureControlManager`. If a feature occurs twice, its last change counts.
    """
    after = dict(levels)
    for change in {change.feature: change for change in changes}.values():
        reason = _refusal(change, levels.get(change.feature, 0), supported.get(change.feature))
        if reason is not None:
            message = f"Invalid update version {change.level} for feature {change.feature}. {reason}"
            raise ProtocolError(ErrorCode.INVALID_UPDATE_VERSION, message)
        after[change.feature] = change.level
    return {name: level for name, level in after.items() if level > 0}


def _refusal(change: Change, current: int, supported: tuple[int, int] | None) -> str | None:
    if change.upgrade_type not in UpgradeType.__members__.values():
        return "The controller does not support the given upgrade type."
    if change.level < 0:
        return "A feature version cannot be less than 0."
    if supported is None:
        return "The broker does not support this feature."
    if not supported[0] <= change.level <= supported[1]:
        return f"The broker only supports versions {supported[0]}-{supported[1]}."
    upgrade = change.upgrade_type == UpgradeType.UPGRADE
    if change.level < current and upgrade:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
            "downgrade."
        )
    if change.level > current and not upgrade:
        return "Can't downgrade to a newer version."
    return None
