"""KIP-939: sessions that keep an open transaction, and transactions without a timeout.

The specification is the control: Kafka 4.3.1 rejects InitProducerId that keeps a transaction.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from oncelog.coordinator.transactions.coordinator import TransactionConfig
from oncelog.coordinator.transactions.metadata import MAX_EPOCH, check_transition
from oncelog.coordinator.transactions.records import transaction_record
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.init_producer_id import NO_TIMEOUT_MS
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

Producer = tuple[int, int]


@pytest.fixture
def driver() -> Driver:
    return Driver(TransactionConfig(two_phase_commit=True)).start()


def kept(driver: Driver, *, times: int = 1, client_version: int = 2, **fields: object) -> tuple[Producer, Producer]:
    """Return the producer of an open transaction, and that of the last session that has kept it."""
    old = open_transaction(driver, client_version=client_version)
    return old, [keep(driver, **fields) for _ in range(times)][-1]


def keep(driver: Driver, **fields: object) -> Producer:
    response = driver.init(version=6, keep_prepared_txn=True, **fields)  # type: ignore[arg-type]
    assert response.error_code == NONE
    return response.producer_id, response.producer_epoch


def next_producer(driver: Driver, producer: Producer, commit: bool = True) -> Producer:
    """End the transaction, write its markers, and return the producer of the next one."""
    response = driver.end("etl", producer, commit)
    assert response.error_code == NONE
    driver.write_markers()
    found = response.producer_id, response.producer_epoch
    assert driver.state().holder == found
    return found


# -- InitProducerId ---------------------------------------------------------------------------------------------------


def test_session_that_keeps_gets_a_later_epoch_and_the_producer_of_the_transaction(driver: Driver) -> None:
    old = open_transaction(driver)
    response = driver.init(version=6, keep_prepared_txn=True)
    assert (response.producer_id, response.producer_epoch) == (old[0], old[1] + 1)
    assert (response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch) == old
    assert (driver.state().state, driver.state().partitions) == (S.ONGOING, {A, B})
    assert driver.markers == []


def test_each_session_that_keeps_gets_another_epoch_and_the_same_transaction(driver: Driver) -> None:
    old = open_transaction(driver)
    for epoch in range(old[1] + 1, old[1] + 5):
        response = driver.init(version=6, keep_prepared_txn=True)
        assert response.producer_epoch == epoch
        assert (response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch) == old
        driver.reload()


@pytest.mark.parametrize("ended", [True, False, None])
def test_session_that_finds_nothing_to_keep_is_a_usual_one(driver: Driver, ended: bool | None) -> None:
    """`ended`: whether the former transaction committed; None if the transactional id is new."""
    if ended is not None:
        next_producer(driver, open_transaction(driver), ended)
    response = driver.init(version=6, keep_prepared_txn=True)
    assert response.error_code == NONE
    assert (response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch) == (-1, -1)
    assert driver.state().state is S.EMPTY


def test_decided_transaction_is_not_kept(driver: Driver) -> None:
    producer = open_transaction(driver)
    driver.end("etl", producer)
    assert driver.init(version=6, keep_prepared_txn=True).error_code == CONCURRENT
    driver.write_markers()
    assert driver.state().state is S.COMPLETE_COMMIT
    assert keep(driver) == (producer[0], producer[1] + 2)


def test_usual_session_aborts_a_kept_transaction(driver: Driver) -> None:
    """This is how an administrator terminates it (`oncelog txn terminate`)."""
    old, holder = kept(driver)
    assert driver.init().error_code == CONCURRENT
    assert [(m.commit, m.producer_id, m.producer_epoch) for m in driver.markers] == [(False, old[0], old[1] + 1)]
    driver.write_markers()
    assert driver.session() == (holder[0], holder[1] + 2)
    assert driver.end("etl", holder).error_code == FENCED


def test_client_that_names_a_producer_keeps_its_transaction_and_no_other(driver: Driver) -> None:
    """Its own producer names a transaction, and so does that of the session that has kept it."""
    old, holder = kept(driver)
    for producer in ((77, 0), (old[0], old[1] + 5)):
        assert driver.init(producer=producer, version=6, keep_prepared_txn=True).error_code == FENCED
    assert driver.state().holder == holder
    assert keep(driver, producer=holder) == (holder[0], holder[1] + 1)
    last = keep(driver, producer=old)
    assert last == (holder[0], holder[1] + 2)
    following = next_producer(driver, last)
    for state, error in ((S.COMPLETE_COMMIT, INVALID_STATE), (S.ONGOING, FENCED)):
        assert driver.state().state is state
        assert driver.init(producer=old, version=6, keep_prepared_txn=True).error_code == error
        assert driver.state().holder == following
        driver.add("etl", following, A)


@pytest.mark.parametrize("version", [0, 1])
def test_keeping_needs_transaction_version_2(driver: Driver, version: int) -> None:
    driver.config.transaction_version = version
    response = driver.init(version=6, keep_prepared_txn=True)
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert driver.log == []


def test_keeping_needs_no_two_phase_commit() -> None:
    driver = Driver().start()
    old, holder = kept(driver)
    assert holder == (old[0], old[1] + 1)
    assert driver.init(version=6, keep_prepared_txn=True, enable2_pc=True).error_code == (
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    )
    assert driver.state().holder == holder


def test_session_that_could_not_be_written_keeps_nothing(driver: Driver) -> None:
    old = open_transaction(driver)
    driver.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    with pytest.raises(ProtocolError):
        keep(driver)
    assert driver.state().holder == old
    assert driver.end("etl", old).error_code == NONE


# -- who may do what --------------------------------------------------------------------------------------------------


def test_former_producer_is_fenced(driver: Driver) -> None:
    old, _ = kept(driver)
    assert driver.add("etl", old, ("c", 0)) == FENCED
    for version in (2, 4, 5):
        assert driver.end("etl", old, version=version).error_code == FENCED
    assert set(driver.coordinator.verify_partitions("etl", *old, [A]).values()) == {FENCED}
    assert driver.state().partitions == {A, B}


def test_kept_transaction_gets_no_more_partitions(driver: Driver) -> None:
    _, holder = kept(driver)
    for partition in (A, ("c", 0)):
        assert driver.add("etl", holder, partition) == INVALID_STATE
    assert set(driver.coordinator.verify_partitions("etl", *holder, [A]).values()) == {INVALID_STATE}
    assert driver.state().partitions == {A, B}


def test_unknown_producer_is_told_so(driver: Driver) -> None:
    kept(driver)
    assert driver.add("etl", (77, 0), A) == UNKNOWN_ID
    assert driver.end("etl", (77, 0)).error_code == UNKNOWN_ID


# -- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("times", [1, 3])
def test_holder_ends_the_transaction_with_the_markers_of_its_producer(driver: Driver, commit: bool, times: int) -> None:
    old, holder = kept(driver, times=times)
    response = driver.end("etl", holder, commit)
    assert (response.producer_id, response.producer_epoch) == (holder[0], holder[1] + 1)
    assert [(m.commit, m.producer_id, m.producer_epoch, m.partitions) for m in driver.markers] == [
        (commit, old[0], old[1] + 1, (A, B))
    ]
    assert driver.end("etl", holder, commit).error_code == CONCURRENT
    driver.write_markers()
    assert driver.state().holder == (holder[0], holder[1] + 1)
    assert driver.state().state is (S.COMPLETE_COMMIT if commit else S.COMPLETE_ABORT)


@pytest.mark.parametrize("commit", [True, False])
def test_repeated_end_gets_the_same_answer(driver: Driver, commit: bool) -> None:
    _, holder = kept(driver)
    producer = next_producer(driver, holder, commit)
    for _ in range(2):
        again = driver.end("etl", holder, commit)
        assert (again.error_code, again.producer_id, again.producer_epoch) == (NONE, *producer)
        driver.reload()
    assert driver.end("etl", holder, not commit).error_code == (INVALID_STATE if commit else FENCED)


def test_late_end_of_the_holder_never_ends_the_next_transaction(driver: Driver) -> None:
    """The epoch is raised at the end, too, although it was raised when the session kept the transaction."""
    _, holder = kept(driver)
    producer = next_producer(driver, holder)
    assert driver.add("etl", producer, A) == NONE
    for version in (4, 5):
        assert driver.end("etl", holder, version=version).error_code == FENCED
    assert driver.state().state is S.ONGOING


def test_failover_at_each_step_changes_nothing(driver: Driver) -> None:
    old, holder = kept(driver)
    driver.reload()
    assert driver.state().holder == holder
    driver.end("etl", holder)
    driver.reload()
    assert [(m.producer_id, m.producer_epoch) for m in driver.markers] == [(old[0], old[1] + 1)]
    driver.write_markers()
    driver.reload()
    assert driver.state().holder == (holder[0], holder[1] + 1)


@pytest.mark.parametrize("level", [0, 1])
def test_downgrade_while_a_transaction_is_kept(driver: Driver, level: int) -> None:
    """A client that sees the lower level ends it in version 4. Its epoch stays, as it does there."""
    old, holder = kept(driver)
    driver.config.transaction_version = level
    driver.reload()
    assert driver.end("etl", holder, version=4).error_code == NONE
    driver.reload()
    assert [(m.producer_id, m.producer_epoch) for m in driver.markers] == [old]
    driver.write_markers()
    assert driver.state().holder == holder
    assert driver.add("etl", holder, A, client_version=0) == NONE


@pytest.mark.parametrize("level", [0, 1])
def test_usual_session_after_a_downgrade_aborts_it(driver: Driver, level: int) -> None:
    old, holder = kept(driver)
    driver.config.transaction_version = level
    assert driver.init().error_code == CONCURRENT
    driver.reload()
    assert [(m.producer_id, m.producer_epoch) for m in driver.markers] == [(old[0], old[1] + 1)]
    driver.write_markers()
    assert driver.session() == (holder[0], holder[1] + 2)


# -- exhausted epochs -------------------------------------------------------------------------------------------------


def test_session_that_keeps_the_last_epoch_gets_another_producer_id(driver: Driver) -> None:
    old = at_epoch(driver, MAX_EPOCH - 1)
    driver.add("etl", old, A)
    holder = keep(driver)
    assert holder == (1001, 0)
    assert driver.end("etl", old).error_code == FENCED
    driver.reload()
    assert next_producer(driver, holder) == (1001, 1)
    again = driver.end("etl", holder)
    assert (again.error_code, again.producer_id, again.producer_epoch) == (NONE, 1001, 1)


@pytest.mark.parametrize("commit", [True, False])
def test_holder_with_the_last_epoch_ends_with_another_producer_id(driver: Driver, commit: bool) -> None:
    old = at_epoch(driver, MAX_EPOCH - 2)
    driver.add("etl", old, A)
    holder = keep(driver)
    assert holder == (old[0], MAX_EPOCH - 1)
    producer = next_producer(driver, holder, commit)
    assert producer == (1001, 0)
    driver.reload()
    again = driver.end("etl", holder, commit)
    assert (again.error_code, again.producer_id, again.producer_epoch) == (NONE, *producer)


# -- time -------------------------------------------------------------------------------------------------------------


def test_two_phase_commit_has_no_timeout_and_other_sessions_may_keep_it(driver: Driver) -> None:
    """The timeout of a session without two-phase commit does not abort what it is to end."""
    producer = driver.session(enable2_pc=True, timeout_ms=1)
    driver.add("etl", producer, A)
    holder = keep(driver, timeout_ms=1000)
    driver.tick(2**40)
    assert (driver.state().state, driver.state().timeout_ms) == (S.ONGOING, NO_TIMEOUT_MS)
    assert driver.end("etl", holder).error_code == NONE


def test_session_with_two_phase_commit_ends_the_timeout_of_the_transaction(driver: Driver) -> None:
    open_transaction(driver)
    holder = keep(driver, enable2_pc=True)
    driver.tick(2**40)
    assert driver.state().holder == holder


def test_kept_transaction_without_two_phase_commit_has_its_timeout(driver: Driver) -> None:
    old, holder = kept(driver, timeout_ms=10)
    driver.tick(60_000)
    assert driver.state().state is S.ONGOING
    driver.tick(1)
    assert [(m.commit, m.producer_id, m.producer_epoch) for m in driver.markers] == [(False, old[0], old[1] + 1)]
    driver.write_markers()
    assert driver.end("etl", holder).error_code == FENCED
    assert driver.session() == (holder[0], holder[1] + 2)


def test_open_transaction_stays_without_a_timeout_after_the_setting_is_disabled(driver: Driver) -> None:
    producer = driver.session(enable2_pc=True)
    driver.add("etl", producer, A)
    driver.config.two_phase_commit = False
    driver.reload()
    driver.tick(2**40)
    assert driver.state().state is S.ONGOING
    assert driver.end("etl", keep(driver)).error_code == NONE


def test_later_transactions_of_a_session_have_a_timeout_if_the_setting_is_disabled(driver: Driver) -> None:
    """The session has kept a transaction without a timeout, and may begin none."""
    producer = driver.session(enable2_pc=True)
    driver.add("etl", producer, A)
    driver.config.two_phase_commit = False
    producer = next_producer(driver, keep(driver, timeout_ms=1))
    driver.reload()
    assert driver.add("etl", producer, A) == NONE
    assert driver.state().timeout_ms == driver.config.max_timeout_ms
    driver.reload()
    driver.tick(driver.config.max_timeout_ms + 1)
    assert driver.state().state is S.PREPARE_ABORT


# -- records ----------------------------------------------------------------------------------------------------------


def test_transition_that_keeps_checks_the_next_epoch(driver: Driver) -> None:
    open_transaction(driver)
    before = driver.state()
    keep(driver)
    after = driver.state()
    check_transition(before, after)
    for changes in ({"next_producer_epoch": 5}, {"partitions": frozenset({A})}, {"producer_epoch": 1}):
        with pytest.raises(RuntimeError):
            check_transition(before, replace(after, **changes))  # type: ignore[arg-type]


def test_record_of_a_kept_transaction_has_tagged_fields_at_every_level(driver: Driver) -> None:
    kept(driver)
    for level in (0, 1, 2):
        assert transaction_record(driver.state(), level).value_version == 1


@pytest.mark.parametrize(("producer_id", "epoch"), [(-1, 5), (1000, 5), (77, 0)])
@pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT])
def test_next_producer_of_a_record_counts_only_in_an_open_transaction(
    driver: Driver, state: S, producer_id: int, epoch: int
) -> None:
    producer = driver.session()
    if state is S.COMPLETE_COMMIT:
        driver.add("etl", producer, A)
        producer = next_producer(driver, producer)
    contradictory = replace(driver.state(), next_producer_id=producer_id, next_producer_epoch=epoch)
    driver.log.append(transaction_record(contradictory, 2))
    driver.reload()
    assert driver.state().holder == producer
    assert driver.add("etl", producer, A) == NONE
    next_producer(driver, producer)


def test_kept_transaction_without_a_next_producer_is_an_open_one(driver: Driver) -> None:
    producer = open_transaction(driver)
    driver.log.append(transaction_record(replace(driver.state(), next_producer_epoch=5), 2))
    driver.reload()
    assert driver.state().holder == producer
    assert driver.end("etl", producer).error_code == NONE
