"""InitProducerId: producer ids and epochs, fencing, and exhausted epochs."""

from __future__ import annotations

import pytest

from oncelog.coordinator.transactions.coordinator import TransactionConfig
from oncelog.coordinator.transactions.metadata import (
    MAX_EPOCH,
)
from oncelog.protocol.errors import ErrorCode
from support.transaction_driver import (
    CONCURRENT,
    FENCED,
    NONE,
    UNKNOWN_ID,
    A,
    B,
    Driver,
    S,
    at_epoch,
    open_transaction,
)

# -- InitProducerId ----------------------------------------------------------------------------------------------------


def test_new_id_gets_a_producer_at_epoch_0(driver: Driver) -> None:
    assert driver.session("one") == (1000, 0)
    assert driver.session("two") == (1001, 0)
    assert driver.state("one").state is S.EMPTY


def test_same_id_keeps_its_producer_id_and_raises_the_epoch(driver: Driver) -> None:
    assert [driver.session() for _ in range(3)] == [(1000, 0), (1000, 1), (1000, 2)]


@pytest.mark.parametrize("client_version", [0, 2])
def test_successor_first_aborts_the_open_transaction(driver: Driver, client_version: int) -> None:
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
    ],
)
def test_rejected_sessions_change_nothing(driver: Driver, fields: dict[str, object], error: ErrorCode) -> None:
    response = driver.init(**fields)  # type: ignore[arg-type]
    assert (response.error_code, response.producer_id, response.producer_epoch) == (error, -1, -1)
    assert driver.log == []


def test_missing_producer_id_block_is_retriable(driver: Driver) -> None:
    driver.ids.empty = True
    assert driver.init().error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert driver.log == []


def test_new_session_may_change_the_timeout(driver: Driver) -> None:
    driver.session(timeout_ms=1000)
    driver.session(timeout_ms=2000)
    assert driver.state().timeout_ms == 2000


# -- InitProducerId after an error (KIP-360) --------------------------------------------------------------------------


def test_init_with_the_current_producer_bumps_the_epoch(driver: Driver) -> None:
    producer = driver.session()
    assert driver.session(producer=producer) == (1000, 1)


def test_retried_epoch_bump_returns_the_same_epoch(driver: Driver) -> None:
    producer = driver.session()
    driver.session(producer=producer)
    assert driver.session(producer=producer) == (1000, 1)
    assert driver.session(producer=producer) == (1000, 1)


def test_epoch_bump_is_rejected_after_a_successor(driver: Driver) -> None:
    producer = driver.session()
    driver.session(producer=producer)
    driver.session()
    assert driver.init(producer=producer).error_code == FENCED
    assert driver.init(producer=(1000, 1)).error_code == FENCED
    assert driver.init(producer=(999, 2)).error_code == FENCED
    assert driver.session(producer=(1000, 2)) == (1000, 3)


def test_epoch_bump_of_a_forgotten_id_gets_a_new_producer(driver: Driver) -> None:
    assert driver.session(producer=(77, 3)) == (1000, 0)


def test_epoch_bump_aborts_the_open_transaction(driver: Driver) -> None:
    producer = open_transaction(driver)
    assert driver.init(producer=producer).error_code == CONCURRENT
    driver.write_markers()
    assert driver.session(producer=producer) == (1000, 1)


def test_epoch_bump_of_a_zombie_cannot_abort_its_successors_transaction(driver: Driver) -> None:
    zombie = driver.session()
    producer = driver.session()
    driver.add("etl", producer, A)
    assert driver.init(producer=zombie).error_code == FENCED
    assert driver.state().state is S.ONGOING


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_older_clients_get_the_older_fencing_error(driver: Driver, version: int) -> None:
    driver.session()
    assert driver.init(producer=(999, 2), version=version).error_code == ErrorCode.INVALID_PRODUCER_EPOCH


# -- exhausted epochs -------------------------------------------------------------------------------------------------


def test_exhausted_epoch_rotates_the_producer_id(driver: Driver) -> None:
    at_epoch(driver, MAX_EPOCH - 1)
    assert driver.session() == (1001, 0)


def test_rotation_can_be_retried(driver: Driver) -> None:
    producer = at_epoch(driver, MAX_EPOCH - 1)
    assert driver.session(producer=producer) == (1001, 0)
    assert driver.session(producer=producer) == (1001, 0)


def test_fencing_the_last_epoch_still_works(driver: Driver) -> None:
    producer = at_epoch(driver, MAX_EPOCH - 1)
    driver.add("etl", producer, A)
    driver.tick(60_001)
    assert (driver.state().producer_epoch, driver.state().next_producer_id) == (MAX_EPOCH, 1001)
    assert driver.markers[0].producer_id == 1000
    driver.reload()  # KAFKA-20090: the successor of a coordinator that died between the two
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
def test_end_at_the_last_epoch_returns_a_new_producer_id(driver: Driver, commit: bool) -> None:
    producer = at_epoch(driver, MAX_EPOCH - 1)
    driver.add("etl", producer, A)
    response = driver.end("etl", producer, commit)
    assert (response.error_code, response.producer_id, response.producer_epoch) == (NONE, 1001, 0)
    # The client continues at once, with an id that becomes valid only when the markers are written.
    assert driver.add("etl", (1001, 0), A) == CONCURRENT
    assert driver.end("etl", producer, commit).error_code == CONCURRENT
    driver.write_markers()
    retry = driver.end("etl", producer, commit)
    assert (retry.error_code, retry.producer_id, retry.producer_epoch) == (NONE, 1001, 0)
    assert driver.add("etl", (1001, 0), A) == NONE
    assert driver.add("etl", producer, A) == UNKNOWN_ID


def test_end_at_the_last_epoch_without_an_available_id_changes_nothing(driver: Driver) -> None:
    producer = at_epoch(driver, MAX_EPOCH - 1)
    driver.add("etl", producer, A)
    driver.ids.empty = True
    assert driver.end("etl", producer).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    driver.tick(60_001)
    assert driver.state().state is S.ONGOING
    driver.ids.empty = False
    driver.tick(1000)
    assert driver.state().state is S.PREPARE_ABORT


def test_last_epoch_can_be_aborted_after_a_timeout(driver: Driver) -> None:
    producer = at_epoch(driver, MAX_EPOCH)
    driver.add("etl", producer, A)
    driver.tick(60_001)
    driver.write_markers()
    assert (driver.state().producer_id, driver.state().producer_epoch) == (1001, 0)
