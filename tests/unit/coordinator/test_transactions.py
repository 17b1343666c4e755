"""The transaction coordinator, rule by rule. Sessions and time have their own modules."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oncelog.coordinator.transactions.coordinator import TransactionConfig
from oncelog.coordinator.transactions.metadata import (
    MAX_EPOCH,
    PREVIOUS_STATES,
    IllegalTransitionError,
    check_transition,
)
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.transaction_log import TransactionLogValue
from support.transaction_driver import (
    CONCURRENT,
    FENCED,
    INVALID_STATE,
    NONE,
    UNKNOWN_ID,
    A,
    B,
    Driver,
    S,
    at_epoch,
    open_transaction,
)

# -- AddPartitionsToTxn ------------------------------------------------------------------------------------------------


def test_first_partition_starts_the_transaction(driver: Driver) -> None:
    producer = driver.session()
    driver.now_ms += 5
    driver.add("etl", producer, A)
    started = driver.state()
    assert (started.state, started.start_ms, started.partitions) == (S.ONGOING, driver.now_ms, {A})
    driver.now_ms += 5
    driver.add("etl", producer, B)
    assert (driver.state().start_ms, driver.state().partitions) == (started.start_ms, {A, B})


def test_partitions_already_in_the_transaction_write_no_record(driver: Driver) -> None:
    producer = open_transaction(driver)
    before = len(driver.log)
    assert driver.add("etl", producer, A) == NONE
    assert len(driver.log) == before


def test_only_the_current_producer_may_add_partitions(driver: Driver) -> None:
    producer_id, epoch = driver.session()
    assert driver.add("", (producer_id, epoch), A) == ErrorCode.INVALID_REQUEST
    assert driver.add("unknown", (producer_id, epoch), A) == UNKNOWN_ID
    assert driver.add("etl", (producer_id + 1, epoch), A) == UNKNOWN_ID
    assert driver.add("etl", (producer_id, epoch + 1), A) == FENCED
    assert driver.add("etl", (producer_id, epoch - 1), A) == FENCED


def test_no_partition_can_be_added_while_the_transaction_ends(driver: Driver) -> None:
    """KAFKA-18575: the next transaction's first partition waits, it never joins the previous one."""
    producer = open_transaction(driver)
    response = driver.end("etl", producer)
    following = response.producer_id, response.producer_epoch
    assert driver.add("etl", following, ("c", 0)) == CONCURRENT
    assert driver.state().partitions == {A, B}
    driver.write_markers()
    assert driver.add("etl", following, ("c", 0)) == NONE
    assert driver.state().partitions == {("c", 0)}


def test_verification_changes_nothing_and_returns_the_partitions(driver: Driver) -> None:
    producer_id, epoch = open_transaction(driver)
    before = len(driver.log)

    def verify(name: str, producer: tuple[int, int]) -> list[ErrorCode]:
        found = driver.coordinator.verify_partitions(name, *producer, [A, ("c", 0)])
        assert set(found) == {A, ("c", 0)}
        return [found[A], found["c", 0]]

    assert verify("etl", (producer_id, epoch)) == [NONE, ErrorCode.TRANSACTION_ABORTABLE]
    assert verify("etl", (producer_id, epoch + 1)) == [FENCED, FENCED]
    assert verify("etl", (producer_id + 1, epoch)) == [UNKNOWN_ID] * 2
    assert verify("unknown", (producer_id, epoch)) == [UNKNOWN_ID] * 2
    assert verify("", (producer_id, epoch)) == [ErrorCode.INVALID_REQUEST] * 2
    driver.end("etl", (producer_id, epoch), version=4)
    assert verify("etl", (producer_id, epoch)) == [CONCURRENT, CONCURRENT]
    driver.write_markers()
    assert verify("etl", (producer_id, epoch)) == [ErrorCode.TRANSACTION_ABORTABLE] * 2
    assert len(driver.log) == before + 2


# -- EndTxn ------------------------------------------------------------------------------------------------------------


