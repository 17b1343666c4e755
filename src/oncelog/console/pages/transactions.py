"""The page of all transactions: their states, and those that no coordinator will end."""

from __future__ import annotations

import asyncio

from oncelog import errors
from oncelog.client.admin.transactions import (
    MAX_TRANSACTION_TIMEOUT_MS,
    ProducerInfo,
    TransactionInfo,
    TransactionListing,
)
from oncelog.console.formats import address
from oncelog.console.model import Page, View
from oncelog.console.tables import Column, Row, Table
from oncelog.console.transaction_states import FINISHED, OPEN_STATES, Dot, draw
from oncelog.protocol.errors import ErrorCode

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


def is_old(producer: ProducerInfo, now_ms: int) -> bool:
    """Return whether a producer has written nothing for so long that its open transaction may hang."""
    return now_ms - producer.last_timestamp >= MAX_TRANSACTION_TIMEOUT_MS


async def load(view: View) -> Page:
    """Load the transactions of all coordinators. Details are asked only for the rows that are shown."""
    unanswered: dict[int, errors.RetriableError] = {}
    listed = await view.admin.list_transactions(unanswered=unanswered)
    everything = view.flag("all")
    links = {"transactional_id": "_transaction"}
    empty = "No transaction is open." if not everything else "No producer has used a transactional id yet."
    table = Table("transactions", "Transactions", COLUMNS, view.query, links=links, empty=empty)
    ordered = sorted(listed, key=lambda each: (each.state in FINISHED, each.transactional_id))
    rows = table.choose(_row(each) for each in ordered if everything or each.state not in FINISHED)
    infos = await asyncio.gather(*(_described(view, row["transactional_id"]) for row in rows))
    for row, info in zip(rows, infos, strict=True):
        if info is not None:
            row |= details(info, view.now_ms)
    minutes = view.number("minutes", HANGING_MINUTES, 0, 100_000)
    hanging = await view.every(HANGING_EVERY_MS, "hanging", lambda: _hanging(view, minutes))
    found = Table(
        "hanging",
        "Hanging transactions",
        HANGING,
        view.query,
        links={"topic": "_partition"},
        main=False,
        empty="No transaction hangs.",
    ).fill(hanging)
    old = {row["transactional_id"] for row in rows if (row.get("age_ms") or 0) > (row.get("timeout_ms") or 2**63)}
    dots = [Dot(each.transactional_id, each.state, _target(each), each.transactional_id in old) for each in ordered]
    facts = {
        "open": sum(each.state in OPEN_STATES for each in listed),
        "finished": sum(each.state in FINISHED for each in listed),
        "hanging_minutes": minutes,
        "unanswered": {node: error.message for node, error in unanswered.items()},
    }
    return Page(
        "Transactions",
        "transactions.html",
        facts,
        [table.arrange(), found],
        {"states": draw(dots)},
        {"all": everything},
    )


def _target(each: TransactionListing) -> str:
    return address("transaction", id=each.transactional_id)


def _row(each: TransactionListing) -> Row:
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


def details(info: TransactionInfo, now_ms: int) -> Row:
    """Return what the coordinator adds to a transaction of the list."""
    begun = info.start_time >= 0 and info.state not in FINISHED  # Kafka keeps the time of the last transaction
    return {
        "state": info.state,
        "age_ms": max(0, now_ms - info.start_time) if begun else None,
        "timeout_ms": info.timeout_ms,
        "pending": len(info.partitions),
        "producer_epoch": info.producer_epoch,
    }


async def _described(view: View, transactional_id: str) -> TransactionInfo | None:
    """Return a transaction, or None if its id has expired meanwhile, or the client may not see it."""
    try:
        return await view.admin.describe_transaction(transactional_id)
    except errors.AuthorizationError:
        return None
    except errors.RequestError as error:
        if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise
        return None


async def _hanging(view: View, minutes: int) -> list[Row]:
    """Return hanging transactions. All partitions are asked, so this is repeated only now and then."""
    if sum(len(each.partitions) for each in view.admin.cluster.topology.topics.values()) > HANGING_PARTITIONS:
        return []
    try:
        found = await view.admin.find_hanging_transactions(older_than_ms=minutes * 60_000)
    except (errors.AuthorizationError, errors.UnsupportedError):
        found = []
    return [
        {
            "topic": each.topic,
            "partition": each.partition,
            "producer_id": each.producer.producer_id,
            "producer_epoch": each.producer.producer_epoch,
            "first_offset": each.producer.transaction_start,
            "idle_ms": max(0, view.now_ms - each.producer.last_timestamp),
            "_partition": address("topics", each.topic, each.partition, "abort", producer=each.producer.producer_id),
        }
        for each in found
    ]
