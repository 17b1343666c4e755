"""The transaction coordinator, rule by rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oncelog.coordinator.transactions.coordinator import TransactionConfig
from oncelog.coordinator.transactions.states import PREVIOUS_STATES, TransactionState
from oncelog.coordinator.transactions.transaction import (
    MAX_EPOCH,
    NO_TIMEOUT_MS,
    IllegalTransitionError,
    check_transition,
)
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.transaction_log import TransactionLogValue
from support.transaction_driver import Driver

S = TransactionState
NONE = ErrorCode.NONE
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
FENCED = ErrorCode.PRODUCER_FENCED
INVALID_STATE = ErrorCode.INVALID_TXN_STATE
UNKNOWN_ID = ErrorCode.INVALID_PRODUCER_ID_MAPPING

A, B = ("a", 0), ("b", 1)


@pytest.fixture
def driver() -> Driver:
    return Driver().start()


def open_transaction(driver: Driver, *, client_version: int = 2) -> tuple[int, int]:
    producer = driver.session()
    assert driver.add("etl", producer, A, B, client_version=client_version) == NONE
    return producer


def at_epoch(driver: Driver, epoch: int) -> tuple[int, int]:
    """A session of `etl` whose epoch is nearly used up."""
    producer_id, _ = driver.session()
    driver.coordinator.transactions["etl"] = replace(driver.state(), producer_epoch=epoch)
    return producer_id, epoch


# -- InitProducerId ----------------------------------------------------------------------------------------------------


def test_a_new_id_gets_a_producer_at_epoch_0(driver: Driver) -> None:
    assert driver.session("one") == (1000, 0)
    assert driver.session("two") == (1001, 0)
    assert driver.state("one").state is S.EMPTY


def test_the_same_id_keeps_its_producer_and_raises_the_epoch(driver: Driver) -> None:
    assert [driver.session() for _ in range(3)] == [(1000, 0), (1000, 1), (1000, 2)]


@pytest.mark.parametrize("client_version", [0, 2])
def test_a_successor_aborts_the_open_transaction_first(driver: Driver, client_version: int) -> None:
    old = open_transaction(driver, client_version=client_version)
    assert driver.init().error_code == CONCURRENT
    assert driver.state().state is S.PREPARE_ABORT
    assert driver.state().producer_epoch == 1
    assert [(m.commit, m.producer_epoch, m.partitions) for m in driver.markers] == [(False, 1, (A, B))]
    assert driver.init().error_code == CONCURRENT
    driver.write_markers()
    assert driver.state().state is S.COMPLETE_ABORT
    assert driver.session() == (1000, 2)
    assert driver.add("etl", old, A) == FENCED
    for version in (2, 4, 5):
        assert driver.end("etl", old, version=version).error_code == FENCED


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"name": ""}, ErrorCode.INVALID_REQUEST),
        ({"producer": (5, -1)}, ErrorCode.INVALID_REQUEST),
        ({"producer": (-1, 5)}, ErrorCode.INVALID_REQUEST),
        ({"timeout_ms": 0}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"timeout_ms": 900_001}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"enable2_pc": True}, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ({"keep_prepared_txn": True}, ErrorCode.UNSUPPORTED_VERSION),
    ],
)
def test_refused_sessions_leave_no_trace(driver: Driver, fields: dict[str, object], error: ErrorCode) -> None:
    response = driver.init(**fields)  # type: ignore[arg-type]
    assert (response.error_code, response.producer_id, response.producer_epoch) == (error, -1, -1)
    assert driver.log == []


def test_no_producer_id_at_hand_is_retriable(driver: Driver) -> None:
    driver.ids.empty = True
    assert driver.init().error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert driver.log == []


def test_a_new_session_may_change_the_timeout(driver: Driver) -> None:
    driver.session(timeout_ms=1000)
    driver.session(timeout_ms=2000)
    assert driver.state().timeout_ms == 2000


# -- InitProducerId that goes on after an error (KIP-360) --------------------------------------------------------------


def test_a_producer_goes_on_under_the_next_epoch(driver: Driver) -> None:
    producer = driver.session()
    assert driver.session(producer=producer) == (1000, 1)


def test_a_retry_of_going_on_gets_the_same_epoch(driver: Driver) -> None:
    producer = driver.session()
    driver.session(producer=producer)
    assert driver.session(producer=producer) == (1000, 1)
    assert driver.session(producer=producer) == (1000, 1)


def test_going_on_is_over_once_a_successor_came(driver: Driver) -> None:
    producer = driver.session()
    driver.session(producer=producer)
    driver.session()
    assert driver.init(producer=producer).error_code == FENCED
    assert driver.init(producer=(1000, 1)).error_code == FENCED
    assert driver.init(producer=(999, 2)).error_code == FENCED
    assert driver.session(producer=(1000, 2)) == (1000, 3)


def test_going_on_of_an_id_that_was_forgotten_gets_a_new_producer(driver: Driver) -> None:
    assert driver.session(producer=(77, 3)) == (1000, 0)


def test_going_on_aborts_the_open_transaction(driver: Driver) -> None:
    producer = open_transaction(driver)
    assert driver.init(producer=producer).error_code == CONCURRENT
    driver.write_markers()
    assert driver.session(producer=producer) == (1000, 1)


def test_a_zombie_that_goes_on_cannot_abort_its_successors_transaction(driver: Driver) -> None:
    zombie = driver.session()
    producer = driver.session()
    driver.add("etl", producer, A)
    assert driver.init(producer=zombie).error_code == FENCED
    assert driver.state().state is S.ONGOING


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_older_clients_know_only_the_older_fencing_error(driver: Driver, version: int) -> None:
    driver.session()
    assert driver.init(producer=(999, 2), version=version).error_code == ErrorCode.INVALID_PRODUCER_EPOCH


# -- epochs that are used up -------------------------------------------------------------------------------------------


def test_a_used_up_epoch_rotates_the_producer_id(driver: Driver) -> None:
    at_epoch(driver, MAX_EPOCH - 1)
    assert driver.session() == (1001, 0)


def test_a_rotation_is_retried_safely(driver: Driver) -> None:
    producer = at_epoch(driver, MAX_EPOCH - 1)
    assert driver.session(producer=producer) == (1001, 0)
    assert driver.session(producer=producer) == (1001, 0)


def test_fencing_the_last_epoch_still_works(driver: Driver) -> None:
    producer = at_epoch(driver, MAX_EPOCH - 1)
    driver.add("etl", producer, A)
    driver.tick(60_001)
    assert (driver.state().producer_epoch, driver.state().next_producer_id) == (MAX_EPOCH, 1001)
    assert driver.markers[0].producer_id == 1000
    driver.reload()  # KAFKA-20090: the successor of a coordinator that died in between
    driver.write_markers()
    assert (driver.state().producer_id, driver.state().producer_epoch) == (1001, 0)
    assert driver.session() == (1001, 1)


def test_version_1_fences_the_last_epoch_and_rotates_at_the_next_session() -> None:
    driver = Driver(TransactionConfig(transaction_version=1)).start()
    producer = at_epoch(driver, MAX_EPOCH - 1)
    driver.add("etl", producer, A, client_version=0)
    assert driver.init().error_code == CONCURRENT
    driver.write_markers()
    assert driver.state().producer_epoch == MAX_EPOCH
    assert driver.session() == (1001, 0)


@pytest.mark.parametrize("commit", [True, False])
def test_ending_at_the_last_epoch_hands_out_a_new_producer_id(driver: Driver, commit: bool) -> None:
    producer = at_epoch(driver, MAX_EPOCH - 1)
    driver.add("etl", producer, A)
    response = driver.end("etl", producer, commit)
    assert (response.error_code, response.producer_id, response.producer_epoch) == (NONE, 1001, 0)
    # The client goes on at once, under an id that takes over only when the markers are written.
    assert driver.add("etl", (1001, 0), A) == CONCURRENT
    assert driver.end("etl", producer, commit).error_code == CONCURRENT
    driver.write_markers()
    retry = driver.end("etl", producer, commit)
    assert (retry.error_code, retry.producer_id, retry.producer_epoch) == (NONE, 1001, 0)
    assert driver.add("etl", (1001, 0), A) == NONE
    assert driver.add("etl", producer, A) == UNKNOWN_ID


def test_ending_at_the_last_epoch_without_an_id_at_hand_changes_nothing(driver: Driver) -> None:
    producer = at_epoch(driver, MAX_EPOCH - 1)
    driver.add("etl", producer, A)
    driver.ids.empty = True
    assert driver.end("etl", producer).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    driver.tick(60_001)
    assert driver.state().state is S.ONGOING
    driver.ids.empty = False
    driver.tick(1000)
    assert driver.state().state is S.PREPARE_ABORT


def test_an_epoch_that_no_client_ever_saw_can_still_be_aborted(driver: Driver) -> None:
    producer = at_epoch(driver, MAX_EPOCH)
    driver.add("etl", producer, A)
    driver.tick(60_001)
    driver.write_markers()
    assert (driver.state().producer_id, driver.state().producer_epoch) == (1001, 0)


# -- AddPartitionsToTxn ------------------------------------------------------------------------------------------------


def test_the_first_partition_starts_the_transaction(driver: Driver) -> None:
    producer = driver.session()
    driver.now_ms += 5
    driver.add("etl", producer, A)
    started = driver.state()
    assert (started.state, started.start_ms, started.partitions) == (S.ONGOING, driver.now_ms, {A})
    driver.now_ms += 5
    driver.add("etl", producer, B)
    assert (driver.state().start_ms, driver.state().partitions) == (started.start_ms, {A, B})


def test_partitions_that_are_in_it_already_cost_no_record(driver: Driver) -> None:
    producer = open_transaction(driver)
    before = len(driver.log)
    assert driver.add("etl", producer, A) == NONE
    assert len(driver.log) == before


def test_who_may_add_partitions(driver: Driver) -> None:
    producer_id, epoch = driver.session()
    assert driver.add("", (producer_id, epoch), A) == ErrorCode.INVALID_REQUEST
    assert driver.add("nobody", (producer_id, epoch), A) == UNKNOWN_ID
    assert driver.add("etl", (producer_id + 1, epoch), A) == UNKNOWN_ID
    assert driver.add("etl", (producer_id, epoch + 1), A) == FENCED
    assert driver.add("etl", (producer_id, epoch - 1), A) == FENCED


def test_no_partition_joins_a_transaction_that_is_ending(driver: Driver) -> None:
    """KAFKA-18575: the next transaction's first partition waits, it never joins the former one."""
    producer = open_transaction(driver)
    response = driver.end("etl", producer)
    following = response.producer_id, response.producer_epoch
    assert driver.add("etl", following, ("c", 0)) == CONCURRENT
    assert driver.state().partitions == {A, B}
    driver.write_markers()
    assert driver.add("etl", following, ("c", 0)) == NONE
    assert driver.state().partitions == {("c", 0)}