def test_version_2_bumps_the_epoch_with_each_transaction(driver: Driver) -> None:
    producer = open_transaction(driver)
    response = driver.end("etl", producer)
    assert (response.error_code, response.producer_id, response.producer_epoch) == (NONE, 1000, 1)
    assert [(m.commit, m.producer_epoch, m.transaction_version) for m in driver.markers] == [(True, 1, 2)]
    assert driver.end("etl", producer).error_code == CONCURRENT
    driver.write_markers()
    assert driver.state().state is S.COMPLETE_COMMIT
    retry = driver.end("etl", producer)
    assert (retry.error_code, retry.producer_id, retry.producer_epoch) == (NONE, 1000, 1)


def test_versions_0_and_1_keep_the_epoch(driver: Driver) -> None:
    producer = open_transaction(driver, client_version=0)
    response = driver.end("etl", producer, version=4)
    assert (response.error_code, response.producer_id, response.producer_epoch) == (NONE, -1, -1)
    assert [(m.commit, m.producer_epoch, m.transaction_version) for m in driver.markers] == [(True, 0, 0)]
    driver.write_markers()
    assert driver.state().producer_epoch == 0
    assert driver.end("etl", producer, version=4).error_code == NONE


def test_late_end_never_affects_the_next_transaction(driver: Driver) -> None:
    """KAFKA-17754."""
    producer = open_transaction(driver)
    response = driver.end("etl", producer)
    driver.write_markers()
    driver.add("etl", (response.producer_id, response.producer_epoch), A)
    for commit in (True, False):
        assert driver.end("etl", producer, commit).error_code == FENCED
    assert driver.state().state is S.ONGOING


def test_higher_epoch_is_rejected(driver: Driver) -> None:
    """KAFKA-9600."""
    producer_id, epoch = open_transaction(driver)
    for version in (4, 5):
        assert driver.end("etl", (producer_id, epoch + 1), version=version).error_code == FENCED
    assert driver.state().state is S.ONGOING


@pytest.mark.parametrize("version", [0, 1])
def test_older_clients_get_the_older_fencing_error_from_end(driver: Driver, version: int) -> None:
    producer_id, epoch = open_transaction(driver)
    response = driver.end("etl", (producer_id, epoch + 1), version=version)
    assert response.error_code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_only_the_current_producer_may_end_the_transaction(driver: Driver) -> None:
    producer_id, epoch = open_transaction(driver)
    for version in (4, 5):
        assert driver.end("", (producer_id, epoch), version=version).error_code == ErrorCode.INVALID_REQUEST
        assert driver.end("unknown", (producer_id, epoch), version=version).error_code == UNKNOWN_ID
        assert driver.end("etl", (producer_id + 1, epoch), version=version).error_code == UNKNOWN_ID


ENDED_1 = {
    "empty": (INVALID_STATE, INVALID_STATE),
    "committed": (NONE, INVALID_STATE),
    "aborted": (INVALID_STATE, NONE),
}
ENDED_2 = {  # committed or aborted -> (commit, abort) in the current epoch, (commit, abort) again
    "empty": ((INVALID_STATE, NONE), (FENCED, FENCED)),
    "committed": ((INVALID_STATE, NONE), (NONE, INVALID_STATE)),
    "aborted": ((INVALID_STATE, NONE), (FENCED, NONE)),
}


def ended(driver: Driver, how: str, version: int) -> tuple[int, int]:
    producer = driver.session()
    if how != "empty":
        driver.add("etl", producer, A, client_version=2 if version == 5 else 0)
        driver.end("etl", producer, how == "committed", version=version)
        driver.write_markers()
    return producer


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("how", ENDED_1)
def test_repeated_end_of_version_1(driver: Driver, how: str, commit: bool) -> None:
    producer = ended(driver, how, 4)
    before = len(driver.log)
    assert driver.end("etl", producer, commit, version=4).error_code == ENDED_1[how][not commit]
    assert len(driver.log) == before


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("how", ENDED_2)
def test_repeated_end_of_version_2_with_the_current_epoch(driver: Driver, how: str, commit: bool) -> None:
    ended(driver, how, 5)
    producer = 1000, driver.state().producer_epoch
    response = driver.end("etl", producer, commit)
    assert response.error_code == ENDED_2[how][0][not commit]
    if response.error_code == NONE:  # an abort of a client that does not know its progress
        assert (response.producer_id, response.producer_epoch) == (1000, producer[1] + 1)
        assert driver.state().state is S.COMPLETE_ABORT
        assert driver.markers == []


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("how", ENDED_2)
def test_repeated_end_of_version_2_with_the_previous_epoch(driver: Driver, how: str, commit: bool) -> None:
    ended(driver, how, 5)
    producer = 1000, driver.state().producer_epoch - 1
    before = len(driver.log)
    assert driver.end("etl", producer, commit).error_code == ENDED_2[how][1][not commit]
    assert len(driver.log) == before


