"""Timeouts and expiry of transactions, and coordinator failovers."""

from __future__ import annotations

import pytest

from oncelog.coordinator.transactions.coordinator import TransactionConfig
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.init_producer_id import NO_TIMEOUT_MS
from support.transaction_driver import (
    CONCURRENT,
    NONE,
    A,
    B,
    Driver,
    S,
    open_transaction,
)

# -- time --------------------------------------------------------------------------------------------------------------


def test_timeout_of_a_transaction_starts_at_its_first_partition(driver: Driver) -> None:
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


def test_shorter_timeout_of_a_later_session_is_used(driver: Driver) -> None:
    producer = driver.session(timeout_ms=60_000)
    driver.add("etl", producer, A)
    driver.end("etl", producer)
    driver.write_markers()
    producer = driver.session(timeout_ms=10)
    driver.add("etl", producer, A)
    driver.tick(11)
    assert driver.state().state is S.PREPARE_ABORT


def test_timeout_abort_that_cannot_be_written_bumps_the_epoch_once(driver: Driver) -> None:
    """KAFKA-9666: a retry does not bump it."""
    open_transaction(driver)
    driver.now_ms += 60_001
    for _ in range(3):
        driver.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
        with pytest.raises(ProtocolError):
            driver.tick(1000)
    driver.tick(1000)
    assert (driver.state().state, driver.state().producer_epoch) == (S.PREPARE_ABORT, 1)


def test_session_that_cannot_be_written_bumps_the_epoch_once(driver: Driver) -> None:
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


def test_idle_transactional_ids_expire(driver: Driver) -> None:
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


def test_use_prevents_the_expiry_of_a_transactional_id(driver: Driver) -> None:
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


def test_many_deadlines_are_returned_in_batches(driver: Driver) -> None:
    for number in range(250):
        driver.add(f"t{number}", driver.session(f"t{number}"), A)
    driver.now_ms += 60_001
    sizes = []
    for _ in range(3):
        effects = driver.coordinator.tick(driver.now_ms)
        sizes.append(len(effects.records))
        driver.apply(effects)
    assert sizes == [100, 100, 50]


def test_deadlines_do_not_accumulate(driver: Driver) -> None:
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
def test_successor_completes_a_prepared_transaction(driver: Driver, commit: bool) -> None:
    producer = open_transaction(driver)
    driver.end("etl", producer, commit)
    driver.write_markers({B: ErrorCode.NOT_LEADER_OR_FOLLOWER})
    driver.reload()
    (markers,) = driver.markers
    assert (markers.commit, markers.coordinator_epoch, markers.partitions) == (commit, 1, (A, B))
    driver.write_markers()
    assert driver.state().state is (S.COMPLETE_COMMIT if commit else S.COMPLETE_ABORT)


def test_successor_keeps_open_transactions_and_their_timeouts(driver: Driver) -> None:
    producer = open_transaction(driver)
    driver.tick(30_000)
    driver.reload()
    assert driver.markers == []
    assert driver.add("etl", producer, ("c", 0)) == NONE
    driver.tick(30_001)
    assert driver.state().state is S.PREPARE_ABORT


def test_successor_completes_a_prepared_transaction_without_partitions(driver: Driver) -> None:
    producer = driver.session()
    driver.add("etl", producer, client_version=0)
    driver.end("etl", producer, version=4)
    driver.log.pop()
    driver.reload()
    assert driver.state().state is S.COMPLETE_COMMIT


def test_end_can_be_retried_across_a_failover(driver: Driver) -> None:
    producer = open_transaction(driver)
    driver.end("etl", producer)
    driver.reload()
    assert driver.end("etl", producer).error_code == CONCURRENT
    driver.write_markers()
    driver.reload()
    retry = driver.end("etl", producer)
    assert (retry.error_code, retry.producer_epoch) == (NONE, 1)


def test_producer_recovers_from_a_timeout_across_a_failover(driver: Driver) -> None:
    """KAFKA-20090: the record contains the epoch before the abort."""
    producer = open_transaction(driver)
    driver.tick(60_001)
    driver.write_markers()
    driver.reload()
    assert driver.session(producer=producer) == (1000, 1)
