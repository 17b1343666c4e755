"""The cluster's finalised features: the image in memory and its home in the versioned tree (KIP-584).

The node is `/feature`, as in Kafka's ZooKeeper tree; its version is the epoch that clients see in ApiVersions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from oncelog.cluster.tree import BadVersionError, NodeExistsError, NoNodeError, Tree, TreeError
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.kinds import UpgradeType

PATH = "/feature"


class Change(NamedTuple):
    """A wish: `upgrade_type` is the number on the wire."""

    feature: str
    level: int
    upgrade_type: int = UpgradeType.UPGRADE


class _FeatureNode(msgspec.Struct):
    features: dict[str, int]
    status: int = 1
    version: int = 2


class Features:
    """Levels by name; a level of 0 is that of a feature that is not finalised.

    `supported` has the lowest and highest level of each feature that this software knows.
    """

    def __init__(self, tree: Tree, supported: Mapping[str, tuple[int, int]]) -> None:
        self._tree = tree
        self.supported = supported
        self.levels: Mapping[str, int] = {}
        self.epoch = -1

    def level(self, name: str) -> int:
        """The finalised level, 0 without one."""
        return self.levels.get(name, 0)

    def admit(self, levels: Mapping[str, int], epoch: int) -> None:
        """Takes over what is in the tree."""
        self.levels = levels
        self.epoch = epoch

    # -- the tree (blocking) ----------------------------------------------------------------------------------------

    def load(self, initial: Mapping[str, int]) -> None:
        """Reads the levels; in a new cluster they are `initial`."""
        try:
            self.admit(*self.read())
        except NoNodeError:
            node = _FeatureNode({name: level for name, level in initial.items() if level > 0})
            try:
                self._tree.create(PATH, msgspec.json.encode(node))
            except NodeExistsError:  # another broker was quicker
                self.admit(*self.read())
            else:
                self.admit(node.features, 0)

    def read(self) -> tuple[dict[str, int], int]:
        """(levels, epoch) in the tree; NoNodeError."""
        node = self._tree.get(PATH)
        return msgspec.json.decode(node.data, type=_FeatureNode).features, node.version

    def update(self, changes: Sequence[Change], *, validate_only: bool = False) -> tuple[dict[str, int], int]:
        """All changes or none: (levels, epoch) for `admit`. INVALID_UPDATE_VERSION, REQUEST_TIMED_OUT."""
        try:
            while True:
                before, epoch = self.read()
                levels = changed(before, changes, self.supported)
                if validate_only:
                    return before, epoch
                with suppress(BadVersionError):  # somebody else was quicker: look again
                    return levels, self._tree.set(PATH, msgspec.json.encode(_FeatureNode(levels)), epoch)
        except TreeError as error:
            message = f"the features cannot be changed now: {error!r}"
            raise ProtocolError(ErrorCode.REQUEST_TIMED_OUT, message) from error


def changed(
    levels: Mapping[str, int], changes: Sequence[Change], supported: Mapping[str, tuple[int, int]]
) -> dict[str, int]:
    """The levels after the changes; INVALID_UPDATE_VERSION for the first that may not be.

    Rules and words are those of Kafka's `FeatureControlManager`; of two changes of one feature the last counts.
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