def test_verification_changes_nothing_and_says_what_is_in_it(driver: Driver) -> None:
    producer_id, epoch = open_transaction(driver)
    before = len(driver.log)

    def verify(name: str, producer: tuple[int, int]) -> list[ErrorCode]:
        found = driver.coordinator.verify_partitions(name, *producer, [A, ("c", 0)])
        assert set(found) == {A, ("c", 0)}
        return [found[A], found["c", 0]]

    assert verify("etl", (producer_id, epoch)) == [NONE, ErrorCode.TRANSACTION_ABORTABLE]
    assert verify("etl", (producer_id, epoch + 1)) == [FENCED, FENCED]
    assert verify("etl", (producer_id + 1, epoch)) == [UNKNOWN_ID] * 2
    assert verify("nobody", (producer_id, epoch)) == [UNKNOWN_ID] * 2
    assert verify("", (producer_id, epoch)) == [ErrorCode.INVALID_REQUEST] * 2
    driver.end("etl", (producer_id, epoch), version=4)
    assert verify("etl", (producer_id, epoch)) == [CONCURRENT, CONCURRENT]
    driver.write_markers()
    assert verify("etl", (producer_id, epoch)) == [ErrorCode.TRANSACTION_ABORTABLE] * 2
    assert len(driver.log) == before + 2


