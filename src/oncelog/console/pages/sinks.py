"""The pages of Spark sinks: found by their decision topics and transactional ids, with what they have decided.

`oncelog.spark` reads the decisions, as for `oncelog sink list`. It needs no Spark for that.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from oncelog.console.formats import address
from oncelog.console.model import Page, View
from oncelog.console.tables import Column, Row, Table
from oncelog.console.transaction_states import FINISHED
from oncelog.net.threads import in_thread
from oncelog.watch import requests

SINKS = (
    Column("prefix", "Sink", "id", "Its option transactionalIdPrefix"),
    Column("decision_topic", "Decision topic", "id"),
    Column("open", "Open transactions", "number"),
    Column("ids", "Transactional ids", "number"),
)
OPEN = (
    Column("id", "Transactional id", "id"),
    Column("producer_id", "Producer", "id"),
    Column("epoch", "Epoch", "number"),
    Column("decided", "Of the decided batch"),
)
HANGING = (
    Column("topic", "Topic", "id"),
    Column("partition", "Partition", "number"),
    Column("producer_id", "Producer", "id"),
    Column("first_offset", "First offset", "number"),
)
LOOK_EVERY_MS = 3_000
CRUMBS = [("Spark sinks", "/sinks")]


async def load(view: View) -> Page:
    """Load the sinks. A topic whose name only looks like that of a decision topic is listed, too."""
    from oncelog.spark.commit.names import decision_topic, prefix_of

    topics = await view.admin.cluster.topics()
    nodes = await view.admin.cluster.brokers()
    listed = await view.asker.each("transactions", nodes, requests.transactions)
    ending = decision_topic("")
    found: dict[str, Row] = {}
    for name in topics:
        if name.endswith(ending) and name != ending:
            prefix = name.removesuffix(ending)
            found[prefix] = {"prefix": prefix, "decision_topic": name, "open": 0, "ids": 0}
    for each in (each for some in listed.values() for each in some):
        owner = prefix_of(each.transactional_id)
        if owner is not None:
            row = found.setdefault(owner, {"prefix": owner, "decision_topic": None, "open": 0, "ids": 0})
            row["ids"] += 1
            row["open"] += each.state not in FINISHED
    links = {"prefix": "_sink", "decision_topic": "_topic"}
    table = Table("sinks", "Spark sinks", SINKS, view.query, links=links, empty="No sink was found.")
    table.fill(
        {
            **row,
            "_sink": address("sink", prefix=prefix),
            "_topic": row["decision_topic"] and address("topics", row["decision_topic"]),
        }
        for prefix, row in sorted(found.items())
    )
    return Page("Spark sinks", "sinks.html", tables=[table.lacking(view.lacks("transactions"))])


async def load_one(view: View) -> Page:
    """Load the last decision of a sink, and its open transactions. Raises MisuseError if it is none."""
    prefix = view.query.get("prefix", "")
    record, left, strays = await _look(view, prefix)
    decided = {each.owner[:3] for each in record.transactions}
    opened = Table(
        "open", "Open transactions", OPEN, view.query, links={"id": "_transaction"}, empty="No transaction is open."
    ).fill(
        {
            "id": each.id,
            "producer_id": each.pid,
            "epoch": each.epoch,
            "decided": each[:3] in decided,
            "_transaction": address("transaction", id=each.id),
        }
        for each in left
    )
    hanging = Table(
        "hanging", "Open only in a partition", HANGING, view.query, links={"topic": "_partition"}, main=False
    )
    hanging.empty = "No marker is missing."
    hanging.fill(
        {
            "topic": each.at.topic,
            "partition": each.at.partition,
            "producer_id": each.pid,
            "first_offset": each.start,
            "_partition": address("topics", each.at.topic, each.at.partition),
        }
        for each in strays
    )
    facts = {
        "prefix": prefix,
        "kind": record.source.kind,
        "query": record.source.query,
        "batch": record.source.batch if record.source.query else None,
        "rows": record.rows,
        "settled": record.settled,
    }
    extra = {"pending": not record.settled or bool(left) or bool(strays)}
    return Page(prefix or "(no prefix)", "sink.html", facts, [opened, hanging], extra=extra, crumbs=CRUMBS)


async def _look(view: View, prefix: str) -> tuple[Any, Any, Any]:
    """Return what `oncelog sink list` does. It blocks, so it runs in a thread: one for all who look."""
    from oncelog.client.options import is_security
    from oncelog.spark.writing.driver import look
    from oncelog.spark.writing.options import sink_options

    asked: asyncio.Future[tuple[Any, Any, Any]] | None = view.memory.get("look")
    if asked is None or (asked.done() and view.now_ms - view.memory["looked_ms"] >= LOOK_EVERY_MS):
        secured = {f"kafka.{name}": value for name, value in view.actor.config.items() if is_security(name)}
        given = {"kafka.bootstrap.servers": view.actor.bootstrap, "transactionalIdPrefix": prefix, **secured}
        options = sink_options(given, streaming=False)
        asked = asyncio.ensure_future(in_thread(partial(look, options)))
        view.memory["look"], view.memory["looked_ms"] = asked, view.now_ms
        asked.add_done_callback(lambda done: done.cancelled() or done.exception())  # the viewers may have left
    return await asyncio.shield(asked)
