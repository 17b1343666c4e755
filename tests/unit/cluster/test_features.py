"""Features in the versioned tree: the first writer wins, and a write with an unknown outcome is looked up."""

from __future__ import annotations

import pytest

from oncelog.cluster.changes import ChangeLog
from oncelog.cluster.features import PATH, Change, initialize, read, update
from oncelog.cluster.image_nodes import prepare, read_changes, read_image
from oncelog.cluster.store import OutcomeUnknownError, UnavailableError
from oncelog.cluster.store_memory import MemoryStore
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.kinds import UpgradeType
from support.failing_store import FailingStore, Once, fail, ignore

SUPPORTED = {"transaction.version": (0, 2), "other": (1, 3)}


def opened(store: MemoryStore, **initial: int) -> ChangeLog:
    prepare(store)
    initialize(store, {name.replace("_", "."): level for name, level in initial.items()})
    return ChangeLog(store)


def test_new_cluster_gets_initial_levels_and_an_existing_one_keeps_its_own() -> None:
    store = MemoryStore(lambda: 0)
    opened(store, transaction_version=1, other=0)
    assert read(store) == ({"transaction.version": 1}, 0)
    opened(store, transaction_version=2)
    assert read(store) == ({"transaction.version": 1}, 0)
    assert store.get(PATH).data == b'{"features":{"transaction.version":1},"status":1,"version":2}'


def test_change_is_in_the_next_image() -> None:
    store = MemoryStore(lambda: 0)
    log = opened(store, transaction_version=2)
    before = read_image(store)
    update(log, [Change("transaction.version", 0, UpgradeType.SAFE_DOWNGRADE), Change("other", 3)], SUPPORTED)
    assert before.feature_level("transaction.version") == 2
    delta = read_changes(store, before)
    assert delta is not None
    levels = delta.after.feature_level("transaction.version"), delta.after.feature_level("other")
    assert (*levels, delta.after.feature_epoch) == (0, 3, 1)


def test_last_of_two_changes_of_one_feature_wins() -> None:
    store = MemoryStore(lambda: 0)
    update(opened(store), [Change("other", 9), Change("other", 2)], SUPPORTED)
    assert read(store)[0] == {"other": 2}


def test_concurrent_change_is_validated_against_the_stored_levels() -> None:
    """A change that was an upgrade when it was requested may be a downgrade by now."""

    store = FailingStore()
    log = opened(store)
    store.before = Once(lambda: update(log, [Change("other", 3)], SUPPORTED))
    with pytest.raises(ProtocolError, match="without setting the upgrade type") as caught:
        update(log, [Change("other", 2)], SUPPORTED)
    assert caught.value.code == ErrorCode.INVALID_UPDATE_VERSION
    assert read(store) == ({"other": 3}, 1)


@pytest.mark.parametrize(("error", "level"), [(UnavailableError, 0), (OutcomeUnknownError, 1)])
def test_failing_store_is_reported_and_the_next_image_has_the_written_state(error: type[Exception], level: int) -> None:
    store = FailingStore()
    log = opened(store)
    if error is UnavailableError:
        store.before = fail(error("/feature"))
    else:
        store.after = fail(error("/feature"))
    with pytest.raises(ProtocolError) as caught:
        update(log, [Change("other", 1)], SUPPORTED)
    assert caught.value.code == ErrorCode.REQUEST_TIMED_OUT
    store.before = store.after = ignore
    assert read_image(store).feature_level("other") == level