# -- EndTxn ------------------------------------------------------------------------------------------------------------


def test_version_2_moves_the_epoch_with_each_transaction(driver: Driver) -> None:
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


def test_a_late_ending_never_reaches_the_next_transaction(driver: Driver) -> None:
    """KAFKA-17754."""
    producer = open_transaction(driver)
    response = driver.end("etl", producer)
    driver.write_markers()
    driver.add("etl", (response.producer_id, response.producer_epoch), A)
    for commit in (True, False):
        assert driver.end("etl", producer, commit).error_code == FENCED
    assert driver.state().state is S.ONGOING


def test_a_higher_epoch_is_refused(driver: Driver) -> None:
    """KAFKA-9600."""
    producer_id, epoch = open_transaction(driver)
    for version in (4, 5):
        assert driver.end("etl", (producer_id, epoch + 1), version=version).error_code == FENCED
    assert driver.state().state is S.ONGOING


@pytest.mark.parametrize("version", [0, 1])
def test_older_enders_know_only_the_older_fencing_error(driver: Driver, version: int) -> None:
    producer_id, epoch = open_transaction(driver)
    response = driver.end("etl", (producer_id, epoch + 1), version=version)
    assert response.error_code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_who_may_end(driver: Driver) -> None:
    producer_id, epoch = open_transaction(driver)
    for version in (4, 5):
        assert driver.end("", (producer_id, epoch), version=version).error_code == ErrorCode.INVALID_REQUEST
        assert driver.end("nobody", (producer_id, epoch), version=version).error_code == UNKNOWN_ID
        assert driver.end("etl", (producer_id + 1, epoch), version=version).error_code == UNKNOWN_ID


