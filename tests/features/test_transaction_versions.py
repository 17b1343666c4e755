"""T7: clients of transaction.version 0, 1 and 2, the feature, and changes of its level."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oncelog.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from support.servers import Server
from support.transactions import (
    SAFE_DOWNGRADE,
    TRANSACTION_VERSION,
    UNSAFE_DOWNGRADE,
    UPGRADE,
    commit_offset,
    committed,
    describe,
    end_once,
    ended,
    features,
    level_of,
    markers,
    set_transaction_version,
    state,
    until_state,
    update_features,
    write,
    written,
)
from support.wire import Session, Wire, code, until

SETTINGS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "50"}
INVALID = code("INVALID_UPDATE_VERSION")


@pytest.fixture
def wire(module_server: Server) -> Iterator[Wire]:
    """Connect to a server whose features the tests change. transaction.version is reset to 2 after each test."""
    with Wire(module_server.bootstrap) as connection:
        yield connection
        set_transaction_version(connection, 2)


# -- UpdateFeatures ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_level_can_be_changed_while_the_broker_runs(wire: Wire, module_server: Server, version: int) -> None:
    before = features(wire)
    assert level_of(before) == 2
    supported = {each.name: (each.min_version, each.max_version) for each in before.supported_features}
    assert supported[TRANSACTION_VERSION] == (0, 2)
    answer = update_features(wire, (TRANSACTION_VERSION, 1, SAFE_DOWNGRADE), version=version)
    assert answer.error_code == 0
    assert [each.feature for each in answer.results] == ([TRANSACTION_VERSION] if version == 1 else [])
    after = until(lambda: features(wire), lambda found: level_of(found) == 1, "the level is 1")
    assert after.finalized_features_epoch > before.finalized_features_epoch
    with Wire(module_server.bootstrap) as other:
        assert other.features[TRANSACTION_VERSION] == 1
    assert not update_features(wire, (TRANSACTION_VERSION, 2, UPGRADE), version=version).error_code
    until(lambda: features(wire), lambda found: level_of(found) == 2, "the level is 2 again")


def test_level_0_removes_the_feature_from_the_list(wire: Wire) -> None:
    assert not update_features(wire, (TRANSACTION_VERSION, 0, UNSAFE_DOWNGRADE)).error_code
    listed = until(lambda: features(wire), lambda found: level_of(found) == 0, "the level is 0")
    assert TRANSACTION_VERSION not in {each.name for each in listed.finalized_features}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ((TRANSACTION_VERSION, 1, UPGRADE), "without setting the upgrade type"),
        ((TRANSACTION_VERSION, 3, UPGRADE), "only supports versions"),
        ((TRANSACTION_VERSION, -1, UNSAFE_DOWNGRADE), "cannot be less than 0"),
        ((TRANSACTION_VERSION, 1, 0), "does not support the given upgrade type"),
        ((TRANSACTION_VERSION, 1, 4), "does not support the given upgrade type"),
        (("no.such.feature", 1, UPGRADE), "does not support this feature"),
    ],
)
def test_invalid_change_is_rejected_with_the_reason(wire: Wire, change: tuple[str, int, int], reason: str) -> None:
    answer = update_features(wire, change)
    assert answer.error_code == INVALID
    assert answer.error_message.startswith("The update failed for all features since")
    assert reason in answer.error_message
    assert level_of(features(wire)) == 2


def test_downgrade_request_cannot_upgrade(wire: Wire) -> None:
    set_transaction_version(wire, 0)
    for kind in (SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        answer = update_features(wire, (TRANSACTION_VERSION, 1, kind))
        assert answer.error_code == INVALID
        assert "Can't downgrade to a newer version" in answer.error_message


@pytest.mark.parametrize("kind", [UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE])
def test_change_to_the_current_level_is_not_an_error(wire: Wire, kind: int) -> None:
    assert not update_features(wire, (TRANSACTION_VERSION, 2, kind)).error_code


def test_one_invalid_change_rejects_all(wire: Wire) -> None:
    good = (TRANSACTION_VERSION, 1, SAFE_DOWNGRADE)
    for changes in ((good, ("no.such.feature", 1, UPGRADE)), (("no.such.feature", 1, UPGRADE), good)):
        assert update_features(wire, *changes).error_code == INVALID
    assert level_of(features(wire)) == 2


def test_validate_only_changes_nothing(wire: Wire) -> None:
    before = level_of(features(wire))
    assert not update_features(wire, (TRANSACTION_VERSION, 0, SAFE_DOWNGRADE), validate_only=True).error_code
    assert update_features(wire, (TRANSACTION_VERSION, 3, UPGRADE), validate_only=True).error_code == INVALID
    assert not update_features(wire, validate_only=True).error_code
    assert level_of(features(wire)) == before


def test_version_0_supports_upgrades_only(wire: Wire) -> None:
    """`AllowDowngrade`, deprecated with version 1, is ignored (as in KRaft's controller)."""
    key = FeatureUpdateKey(feature=TRANSACTION_VERSION, max_version_level=1, allow_downgrade=True)
    assert wire.call(UpdateFeaturesRequest(feature_updates=[key]), 0).error_code == INVALID
    key = FeatureUpdateKey(feature=TRANSACTION_VERSION, max_version_level=2)
    assert not wire.call(UpdateFeaturesRequest(feature_updates=[key]), 0).error_code


def test_level_survives_a_restart(own_server: Server) -> None:
    with Wire(own_server.bootstrap) as wire:
        set_transaction_version(wire, 1)
        epoch = features(wire).finalized_features_epoch
    own_server.kill()
    own_server.wait_ready()
    with Wire(own_server.bootstrap) as wire:
        found = until(lambda: features(wire), lambda answer: level_of(answer) == 1, "the level is still 1")
        assert found.finalized_features_epoch >= epoch


# -- each protocol -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("commit", [True, False])
def test_old_client_at_every_level(wire: Wire, name: str, level: int, commit: bool) -> None:
    """AddPartitionsToTxn v3, Produce v11, EndTxn v4: the epoch does not change."""
    set_transaction_version(wire, level)
    topic_id = wire.create_topic(name)
    who = wire.session(name)
    for number in range(2):
        assert wire.add_partitions(name, who, name) == [0]
        assert not write(wire, name, who, name, [b"%d" % number], number, version=11).error_code
        answer = wire.end(name, who, commit, version=4)
        assert answer.error_code == 0
        until_state(wire, name, "CompleteCommit" if commit else "CompleteAbort")
    assert describe(wire, name).producer_epoch == who.epoch
    outcome = "COMMIT" if commit else "ABORT"
    assert markers(wire, topic_id) == [(who.producer_id, who.epoch, outcome)] * 2
    assert wire.values(topic_id, committed=True) == ([b"0", b"1"] if commit else [])


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("commit", [True, False])
def test_new_client_at_every_level(wire: Wire, name: str, level: int, commit: bool) -> None:
    """Produce v12 adds partitions, EndTxn v5 bumps the epoch. The client's version decides, whatever the level."""
    set_transaction_version(wire, level)
    topic_id = wire.create_topic(name)
    first = who = wire.session(name)
    for number in range(2):
        written(wire, name, who, name, [b"%d" % number])
        after = ended(wire, name, who, commit)
        assert after == Session(who.producer_id, who.epoch + 1)
        who = after
    until_state(wire, name, "CompleteCommit" if commit else "CompleteAbort")
    outcome = "COMMIT" if commit else "ABORT"
    assert markers(wire, topic_id) == [(who.producer_id, first.epoch + step, outcome) for step in (1, 2)]
    assert wire.values(topic_id, committed=True) == ([b"0", b"1"] if commit else [])


def test_new_client_at_level_0(wire: Wire, module_server: Server, name: str) -> None:
    """DIFFERS: Kafka's record for level 0 cannot store the client's version.

    If a client does not know of the downgrade, Kafka answers UNSUPPORTED_VERSION, which is fatal to the client, and its
    transactional id hangs (the transition that could not be written stays pending). oncelog then writes the record of
    level 1.
    """
    topic_id = wire.create_topic(name)
    who = wire.session(name)
    written(wire, name, who, name, [b"before"])
    set_transaction_version(wire, 0)
    if module_server.name == "apache-kafka":
        assert end_once(wire, name, who).error_code == code("UNSUPPORTED_VERSION")
        assert end_once(wire, name, who, version=4).error_code == code("CONCURRENT_TRANSACTIONS")
        return
    who = ended(wire, name, who)
    until_state(wire, name, "CompleteCommit")
    written(wire, name, who, name, [b"after"])
    ended(wire, name, who)
    until_state(wire, name, "CompleteCommit")
    assert wire.values(topic_id, committed=True) == [b"before", b"after"]


def test_kafka_18227_produce_11_does_not_add_the_partition_and_12_does(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    who = wire.session(name)
    assert write(wire, name, who, name, [b"a"], version=10).error_code == code("INVALID_TXN_STATE")
    assert write(wire, name, who, name, [b"a"], version=11).error_code == code("TRANSACTION_ABORTABLE")
    assert state(wire, name) == "Empty"
    assert not write(wire, name, who, name, [b"a"], version=12).error_code
    assert state(wire, name) == "Ongoing"
    assert not write(wire, name, who, name, [b"b"], 1, version=11).error_code
    ended(wire, name, who)


def test_kafka_18227_txn_offset_commit_4_does_not_add_the_group_and_5_does(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    wire.find_coordinator(name, 0)
    who = wire.session(name)
    assert commit_offset(wire, name, who, name, name, 7, version=4) == code("TRANSACTION_ABORTABLE")
    assert commit_offset(wire, name, who, name, name, 7, version=3) == code("INVALID_TXN_STATE")
    assert state(wire, name) == "Empty"
    assert commit_offset(wire, name, who, name, name, 7, version=5) == 0
    assert state(wire, name) == "Ongoing"
    ended(wire, name, who)
    assert until(lambda: committed(wire, name, name), lambda found: not found[1], "the record is stable") == (7, 0)


def test_add_offsets_permits_an_old_offset_commit(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    wire.find_coordinator(name, 0)
    who = wire.session(name)
    assert not wire.add_offsets(name, who, name).error_code
    assert commit_offset(wire, name, who, name, name, 8, version=3) == 0
    assert not wire.end(name, who, version=4).error_code
    assert until(lambda: committed(wire, name, name), lambda found: not found[1], "the record is stable") == (8, 0)


def test_old_and_new_end_txn_versions_in_one_session(wire: Wire, name: str) -> None:
    """EndTxn v4 ends a transaction of Produce v12 without a new epoch; v5 ends one of v3 and v11 with a new epoch."""
    topic_id = wire.create_topic(name)
    who = wire.session(name)
    written(wire, name, who, name, [b"a"])
    assert not wire.end(name, who, version=4).error_code
    assert until_state(wire, name, "CompleteCommit").producer_epoch == who.epoch
    assert wire.add_partitions(name, who, name) == [0]
    assert not write(wire, name, who, name, [b"b"], 1, version=11).error_code
    assert ended(wire, name, who) == Session(who.producer_id, who.epoch + 1)
    until_state(wire, name, "CompleteCommit")
    assert [epoch for _, epoch, _ in markers(wire, topic_id)] == [who.epoch, who.epoch + 1]
    assert wire.values(topic_id, committed=True) == [b"a", b"b"]


# -- level changes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_downgrade_with_an_open_transaction(wire: Wire, name: str, commit: bool) -> None:
    """The client does not know of it and ends the transaction as usual. Then it is an old client."""
    topic_id = wire.create_topic(name)
    who = wire.session(name)
    written(wire, name, who, name, [b"new"])
    set_transaction_version(wire, 1)
    who = ended(wire, name, who, commit)
    until_state(wire, name, "CompleteCommit" if commit else "CompleteAbort")
    assert wire.add_partitions(name, who, name) == [0]
    assert not write(wire, name, who, name, [b"old"], version=11).error_code
    assert not wire.end(name, who, version=4).error_code
    assert until_state(wire, name, "CompleteCommit").producer_epoch == who.epoch
    assert wire.values(topic_id, committed=True) == ([b"new", b"old"] if commit else [b"old"])
    assert wire.offset(name, committed=True) == wire.offset(name) == 4


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("before", [0, 1])
def test_upgrade_with_an_open_transaction(wire: Wire, name: str, before: int, commit: bool) -> None:
    topic_id = wire.create_topic(name)
    set_transaction_version(wire, before)
    who = wire.session(name)
    assert wire.add_partitions(name, who, name) == [0]
    assert not write(wire, name, who, name, [b"old"], version=11).error_code
    set_transaction_version(wire, 2)
    assert not wire.end(name, who, commit, version=4).error_code
    until_state(wire, name, "CompleteCommit" if commit else "CompleteAbort")
    assert end_once(wire, name, who, commit, version=4).error_code == 0  # a retry after a lost answer
    written(wire, name, who, name, [b"new"], 1)
    ended(wire, name, who)
    until_state(wire, name, "CompleteCommit")
    assert wire.values(topic_id, committed=True) == ([b"old", b"new"] if commit else [b"new"])


@pytest.mark.parametrize(("before", "after"), [(0, 2), (1, 2), (2, 1), (2, 0)])
def test_timeout_after_a_level_change_bumps_the_epoch_once(wire: Wire, name: str, before: int, after: int) -> None:
    topic_id = wire.create_topic(name)
    set_transaction_version(wire, before)
    who = wire.session(name, timeout_ms=2_000)
    if before == 2:
        written(wire, name, who, name, [b"x"])
    else:
        assert wire.add_partitions(name, who, name) == [0]
        assert not write(wire, name, who, name, [b"x"], version=11).error_code
    set_transaction_version(wire, after)
    assert until_state(wire, name, "CompleteAbort").producer_epoch == who.epoch + 1
    assert markers(wire, topic_id) == [(who.producer_id, who.epoch + 1, "ABORT")]
    assert end_once(wire, name, who, version=4).error_code == code("PRODUCER_FENCED")


@pytest.mark.parametrize("level", [1, 2])
def test_new_session_after_a_level_change_works(wire: Wire, name: str, level: int) -> None:
    """InitProducerId aborts the transaction of the other level."""
    topic_id = wire.create_topic(name)
    set_transaction_version(wire, 3 - level)
    who = wire.session(name)
    assert wire.add_partitions(name, who, name) == [0]
    assert not write(wire, name, who, name, [b"left"], version=11).error_code
    set_transaction_version(wire, level)
    successor = wire.session(name)
    assert successor == Session(who.producer_id, who.epoch + 2)
    assert wire.values(topic_id, committed=True) == []
    assert wire.offset(name, committed=True) == wire.offset(name)
