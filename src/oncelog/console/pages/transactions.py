"""The page of all transactions: their states, and those that no coordinator will end."""

from __future__ import annotations

from oncelog.client.admin.transactions import MAX_TRANSACTION_TIMEOUT_MS
from oncelog.console.formats import address
from oncelog.console.model import Page, View, is_old
from oncelog.console.tables import Column, Row, Table
from oncelog.console.transaction_states import FINISHED, Dot, draw
from oncelog.watch import requests
from oncelog.watch.asking import Asker, hanging_among, texts, transactions_of
from oncelog.watch.readings import OPEN_STATES, WatchedTransaction

COLUMNS = (
    Column("transactional_id", "Transactional id", "id"),
    Column("state", "State", "state"),
    Column("age_ms", "Open for", "ms", late=True),
    Column("timeout_ms", "Timeout", "ms", "The coordinator aborts the transaction after this time", late=True),
    Column("pending", "Partitions", "number", "Partitions whose markers are not written yet", late=True),
    Column("producer_id", "Producer", "id"),
    Column("producer_epoch", "Epoch", "number", late=True),
    Column("coordinator", "Coordinator", "number", "The broker that coordinates it"),
)
HANGING = (
    Column("topic", "Topic", "id"),
    Column("partition", "Partition", "number"),
    Column("producer_id", "Producer", "id"),
    Column("producer_epoch", "Epoch", "number"),
    Column("first_offset", "First offset", "number"),
    Column("idle_ms", "Last batch", "ms", "Time since the producer's last batch"),
)
HANGING_MINUTES = MAX_TRANSACTION_TIMEOUT_MS // 60_000
HANGING_EVERY_MS = 10_000
HANGING_PARTITIONS = 10_000
COMMAND = "`oncelog txn find-hanging` searches them"


async def load(view: View) -> Page:
    """Load the transactions of all coordinators. Details are asked only for the rows that are shown."""
    nodes = await view.admin.cluster.brokers()
    answers = await view.asker.each("transactions", nodes, requests.transactions)
    listed = [each for some in answers.values() for each in some]
    everything = view.flag("all")
    links = {"transactional_id": "_transaction"}
    empty = "No transaction is open." if not everything else "No producer has used a transactional id yet."
    table = Table("transactions", "Transactions", COLUMNS, view.query, links=links, empty=empty)
    ordered = sorted(listed, key=lambda each: (each.state in FINISHED, each.transactional_id))
    rows = table.choose(_row(each) for each in ordered if everything or each.state not in FINISHED)
    places = {row["transactional_id"]: row["coordinator"] for row in rows}
    described = await view.asker.by_node("transactions", places, requests.described)
    for row in rows:
        info = described.get(row["transactional_id"])
        if isinstance(info, WatchedTransaction):  # otherwise it has expired meanwhile, or the client may not see it
            row |= details(info, view.now_ms)
    minutes = view.number("minutes", HANGING_MINUTES, 0, 100_000)
    hanging, not_searched = await view.every(
        HANGING_EVERY_MS, "hanging", lambda asker: _hanging(view, asker, minutes), minutes
    )
    found = Table("hanging", "Hanging transactions", HANGING, view.query, links={"topic": "_partition"}, main=False)
    found.empty = "No transaction hangs."
    old = {row["transactional_id"] for row in rows if (row.get("age_ms") or 0) > (row.get("timeout_ms") or 2**63)}
    dots = [Dot(each.transactional_id, each.state, _target(each), each.transactional_id in old) for each in ordered]
    lacking = view.lacks("transactions")
    table.arrange().lacking(lacking)
    facts = {
        "open": None if lacking else sum(each.state in OPEN_STATES for each in listed),
        "finished": sum(each.state in FINISHED for each in listed),
        "hanging_minutes": minutes,
        "not_searched": not_searched,
    }
    figures, extra = {"states": draw(dots)}, {"all": everything}
    return Page(
        "Transactions", "transactions.html", facts, [table, found.fill(hanging).lacking(not_searched)], figures, extra
    )


def _target(each: WatchedTransaction) -> str:
    return address("transaction", id=each.transactional_id)


def _row(each: WatchedTransaction) -> Row:
    return {
        "transactional_id": each.transactional_id,
        "state": each.state,
        "age_ms": None,
        "timeout_ms": None,
        "pending": None,
        "producer_id": each.producer_id,
        "producer_epoch": None,
        "coordinator": each.coordinator,
        "_transaction": _target(each),
    }


def details(info: WatchedTransaction, now_ms: int) -> Row:
    """Return what the coordinator adds to a transaction of the list."""
    begun = info.started_ms is not None and info.state not in FINISHED  # Kafka keeps the time of the last transaction
    return {
        "state": info.state,
        "age_ms": max(0, now_ms - (info.started_ms or 0)) if begun else None,
        "timeout_ms": info.timeout_ms,
        "pending": len(info.partitions or ()),
        "producer_epoch": info.producer_epoch,
    }


async def _hanging(view: View, asker: Asker, minutes: int) -> tuple[list[Row], str]:
    """Return hanging transactions, and why there may be more. All partitions are asked, so do it only now and then."""
    topics = await view.admin.cluster.topics(internal=True)
    leaders = {(name, index): each.leader for name, topic in topics.items() for index, each in topic.partitions.items()}
    if len(leaders) > HANGING_PARTITIONS:
        return [], f"more than {HANGING_PARTITIONS:,} partitions; {COMMAND}"
    producers = await asker.answers("producers", leaders, requests.producers)
    old = [
        (at, each)
        for at, some in sorted(producers.items())
        for each in some
        if each.transaction_start >= 0 and is_old(each, view.now_ms, minutes * 60_000)
    ]
    nodes = await view.admin.cluster.brokers()
    known = await transactions_of(asker, nodes, [each.producer_id for _, each in old])
    alone = await hanging_among(asker, known, old)
    rows = [
        {
            "topic": topic,
            "partition": number,
            "producer_id": each.producer_id,
            "producer_epoch": each.producer_epoch,
            "first_offset": each.transaction_start,
            "idle_ms": max(0, view.now_ms - each.last_timestamp),
            "_partition": address("topics", topic, number, "abort", producer=each.producer_id),
        }
        for (topic, number), each in alone or ()
    ]
    reasons = texts(asker.troubles)
    if alone is None:
        reasons.append("not all coordinators have shown all transactions")
    left = leaders.keys() - producers.keys()
    if left:
        silent = ", ".join(map(str, sorted({leaders[at] for at in left} - {-1})))
        who = f" of broker {silent}" if silent else ""
        reasons.append(f"{len(left):,} partitions{who} were not searched")
    return rows, "; ".join(reasons)
