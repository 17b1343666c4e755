"""The pages of producers: what partitions know of them, beside what their coordinators know."""

from __future__ import annotations

from oncelog import errors
from oncelog.client.admin.transactions import ProducerInfo
from oncelog.console.formats import address, crumbs_to
from oncelog.console.model import Page, View, is_old
from oncelog.console.tables import Column, Row, Table
from oncelog.protocol.topics import TopicPartition
from oncelog.watch import requests
from oncelog.watch.asking import hanging_among, transactions_of
from oncelog.watch.rows import will_end

OF_A_PARTITION = (
    Column("producer_id", "Producer", "id"),
    Column("producer_epoch", "Epoch", "number"),
    Column("last_sequence", "Last sequence", "number"),
    Column("idle_ms", "Last batch", "ms", "Time since its last batch"),
    Column("first_offset", "Open from", "number", "First offset of its open transaction here"),
    Column("coordinator_epoch", "Coordinator epoch", "number", "Epoch of the coordinator that wrote its last marker"),
    Column("transactional_id", "Transactional id", "id", "What the coordinator knows", late=True),
    Column("state", "State", "state", "State at the coordinator", late=True),
    Column("agrees", "Agreement", "state", "Whether the coordinator and the partition agree", late=True),
)
EVERYWHERE = (Column("topic", "Topic", "id"), Column("partition", "Partition", "number"), *OF_A_PARTITION)
BATCHES = (
    Column("producer_id", "Producer", "id"),
    Column("first_sequence", "First sequence", "number"),
    Column("last_sequence", "Last sequence", "number"),
    Column("first_offset", "First offset", "number"),
    Column("last_offset", "Last offset", "number"),
    Column("timestamp", "Time", "time"),
)
PARTITIONS_AT_MOST = 60


async def load(view: View) -> Page:
    """Load the producers of a partition, with their remembered batches if the broker is oncelog's."""
    topic, number = view.path["topic"], view.path["partition"]
    facts = {"topic": topic, "partition": number, "counters": None}
    batches: list[Row] = []
    try:
        found = await view.admin.describe_producer_batches(topic, number)
        producers = [each for each, _ in found.producers]
        facts["counters"] = {
            "duplicate_batches": found.duplicate_batches,
            "sequence_gaps": found.sequence_gaps,
            "stale_sequences": found.stale_sequences,
        }
        batches = [{"producer_id": each.producer_id, **b._asdict()} for each, some in found.producers for b in some]
    except errors.UnsupportedError:  # Apache Kafka does not show the batches
        producers = await view.admin.describe_producers(topic, number)
    table = Table("producers", "Producers", OF_A_PARTITION, view.query, links={"transactional_id": "_transaction"})
    table.empty = "No idempotent producer has written to this partition lately."
    table.choose(_row(each, view.now_ms) for each in producers)
    await _add_coordinators(view, table.rows, (topic, number))
    remembered = Table("batches", "Remembered batches", BATCHES, view.query, main=False).fill(reversed(batches))
    crumbs = crumbs_to(topic, number)
    title = f"Producers of {topic}-{number}"
    return Page(title, "producers_partition.html", facts, [table.arrange(), remembered], crumbs=crumbs)


async def load_all(view: View) -> Page:
    """Load the producers of a topic, or of all topics if they have few partitions."""
    topics = await view.admin.cluster.topics()
    wanted = view.query.get("topic", "")
    places = [
        ((name, index), each.leader)
        for name, topic in sorted(topics.items())
        for index, each in sorted(topic.partitions.items())
        if each.leader >= 0 and wanted in ("", name)
    ]
    asked = dict(places[:PARTITIONS_AT_MOST])
    rows: list[Row] = []
    for at, some in sorted((await view.asker.answers("producers", asked, requests.producers)).items()):
        place = {"topic": at[0], "partition": at[1], "_partition": address("topics", *at, "producers")}
        rows += [{**place, **_row(each, view.now_ms)} for each in some]
    links = {"topic": "_partition", "transactional_id": "_transaction"}
    table = Table("producers", "Producers", EVERYWHERE, view.query, links=links)
    table.empty = "No idempotent producer has written lately."
    table.choose(rows)
    await _add_coordinators(view, table.rows, None)
    facts = {"topic": wanted, "not_asked": len(places) - len(asked)}
    table.arrange().lacking(view.lacks("producers"))
    return Page("Producers", "producers.html", facts, [table], extra={"topics": sorted(topics)[:1000]})


async def visible(view: View, topic: str, number: int) -> list[ProducerInfo]:
    """Return a partition's producers. Empty if the client is not authorized, or the broker does not show them."""
    try:
        return await view.admin.describe_producers(topic, number)
    except (errors.AuthorizationError, errors.UnsupportedError):
        return []


def _row(each: ProducerInfo, now_ms: int) -> Row:
    return {
        "producer_id": each.producer_id,
        "producer_epoch": each.producer_epoch,
        "last_sequence": each.last_sequence,
        "idle_ms": max(0, now_ms - each.last_timestamp) if each.last_timestamp >= 0 else None,
        "first_offset": each.transaction_start if each.transaction_start >= 0 else None,
        "coordinator_epoch": each.coordinator_epoch if each.coordinator_epoch >= 0 else None,
        "transactional_id": None,
        "state": None,
        "agrees": None,
        "_producer": each,
    }


async def _add_coordinators(view: View, rows: list[Row], at: TopicPartition | None) -> None:
    """Add what the coordinators know of the producers in these rows."""
    nodes = await view.admin.cluster.brokers()
    known = await transactions_of(view.asker, nodes, [row["producer_id"] for row in rows])
    places: list[TopicPartition] = [at or (row["topic"], row["partition"]) for row in rows]
    suspects = [
        (place, row["_producer"])
        for place, row in zip(places, rows, strict=True)
        if row["first_offset"] is not None and is_old(row["_producer"], view.now_ms)
    ]
    alone = await hanging_among(view.asker, known, suspects) or ()
    for place, row in zip(places, rows, strict=True):
        info = known.get(row["producer_id"])
        if info is not None:
            row |= {"transactional_id": info.transactional_id, "state": info.state}
            row["_transaction"] = address("transaction", id=info.transactional_id)
        listed = will_end(info, place)
        if row["first_offset"] is not None:  # it may have ended since, or the client may not describe it
            hanging = (place, row["_producer"]) in alone
            row["agrees"] = "both open" if listed else "hanging" if hanging else "unknown"
        elif info is not None:
            row["agrees"] = "marker written" if listed else "both ended"
