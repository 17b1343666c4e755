"""The page of one transactional id, and how its transaction is ended here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from oncelog.client.admin.transactions import ProducerInfo, TransactionInfo
from oncelog.console.formats import address, crumbs_to
from oncelog.console.guard import RefusedError
from oncelog.console.model import Actor, Page, View, is_old
from oncelog.console.pages.groups import ends_of
from oncelog.console.pages.transactions import HANGING_MINUTES, details
from oncelog.console.tables import Column, Row, Table
from oncelog.console.transaction_states import ONGOING
from oncelog.watch import requests
from oncelog.watch.asking import Asker, hanging_among, texts, transactions_of
from oncelog.watch.readings import watched
from oncelog.watch.rows import will_end

if TYPE_CHECKING:
    from oncelog.aio import Admin

PARTITIONS = (
    Column("topic", "Topic", "id"),
    Column("partition", "Partition", "number"),
    Column("first_offset", "First offset", "number", "First offset of the transaction in this partition"),
    Column("last_stable_offset", "LSO", "number"),
    Column("high_watermark", "HW", "number"),
    Column("blocked", "Held back", "number", "Offsets that read_committed consumers do not see because of it"),
    Column("last_sequence", "Last sequence", "number"),
)
PARTITIONS_AT_MOST = 50
"""Partitions of a transaction whose offsets are asked for."""
CRUMBS = [("Transactions", "/transactions")]


async def load(view: View) -> Page:
    """Load a transactional id. Raises RequestError (TRANSACTIONAL_ID_NOT_FOUND)."""
    name = view.query.get("id", "")
    info = await view.admin.describe_transaction(name)
    table = Table(
        "partitions", "Partitions of the open transaction", PARTITIONS, view.query, links={"topic": "_partition"}
    )
    table.empty = "It has no partition whose marker is missing."
    table.fill(await _partitions(view, info))
    facts = {
        "transactional_id": name,
        "producer_id": info.producer_id,
        "coordinator": info.coordinator,
        "begun_ms": info.start_time if info.start_time >= 0 else None,
        **details(watched(info), view.now_ms),
    }
    extra = {"open": info.state == ONGOING, "end": address("transaction", "end", id=name)}
    return Page(name or "(empty id)", "transaction.html", facts, [table], extra=extra, crumbs=CRUMBS)


async def _partitions(view: View, info: TransactionInfo) -> list[Row]:
    """Return what the leaders know of the transaction. If a leader does not answer, the row has only the partition."""
    asker = view.asker
    leaders = await view.leaders(info.partitions[:PARTITIONS_AT_MOST])
    ends = await ends_of(view, leaders)
    producers = await asker.answers("producers", leaders, requests.producers)
    rows: list[Row] = []
    for at in info.partitions:
        row: Row = {"topic": at[0], "partition": at[1], "_partition": address("topics", *at)}
        rows.append(row)
        end, mine = ends.get(at), [each for each in producers.get(at, ()) if each.producer_id == info.producer_id]
        if end is not None:
            row |= {"last_stable_offset": end.last_stable_offset, "high_watermark": end.high_watermark}
        for each in mine:
            begun = each.transaction_start >= 0
            row["last_sequence"] = each.last_sequence
            row["first_offset"] = each.transaction_start if begun else None
            if end is not None:
                row["blocked"] = max(0, end.high_watermark - end.last_stable_offset) if begun else 0
    return rows


async def load_end(view: View) -> Page:
    """Load the question whether to end a transaction, with what is lost then."""
    page = await load(view)
    rows = page.tables[0].rows
    begun = [row for row in rows if row.get("first_offset") is not None and row.get("high_watermark") is not None]
    lost = sum(row["high_watermark"] - row["first_offset"] for row in begun)
    page.facts |= {"at_most_lost": lost, "not_counted": page.facts["pending"] - len(begun)}
    page.extra |= {"live": False, "sink": page.facts["transactional_id"].count("/") == 3}
    page.template, page.title = "transaction_end.html", f"End {page.title}"
    page.crumbs = [*CRUMBS, (page.facts["transactional_id"], address("transaction", id=page.facts["transactional_id"]))]
    return page


async def end(actor: Actor, _: Mapping[str, Any], form: Mapping[str, str]) -> str:
    """Abort the transaction that the form names, and fence its producer.

    Raises RefusedError if it is not the one that was shown any more.
    """
    name = form.get("id", "")
    info = await actor.admin.describe_transaction(name)
    shown = f"{info.producer_id}.{info.producer_epoch}.{info.start_time}"
    if form.get("shown") != shown or info.state != ONGOING:
        raise RefusedError(
            409,
            f"The transaction of {name!r} is not the one that the question was about: its state is {info.state} now.",
        )
    await actor.admin.terminate_transaction(name)
    return address("transaction", id=name)


async def _with_open(admin: Admin, topic: str, partition: int, producer_id: int) -> ProducerInfo:
    """Return a producer that has a transaction open in the partition. Raises RefusedError if it has none."""
    producers = await admin.describe_producers(topic, partition)
    found = next((each for each in producers if each.producer_id == producer_id and each.transaction_start >= 0), None)
    if found is None:
        raise RefusedError(409, f"Producer {producer_id} has no open transaction in {topic}-{partition} any more.")
    return found


async def _hanging(actor: Actor, topic: str, partition: int, producer_id: int) -> ProducerInfo:
    """Return the producer of a transaction that hangs. Raises RefusedError if it may be one that goes on."""
    admin, at = actor.admin, (topic, partition)
    found = await _with_open(admin, topic, partition, producer_id)
    asker = Asker(admin.cluster)
    known = await transactions_of(asker, await admin.cluster.brokers(), [producer_id])
    transaction = known.get(producer_id)
    if transaction is not None and will_end(transaction, at):
        raise RefusedError(
            409,
            f"This transaction does not hang: the coordinator of {transaction.transactional_id!r} will end it. End it "
            "on its own page, so that all its partitions have the same outcome.",
        )
    alone = await hanging_among(asker, known, [(at, found)])
    if alone is None:
        raise RefusedError(
            409, f"It is not known whether a coordinator will end this transaction: {'; '.join(texts(asker.troubles))}."
        )
    if not alone:
        raise RefusedError(409, "This transaction does not hang: it has just ended, or a coordinator will end it.")
    if not is_old(found, actor.now_ms):
        raise RefusedError(
            409,
            f"The producer has written here in the last {HANGING_MINUTES} minutes. Its transaction may go on, although "
            "no coordinator has shown it to the console.",
        )
    return found


async def load_abort(view: View) -> Page:
    """Load the question whether to abort a hanging transaction in one partition."""
    topic, partition = view.path["topic"], view.path["partition"]
    producer_id = view.number("producer", -1)
    facts: dict[str, Any] = {"topic": topic, "partition": partition, "producer_id": producer_id}
    try:
        found = await _hanging(view.actor, topic, partition, producer_id)
        [known] = await view.admin.describe_topics(topic, partitions=[partition])
        info = known.partitions[0]
        facts |= {**found._asdict(), "blocked": info.high_watermark - info.last_stable_offset, "refusal": None}
    except RefusedError as refusal:
        facts |= {"refusal": refusal.text}
    crumbs = crumbs_to(topic, partition)
    return Page("Abort a hanging transaction", "abort.html", facts, extra={"live": False}, crumbs=crumbs)


async def abort(actor: Actor, path: Mapping[str, Any], form: Mapping[str, str]) -> str:
    """Abort a hanging transaction in one partition, without its coordinator."""
    topic, partition = path["topic"], path["partition"]
    producer = form.get("producer", "")
    if not producer.isdecimal():
        raise RefusedError(400, "The form names no producer.")
    found = await _hanging(actor, topic, partition, int(producer))
    if form.get("first_offset") != str(found.transaction_start):
        raise RefusedError(409, "The transaction is not the one that the question was about.")
    await actor.admin.abort_transaction(
        topic,
        partition,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        coordinator_epoch=found.coordinator_epoch,
    )
    return address("topics", topic, partition)