def test_commit_after_the_coordinators_abort_is_fenced(driver: Driver) -> None:
    """KAFKA-20785."""
    producer = open_transaction(driver)
    driver.tick(60_001)
    assert driver.end("etl", producer).error_code == CONCURRENT
    driver.write_markers()
    assert driver.end("etl", producer).error_code == FENCED
    assert driver.session(producer=producer) == (1000, 1)  # KIP-588: the same producer recovers


def test_other_outcome_is_rejected_while_ending(driver: Driver) -> None:
    producer = open_transaction(driver, client_version=0)
    driver.end("etl", producer, commit=True, version=4)
    for version in (4, 5):
        assert driver.end("etl", producer, commit=False, version=version).error_code == CONCURRENT
    driver.write_markers()
    assert driver.state().state is S.COMPLETE_COMMIT


def test_end_of_version_1_is_not_repeated_by_one_of_version_2(driver: Driver) -> None:
    """A client that changes back to an old level (KAFKA-18227): epoch 0 was aborted, epoch 1 committed."""
    aborted = open_transaction(driver)
    response = driver.end("etl", aborted, commit=False)
    driver.write_markers()
    committed = response.producer_id, response.producer_epoch
    driver.add("etl", committed, A, client_version=0)
    driver.end("etl", committed, version=4)
    driver.write_markers()
    assert driver.end("etl", aborted, commit=True).error_code == FENCED
    assert driver.end("etl", committed, version=4).error_code == NONE


def test_transaction_without_partitions_completes_at_once(driver: Driver) -> None:
    producer = driver.session()
    driver.add("etl", producer, client_version=0)
    assert driver.state().state is S.ONGOING
    assert driver.end("etl", producer, version=4).error_code == NONE
    assert driver.state().state is S.COMPLETE_COMMIT


# -- markers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_existing_partition_is_never_skipped(driver: Driver, error: ErrorCode) -> None:
    producer = open_transaction(driver)
    driver.end("etl", producer)
    for _ in range(3):
        driver.write_markers({A: error})
        assert driver.state().state is S.PREPARE_COMMIT
    driver.write_markers()
    assert driver.state().state is S.COMPLETE_COMMIT


def test_partitions_of_a_deleted_topic_are_skipped(driver: Driver) -> None:
    producer = open_transaction(driver)
    driver.end("etl", producer)
    driver.write_markers({B: ErrorCode.NOT_LEADER_OR_FOLLOWER}, deleted={A})
    assert driver.state().state is S.PREPARE_COMMIT
    driver.write_markers()
    assert driver.state().state is S.COMPLETE_COMMIT


def test_partitions_that_cannot_hold_transactions_need_no_marker(driver: Driver) -> None:
    producer = open_transaction(driver)
    driver.end("etl", producer)
    driver.write_markers({A: ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT})
    assert driver.state().state is S.COMPLETE_COMMIT


