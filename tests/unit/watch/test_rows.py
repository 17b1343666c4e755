"""Rows that are computed from a picture: rates, lag, ages, what hangs, and brokers."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from oncelog.client.discovery.topology import Partition, Topic
from oncelog.watch.document import coverage, document
from oncelog.watch.readings import (
    Ends,
    GroupReading,
    GroupReadings,
    Holder,
    Lag,
    PartitionReading,
    PartitionReadings,
    Picture,
    Requests,
    Trouble,
    WatchedBroker,
    WatchedGroup,
    WatchedTransaction,
)
from oncelog.watch.rows import broker_rows, group_rows, lag_of, topic_rows, transaction_rows

NOW = 2_000_000


def topic(name: str, *leaders: int, isr: tuple[int, ...] = (1, 2)) -> Topic:
    partitions = {index: Partition(leader, 0, (1, 2), isr) for index, leader in enumerate(leaders)}
    return Topic(name, UUID(int=1), name.startswith("__"), partitions)


def read(before: tuple[float, int] | None, at: float, high: int, stable: int | None = None) -> PartitionReadings:
    earlier = None if before is None else PartitionReading(before[0], before[1], before[1], before[1] * 10)
    return PartitionReadings(PartitionReading(at, high, high if stable is None else stable, high * 10), earlier)


EMPTY = Picture(
    at=10.0,
    time_ms=NOW,
    reachable=True,
    cluster_id="c",
    controller=1,
    brokers={1: WatchedBroker(1, "h", 9092, None)},
    topics={},
    partitions={},
    unanswered={},
    holders={},
    groups={},
    group_readings={},
    transactions=(),
    all_transactions_known=True,
    listed_at=1.0,
    troubles=(),
    requests=Requests({"METADATA": 1}, 7),
)


def test_topics_are_sorted_by_rate_then_by_distance() -> None:
    picture = replace(
        EMPTY,
        topics={name: topic(name, 1) for name in ("idle", "held", "slow", "fast")},
        partitions={
            ("fast", 0): read((0.0, 0), 2.0, 200),
            ("slow", 0): read((0.0, 0), 2.0, 10),
            ("held", 0): read((0.0, 5), 2.0, 5, stable=2),
            ("idle", 0): read((0.0, 5), 2.0, 5),
        },
    )
    rows = topic_rows(picture)
    assert [row.topic for row in rows] == ["fast", "slow", "held", "idle"]
    assert [(row.records_per_s, row.bytes_per_s) for row in rows[:2]] == [(100, 1000), (5, 50)]
    assert rows[2].lso_distance == 3


def test_rate_is_unknown_without_two_readings_of_the_same_log() -> None:
    picture = replace(
        EMPTY,
        topics={"new": topic("new", 1), "again": topic("again", 1), "silent": topic("silent", 1, 1)},
        partitions={
            ("new", 0): read(None, 2.0, 9),
            ("again", 0): read((0.0, 50), 2.0, 9),  # it was deleted and created again
            ("silent", 0): read((0.0, 0), 2.0, 9),
        },
        unanswered={("silent", 0): "broker 1 did not answer"},
    )
    rows = {row.topic: row for row in topic_rows(picture)}
    assert [rows[name].records_per_s for name in ("new", "again", "silent")] == [None, None, None]
    assert (rows["silent"].problem, rows["silent"].unread) == ("broker 1 did not answer", 1)


def test_bytes_are_unknown_after_old_segments_were_deleted() -> None:
    readings = PartitionReadings(PartitionReading(2.0, 9, 9, 100), PartitionReading(0.0, 5, 5, 900))
    (row,) = topic_rows(replace(EMPTY, topics={"t": topic("t", 1)}, partitions={("t", 0): readings}))
    assert (row.records_per_s, row.bytes_per_s, row.size_bytes) == (2, None, 100)


def held(*known: WatchedTransaction, all_known: bool = True, age_ms: int = 1_000_000) -> Picture:
    return replace(
        EMPTY,
        topics={"t": topic("t", 1)},
        partitions={("t", 0): read(None, 2.0, 9, stable=4)},
        holders={("t", 0): Holder(77, 0, NOW - age_ms)},
        transactions=known,
        all_transactions_known=all_known,
        listed_at=1.0,
    )


def test_holder_is_named_by_its_transactional_id() -> None:
    ours = WatchedTransaction("etl", "Ongoing", 77, 1, 0, NOW - 5000, 60_000, (("t", 0), ("u", 1)))
    picture = held(ours)
    (row,) = topic_rows(picture)
    assert (row.held_by, row.hanging) == ("etl", False)
    (transaction,) = transaction_rows(picture)
    assert (transaction.age_ms, transaction.partitions, transaction.holds_back) == (5000, 2, ["t-0"])


def test_transaction_without_coordinator_hangs_after_the_largest_timeout() -> None:
    (row,) = transaction_rows(held())
    assert (row.hanging, row.state, row.transactional_id, row.age_ms) == (True, "Hanging", None, 1_000_000)
    assert topic_rows(held())[0].hanging
    assert topic_rows(held())[0].held_by == "producer id 77"
    for picture, limit in ((held(age_ms=1000), 900_000), (held(), 2_000_000), (held(all_known=False), 900_000)):
        (row,) = transaction_rows(picture, limit)
        assert (row.hanging, row.state) == (False, "unknown")
        assert not topic_rows(picture, limit)[0].hanging


def test_transaction_hangs_if_its_coordinator_does_not_have_the_partition() -> None:
    elsewhere = WatchedTransaction("etl", "Ongoing", 77, 1, 0, NOW - 5000, 60_000, (("other", 0),))
    hanging, listed = transaction_rows(held(elsewhere))
    assert (hanging.hanging, hanging.holds_back) == (True, ["t-0"])
    assert (listed.transactional_id, listed.holds_back) == ("etl", [])
    not_described = WatchedTransaction("etl", "Ongoing", 77, 1)
    (row,) = transaction_rows(held(not_described))
    assert (row.hanging, row.holds_back) == (False, ["t-0"])


def test_transactions_are_sorted_by_age() -> None:
    known = [
        WatchedTransaction("young", "Ongoing", 1, 1, 0, NOW - 10, 1, ()),
        WatchedTransaction("unknown", "Ongoing", 2, 1),
        WatchedTransaction("old", "Ongoing", 3, 1, 0, NOW - 99, 1, ()),
    ]
    rows = transaction_rows(replace(EMPTY, transactions=tuple(known)))
    assert [row.transactional_id for row in rows] == ["old", "young", "unknown"]


def test_lag_counts_to_the_last_stable_offset() -> None:
    partitions = {("t", 0): Ends(10, 6), ("t", 1): Ends(5, 5)}
    assert lag_of({("t", 0): 4, ("t", 1): 5}, partitions) == Lag(2, 6, 0)
    assert lag_of({("t", 0): 8}, partitions) == Lag(0, 2, 0), "a group with read_uncommitted is ahead of the LSO"
    assert lag_of({("t", 0): 4, ("gone", 0): 1}, partitions) == Lag(2, 6, 1)
    assert lag_of({("gone", 0): 1}, partitions) == Lag(None, None, 1)
    assert lag_of({}, partitions) == Lag(None, None, 0)


def test_groups_are_sorted_by_lag() -> None:
    def of(*lags: int) -> GroupReadings:
        each = [GroupReading(float(at), Lag(lag, lag), 1) for at, lag in enumerate(lags)]
        return GroupReadings(each[-1], each[-2] if len(each) > 1 else None)

    names = ("none", "little", "much", "shut")
    picture = replace(
        EMPTY,
        groups={name: WatchedGroup(name, "Classic", "Stable", 1) for name in names},
        group_readings={
            "none": of(0),
            "little": of(9, 2),
            "much": of(5, 7),
            "shut": GroupReadings(GroupReading(0.0, None, None, "not authorized")),
            "deleted": of(99),
        },
    )
    rows = group_rows(picture)
    assert [row.group for row in rows] == ["much", "little", "none", "shut"]
    assert [row.lag_per_s for row in rows] == [2, -7, None, None]
    assert (rows[-1].lag, rows[-1].problem, rows[-1].partitions) == (None, "not authorized", None)


def test_brokers_that_do_not_run_are_listed() -> None:
    picture = replace(
        EMPTY,
        topics={"t": topic("t", 1, 1, -1, isr=(1,))},
        troubles=(Trouble("topics", "broker 1 did not answer within 5 s", 1),),
    )
    one, two = broker_rows(picture)
    assert (one.records_per_s, one.bytes_per_s) == (None, None), "no partition was read"
    assert (one.running, one.controller, one.leaders, one.under_replicated, one.out_of_sync) == (True, True, 2, 2, 0)
    assert one.problem == "broker 1 did not answer within 5 s"
    assert (two.broker, two.running, two.host, two.leaders, two.replicas, two.out_of_sync) == (2, False, None, 0, 3, 3)


def test_document_says_how_much_was_read() -> None:
    picture = held()
    assert coverage(picture)["partitions"] == (1, 1)
    found = document(picture, ("brokers",))
    assert found["read"] == {"partitions": {"read": 1, "total": 1}, "groups": {"read": 0, "total": 0}}
    assert found["requests"] == {"turn": {"METADATA": 1}, "total": 7}
    assert set(found) & {"topics", "groups", "transactions", "brokers"} == {"brokers"}