ENDED_1 = {
    "empty": (INVALID_STATE, INVALID_STATE),
    "committed": (NONE, INVALID_STATE),
    "aborted": (INVALID_STATE, NONE),
}
ENDED_2 = {  # committed or aborted by whom -> (commit, abort) under the current epoch, (commit, abort) again
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
def test_table_of_version_1(driver: Driver, how: str, commit: bool) -> None:
    producer = ended(driver, how, 4)
    before = len(driver.log)
    assert driver.end("etl", producer, commit, version=4).error_code == ENDED_1[how][not commit]
    assert len(driver.log) == before


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("how", ENDED_2)
def test_table_of_version_2_under_the_current_epoch(driver: Driver, how: str, commit: bool) -> None:
    ended(driver, how, 5)
    producer = 1000, driver.state().producer_epoch
    response = driver.end("etl", producer, commit)
    assert response.error_code == ENDED_2[how][0][not commit]
    if response.error_code == NONE:  # an abort of a client that does not know how far it had got
        assert (response.producer_id, response.producer_epoch) == (1000, producer[1] + 1)
        assert driver.state().state is S.COMPLETE_ABORT
        assert driver.markers == []


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("how", ENDED_2)
def test_table_of_version_2_again(driver: Driver, how: str, commit: bool) -> None:
    ended(driver, how, 5)
    producer = 1000, driver.state().producer_epoch - 1
    before = len(driver.log)
    assert driver.end("etl", producer, commit).error_code == ENDED_2[how][1][not commit]
    assert len(driver.log) == before


def test_a_commit_that_lost_against_the_coordinators_abort_is_fenced(driver: Driver) -> None:
    """KAFKA-20785."""
    producer = open_transaction(driver)
    driver.tick(60_001)
    assert driver.end("etl", producer).error_code == CONCURRENT
    driver.write_markers()
    assert driver.end("etl", producer).error_code == FENCED
    assert driver.session(producer=producer) == (1000, 1)  # KIP-588: the same producer recovers


def test_the_other_outcome_is_refused_while_ending(driver: Driver) -> None:
    producer = open_transaction(driver, client_version=0)
    driver.end("etl", producer, commit=True, version=4)
    for version in (4, 5):
        assert driver.end("etl", producer, commit=False, version=version).error_code == CONCURRENT
    driver.write_markers()
    assert driver.state().state is S.COMPLETE_COMMIT


def test_an_ending_of_version_1_is_not_repeated_by_one_of_version_2(driver: Driver) -> None:
    """A client that crosses the border back (KAFKA-18227): epoch 0 was aborted, epoch 1 committed."""
    aborted = open_transaction(driver)
    response = driver.end("etl", aborted, commit=False)
    driver.write_markers()
    committed = response.producer_id, response.producer_epoch
    driver.add("etl", committed, A, client_version=0)
    driver.end("etl", committed, version=4)
    driver.write_markers()
    assert driver.end("etl", aborted, commit=True).error_code == FENCED
    assert driver.end("etl", committed, version=4).error_code == NONE


def test_a_transaction_without_partitions_is_complete_at_once(driver: Driver) -> None:
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
def test_no_partition_that_exists_is_ever_skipped(driver: Driver, error: ErrorCode) -> None:
    producer = open_transaction(driver)
    driver.end("etl", producer)
    for _ in range(3):
        driver.write_markers({A: error})
        assert driver.state().state is S.PREPARE_COMMIT
    driver.write_markers()
    assert driver.state().state is S.COMPLETE_COMMIT


def test_a_deleted_topic_is_skipped_when_told_so(driver: Driver) -> None:
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
def test_a_fenced_coordinator_completes_nothing(driver: Driver, error: ErrorCode) -> None:
    producer = open_transaction(driver)
    driver.end("etl", producer)
    driver.write_markers({A: error})
    assert driver.state().state is S.PREPARE_COMMIT


def test_results_of_a_former_ending_do_not_count(driver: Driver) -> None:
    producer = open_transaction(driver)
    response = driver.end("etl", producer)
    (late,) = driver.markers
    driver.write_markers()
    following = response.producer_id, response.producer_epoch
    driver.add("etl", following, A)
    driver.end("etl", following, commit=False)
    driver.apply(driver.coordinator.markers_written(late, {A: NONE}, driver.now_ms))
    assert driver.state().state is S.PREPARE_ABORT
    assert not driver.coordinator.wants(late)


def test_completion_is_written_once_though_markers_are_reported_twice(driver: Driver) -> None:
    """KAFKA-9777, KAFKA-10080."""
    producer = open_transaction(driver)
    driver.end("etl", producer)
    (markers,) = driver.markers
    both = {A: NONE, B: NONE}
    first = driver.coordinator.markers_written(markers, both, driver.now_ms)
    driver.apply(first)
    assert driver.coordinator.markers_written(markers, both, driver.now_ms).records == []


def test_a_completion_that_cannot_be_written_is_tried_again(driver: Driver) -> None:
    producer = open_transaction(driver)
    driver.end("etl", producer)
    driver.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    with pytest.raises(ProtocolError):
        driver.write_markers()
    assert driver.state().state is S.PREPARE_COMMIT
    driver.tick(1000)
    assert driver.state().state is S.COMPLETE_COMMIT


# -- time --------------------------------------------------------------------------------------------------------------


def test_an_open_transaction_times_out_from_its_first_partition_on(driver: Driver) -> None:
    producer = driver.session(timeout_ms=1000)
    driver.tick(5000)
    driver.add("etl", producer, A)
    driver.tick(1000)
    driver.add("etl", producer, B)
    assert driver.state().state is S.ONGOING
    driver.tick(1)
    assert driver.state().state is S.PREPARE_ABORT
    assert driver.state().producer_epoch == 1
    assert driver.end("etl", producer).error_code == CONCURRENT
    driver.write_markers()
    assert driver.end("etl", producer, commit=False).error_code == NONE


def test_a_shorter_timeout_of_a_later_session_counts(driver: Driver) -> None:
    producer = driver.session(timeout_ms=60_000)
    driver.add("etl", producer, A)
    driver.end("etl", producer)
    driver.write_markers()
    producer = driver.session(timeout_ms=10)
    driver.add("etl", producer, A)
    driver.tick(11)
    assert driver.state().state is S.PREPARE_ABORT


def test_a_timeout_abort_that_cannot_be_written_bumps_the_epoch_once(driver: Driver) -> None:
    """KAFKA-9666: no bump per retry."""
    open_transaction(driver)
    driver.now_ms += 60_001
    for _ in range(3):
        driver.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
        with pytest.raises(ProtocolError):
            driver.tick(1000)
    driver.tick(1000)
    assert (driver.state().state, driver.state().producer_epoch) == (S.PREPARE_ABORT, 1)


def test_a_session_that_cannot_be_written_bumps_the_epoch_once(driver: Driver) -> None:
    """KAFKA-9666, in InitProducerId."""
    open_transaction(driver)
    for _ in range(3):
        driver.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
        with pytest.raises(ProtocolError):
            driver.init()
    assert driver.session() == (1000, 2)


def test_two_phase_commit_has_no_timeout() -> None:
    driver = Driver(TransactionConfig(two_phase_commit=True)).start()
    producer = driver.session(enable2_pc=True, timeout_ms=2**31 - 1)
    assert driver.state().timeout_ms == NO_TIMEOUT_MS
    driver.add("etl", producer, A)
    driver.tick(2**40)
    assert driver.state().state is S.ONGOING
    assert driver.end("etl", producer).error_code == NONE


def test_idle_transactional_ids_are_forgotten(driver: Driver) -> None:
    week = 604_800_000
    driver.session("idle")
    driver.tick(week - 1)
    assert set(driver.coordinator.transactions) == {"idle"}
    producer = driver.session("open", timeout_ms=900_000)
    driver.add("open", producer, A)
    driver.tick(1)
    assert set(driver.coordinator.transactions) == {"open"}
    assert driver.log[-1].value is None
    assert driver.session("idle") == (1002, 0)


def test_use_keeps_a_transactional_id_alive(driver: Driver) -> None:
    week = 604_800_000
    producer = driver.session()
    driver.tick(week - 10)
    driver.add("etl", producer, A)
    driver.end("etl", producer)
    driver.write_markers()
    driver.tick(week - 1)
    assert "etl" in driver.coordinator.transactions
    driver.tick(1)
    assert "etl" not in driver.coordinator.transactions


def test_many_deadlines_come_in_batches(driver: Driver) -> None:
    for number in range(250):
        driver.add(f"t{number}", driver.session(f"t{number}"), A)
    driver.now_ms += 60_001
    sizes = []
    for _ in range(3):
        effects = driver.coordinator.tick(driver.now_ms)
        sizes.append(len(effects.records))
        driver.apply(effects)
    assert sizes == [100, 100, 50]


def test_deadlines_do_not_pile_up(driver: Driver) -> None:
    producer = driver.session(timeout_ms=10)
    for _ in range(1000):
        driver.add("etl", producer, A)
        response = driver.end("etl", producer)
        producer = response.producer_id, response.producer_epoch
        driver.write_markers()
        driver.tick(20)
    assert len(driver.coordinator._deadlines._heap) < 100
    assert driver.coordinator.deadline() == driver.now_ms - 20 + 604_800_000


# -- reloading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_a_successor_carries_out_what_was_decided(driver: Driver, commit: bool) -> None:
    producer = open_transaction(driver)
    driver.end("etl", producer, commit)
    driver.write_markers({B: ErrorCode.NOT_LEADER_OR_FOLLOWER})
    driver.reload()
    (markers,) = driver.markers
    assert (markers.commit, markers.coordinator_epoch, markers.partitions) == (commit, 1, (A, B))
    driver.write_markers()
    assert driver.state().state is (S.COMPLETE_COMMIT if commit else S.COMPLETE_ABORT)


def test_a_successor_leaves_open_transactions_open_and_times_them(driver: Driver) -> None:
    producer = open_transaction(driver)
    driver.tick(30_000)
    driver.reload()
    assert driver.markers == []
    assert driver.add("etl", producer, ("c", 0)) == NONE
    driver.tick(30_001)
    assert driver.state().state is S.PREPARE_ABORT


def test_a_successor_completes_an_ending_without_partitions(driver: Driver) -> None:
    producer = driver.session()
    driver.add("etl", producer, client_version=0)
    driver.end("etl", producer, version=4)
    driver.log.pop()
    driver.reload()
    assert driver.state().state is S.COMPLETE_COMMIT


def test_an_ending_is_retried_across_a_failover(driver: Driver) -> None:
    producer = open_transaction(driver)
    driver.end("etl", producer)
    driver.reload()
    assert driver.end("etl", producer).error_code == CONCURRENT
    driver.write_markers()
    driver.reload()
    retry = driver.end("etl", producer)
    assert (retry.error_code, retry.producer_epoch) == (NONE, 1)


def test_a_producer_recovers_from_a_timeout_across_a_failover(driver: Driver) -> None:
    """KAFKA-20090: the epoch before the abort is known from the record."""
    producer = open_transaction(driver)
    driver.tick(60_001)
    driver.write_markers()
    driver.reload()
    assert driver.session(producer=producer) == (1000, 1)


# -- the states themselves ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0, 1])
def test_what_a_new_client_ends_under_an_old_level_outlives_the_coordinator(level: int) -> None:
    """The client has not heard of a downgrade: the producer id that takes over, and its retry, must not be lost."""
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


def test_the_table_of_transitions_is_kafkas() -> None:
    found = {(old.text, new.text) for new, olds in PREVIOUS_STATES.items() for old in olds}
    assert found == {
        *((old, "Empty") for old in ("Empty", "CompleteCommit", "CompleteAbort")),
        *((old, "Ongoing") for old in ("Ongoing", "Empty", "CompleteCommit", "CompleteAbort")),
        ("Ongoing", "PrepareCommit"),
        *((old, "PrepareAbort") for old in ("Ongoing", "Empty", "CompleteCommit", "CompleteAbort")),
        ("PrepareCommit", "CompleteCommit"),
        ("PrepareAbort", "CompleteAbort"),
    }


def test_states_have_the_names_and_numbers_of_the_wire() -> None:
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


def test_records_that_no_request_can_have_made_are_refused(driver: Driver) -> None:
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
    with pytest.raises(IllegalTransitionError, match="no such transition"):
        driver.coordinator.replay(record)
