"""Features in the versioned tree: who is first wins, and a write whose fate is unknown is looked up."""

from __future__ import annotations

import pytest

from oncelog.cluster.features import PATH, Change, Features
from oncelog.cluster.tree import OutcomeUnknownError, UnavailableError
from oncelog.cluster.tree_memory import MemoryTree
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.kinds import UpgradeType

SUPPORTED = {"transaction.version": (0, 2), "other": (1, 3)}


def opened(tree: MemoryTree, **initial: int) -> Features:
    features = Features(tree, SUPPORTED)
    features.load({name.replace("_", "."): level for name, level in initial.items()})
    return features


def test_a_new_cluster_has_its_initial_levels_and_an_old_one_its_own() -> None:
    tree = MemoryTree(lambda: 0)
    first = opened(tree, transaction_version=1, other=0)
    assert (first.levels, first.epoch) == ({"transaction.version": 1}, 0)
    second = opened(tree, transaction_version=2)
    assert (second.levels, second.epoch) == (first.levels, first.epoch)
    assert tree.get(PATH).data == b'{"features":{"transaction.version":1},"status":1,"version":2}'


def test_changes_are_written_before_they_count() -> None:
    features = opened(MemoryTree(lambda: 0), transaction_version=2)
    found = features.update([Change("transaction.version", 0, UpgradeType.SAFE_DOWNGRADE), Change("other", 3)])
    assert found == ({"other": 3}, 1)
    assert features.level("transaction.version") == 2
    features.admit(*found)
    assert (features.level("transaction.version"), features.level("other"), features.epoch) == (0, 3, 1)


def test_of_two_changes_of_one_feature_the_last_counts() -> None:
    features = opened(MemoryTree(lambda: 0))
    assert features.update([Change("other", 9), Change("other", 2)])[0] == {"other": 2}


def test_a_race_is_decided_on_what_the_other_has_written() -> None:
    """What was an upgrade when it was asked for may be a downgrade by now."""
    tree = MemoryTree(lambda: 0)
    features, other = opened(tree), opened(tree)
    read = features.read

    def overtaken() -> tuple[dict[str, int], int]:
        features.read = read  # type: ignore[method-assign]
        found = read()
        other.update([Change("other", 3)])
        return found

    features.read = overtaken  # type: ignore[method-assign]
    with pytest.raises(ProtocolError, match="without setting the upgrade type") as caught:
        features.update([Change("other", 2)])
    assert caught.value.code == ErrorCode.INVALID_UPDATE_VERSION
    assert features.read() == ({"other": 3}, 1)


class Failing(MemoryTree):
    """`set` fails: before anything happened, or after all of it."""

    error: type[Exception] | None = None

    def set(self, path: str, data: bytes, version: int = -1) -> int:
        if self.error is OutcomeUnknownError:
            super().set(path, data, version)
        if self.error is not None:
            raise self.error(path)
        return super().set(path, data, version)


@pytest.mark.parametrize(("error", "level"), [(UnavailableError, 0), (OutcomeUnknownError, 1)])
def test_a_failing_store_is_said_and_the_image_follows_at_the_next_look(error: type[Exception], level: int) -> None:
    tree = Failing(lambda: 0)
    features = opened(tree)
    tree.error = error
    with pytest.raises(ProtocolError) as caught:
        features.update([Change("other", 1)])
    assert caught.value.code == ErrorCode.REQUEST_TIMED_OUT
    tree.error = None
    features.admit(*features.update([Change("other", 2)], validate_only=True))
    assert features.level("other") == level