@pytest.mark.parametrize("error", [ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_fenced_coordinator_completes_nothing(driver: Driver, error: ErrorCode) -> None:
    producer = open_transaction(driver)
    driver.end("etl", producer)
    driver.write_markers({A: error})
    assert driver.state().state is S.PREPARE_COMMIT


def test_results_of_an_earlier_end_are_ignored(driver: Driver) -> None:
    producer = open_transaction(driver)
    response = driver.end("etl", producer)
    (late,) = driver.markers
    driver.write_markers()
    following = response.producer_id, response.producer_epoch
    driver.add("etl", following, A)
    driver.end("etl", following, commit=False)
    driver.apply(driver.coordinator.markers_written(late, {A: NONE}, driver.now_ms))
    assert driver.state().state is S.PREPARE_ABORT
    assert not driver.coordinator.needs(late)


def test_completion_is_written_once_if_markers_are_reported_twice(driver: Driver) -> None:
    """KAFKA-9777, KAFKA-10080."""
    producer = open_transaction(driver)
    driver.end("etl", producer)
    (markers,) = driver.markers
    both = {A: NONE, B: NONE}
    first = driver.coordinator.markers_written(markers, both, driver.now_ms)
    driver.apply(first)
    assert driver.coordinator.markers_written(markers, both, driver.now_ms).records == []


def test_completion_that_cannot_be_written_is_retried(driver: Driver) -> None:
    producer = open_transaction(driver)
    driver.end("etl", producer)
    driver.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    with pytest.raises(ProtocolError):
        driver.write_markers()
    assert driver.state().state is S.PREPARE_COMMIT
    driver.tick(1000)
    assert driver.state().state is S.COMPLETE_COMMIT


# -- the states -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0, 1])
def test_decision_of_a_new_client_at_an_old_level_survives_a_failover(level: int) -> None:
    """The client does not know of a downgrade: the next producer id, and a retry, must not be lost."""
    driver = Driver(TransactionConfig(transaction_version=level)).start()
    producer = at_epoch(driver, MAX_EPOCH - 1)
    assert driver.add("etl", producer, A) == NONE
    response = driver.end("etl", producer)
    driver.reload()
    driver.write_markers()
    state = driver.state()
    assert (state.producer_id, state.producer_epoch) == (response.producer_id, response.producer_epoch) == (1001, 0)
    driver.reload()
    again = driver.end("etl", producer)
    assert (again.error_code, again.producer_id, again.producer_epoch) == (0, 1001, 0)


def test_transitions_equal_kafkas() -> None:
    found = {(old.text, new.text) for new, olds in PREVIOUS_STATES.items() for old in olds}
    assert found == {
        *((old, "Empty") for old in ("Empty", "CompleteCommit", "CompleteAbort")),
        *((old, "Ongoing") for old in ("Ongoing", "Empty", "CompleteCommit", "CompleteAbort")),
        ("Ongoing", "PrepareCommit"),
        *((old, "PrepareAbort") for old in ("Ongoing", "Empty", "CompleteCommit", "CompleteAbort")),
        ("PrepareCommit", "CompleteCommit"),
        ("PrepareAbort", "CompleteAbort"),
    }


def test_states_have_the_names_and_numbers_of_the_protocol() -> None:
    assert [(state.value, state.text) for state in S] == [
        (0, "Empty"),
        (1, "Ongoing"),
        (2, "PrepareCommit"),
        (3, "PrepareAbort"),
        (4, "CompleteCommit"),
        (5, "CompleteAbort"),
        (6, "Dead"),
        (7, "PrepareEpochFence"),
    ]


def test_records_that_no_request_can_have_written_are_rejected(driver: Driver) -> None:
    open_transaction(driver)
    ongoing = driver.state()
    for change in (
        {"state": S.COMPLETE_COMMIT},
        {"producer_epoch": 1},
        {"producer_id": 5},
        {"partitions": frozenset()},
        {"timeout_ms": 5},
        {"start_ms": -1},
        {"previous_producer_id": 7},
    ):
        with pytest.raises(IllegalTransitionError):
            check_transition(ongoing, replace(ongoing, **change))  # type: ignore[arg-type]
    check_transition(ongoing, ongoing)
    record = driver.log[-1]
    assert isinstance(record.value, TransactionLogValue)
    record.value.transaction_status = S.COMPLETE_ABORT
    with pytest.raises(IllegalTransitionError, match="no transition leads to this state"):
        driver.coordinator.replay(record)
