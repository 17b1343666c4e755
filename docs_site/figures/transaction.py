"""Draw the messages between a producer and three brokers in a transaction: steps 1 to 5.3 of KIP-98."""

from __future__ import annotations

import re
from collections.abc import Iterator

from docs_site.figures.sequence import Arrow, Note, Row, drawing
from docs_site.figures.watch import ASSIGNED, Line, Sent, brokers_at_debug, clients_lines, lines_of, requests_through
from oncelog import Admin, Consumer, Producer
from oncelog.faults.proxy import FaultProxy
from oncelog.faults.requests import api_name
from oncelog.protocol.apis import ApiKey
from oncelog.stories.cluster import Cluster
from oncelog.stories.stage import SMALL

ID, GROUP, SOURCE, TARGET = "etl-1", "etl", "words", "copies"
OFFSETS = "__consumer_offsets-0"
PRODUCER = "producer"
LEADERS = {TARGET: (2, 3), "__transaction_state": (1,), "__consumer_offsets": (2,)}
"""The broker ids of the partitions' leaders, by topic."""
STEPS = {
    ApiKey.FIND_COORDINATOR: "1",
    ApiKey.INIT_PRODUCER_ID: "2",
    ApiKey.PRODUCE: "4.2",
    ApiKey.TXN_OFFSET_COMMIT: "4.4",
    ApiKey.END_TXN: "5.1",
}
"""The steps of the producer's requests. Step 3, the begin, sends nothing. Brokers send 4.1, 4.3 and 5.2."""
CHANGED = re.compile(rf"transactional id '{ID}': (\w+), was (\w+); producer id \d+, epoch (\d+); partitions: (.*)")
MARKER = re.compile(r"(\S+): wrote the (\w+) marker of .* at offset (\d+)")


def transaction() -> str:
    """Return the figure of a transaction that copies three records and commits its consumer's offsets."""
    lanes, rows = transaction_rows()
    return drawing("A transaction over three brokers (transaction.version 2)", lanes, rows)


def transaction_rows() -> tuple[list[str], list[Row]]:
    """Make the run, and return the lanes and the rows of the figure."""
    with brokers_at_debug(), Cluster(SMALL) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topics(SOURCE)
            for topic, leaders in LEADERS.items():
                admin.create_topics(topic, assignments=[[leader, leader % 3 + 1] for leader in leaders])
        with Producer(cluster.bootstrap_servers) as writer:
            for word in ("to", "be", "or"):
                writer.send(SOURCE, word)
        consumer = Consumer(cluster.bootstrap_servers, group_id=GROUP, auto_offset_reset="earliest")
        with consumer, FaultProxy(cluster.address(1)) as faults, clients_lines() as lines:
            consumer.subscribe([SOURCE])
            records = consumer.poll(30)
            sent = requests_through(faults)
            with Producer(faults.bootstrap_servers, transactional_id=ID) as producer:
                with producer.transaction() as transaction:
                    for record in records:
                        transaction.send(TARGET, record.value, partition=record.offset % 2)
                    transaction.send_offsets(consumer)
                cluster.wait_for(lambda: ": CompleteCommit, was" in cluster.log(), "the transaction is complete")
        return _rows(sent, lines, lines_of(cluster.log()))


def _rows(sent: list[Sent], clients: list[Line], brokers: list[Line]) -> tuple[list[str], list[Row]]:
    coordinator = next(line.broker for line in brokers if CHANGED.search(line.text))
    leaders = {found[1]: line.broker for line in brokers if (found := MARKER.search(line.text))}
    roles = {
        broker: ["transaction coordinator"] * (broker == coordinator)
        + [name for name, leader in sorted(leaders.items()) if leader == broker]
        for broker in (1, 2, 3)
    }
    lanes = {broker: f"broker {broker}\n{', '.join(names)}" for broker, names in roles.items()}
    rows = [
        *_requests(sent, lanes),
        *_changes(brokers, lanes, leaders),
        *_markers(brokers, lanes, lanes[coordinator]),
        *(
            Arrow(line.at, lanes[coordinator], PRODUCER, f"producer id {found[1]}, epoch {found[2]}")
            for line in clients
            if (found := ASSIGNED.search(line.text))
        ),
    ]
    return [PRODUCER, *lanes.values()], sorted(rows, key=lambda row: row.at)


def _requests(sent: list[Sent], lanes: dict[int, str]) -> Iterator[Row]:
    for at, request in sent:
        if request.api in STEPS:
            text = api_name(request.api) + (" (group)" if request.groups() else "")
            # The first request goes to the proxy's first broker, before the client knows its id.
            yield Arrow(at, PRODUCER, lanes[request.broker or 1], text, step=STEPS[request.api])


def _changes(brokers: list[Line], lanes: dict[int, str], leaders: dict[str, int]) -> Iterator[Row]:
    """Yield the transaction's states, and the requests that add partitions to it.

    The broker that gets the first records or offsets for a partition sends this request.
    """
    known: set[str] = set()
    for line in brokers:
        found = CHANGED.search(line.text)
        if found is None:
            continue
        state, before, epoch, partitions = found.groups()
        lane = lanes[line.broker]
        added = set(partitions.split(", ")) - known if state == "Ongoing" else set()
        for name in sorted(added):
            if leaders[name] != line.broker:
                step = "4.3" if name == OFFSETS else "4.1"
                yield Arrow(line.at, lanes[leaders[name]], lane, "AddPartitionsToTxn", step=step)
        known |= added
        text = f"{state}: {', '.join(sorted(added))}" if added else f"{state}, epoch {epoch}"
        yield Note(line.at, lane, text, step="5.3" if before.startswith("Prepare") else "")


def _markers(brokers: list[Line], lanes: dict[int, str], coordinator: str) -> Iterator[Row]:
    """Yield the markers, and the request that wrote them, once for each broker."""
    asked: set[str] = set()
    for line in brokers:
        found = MARKER.search(line.text)
        if found is None:
            continue
        lane = lanes[line.broker]
        if lane not in asked and lane != coordinator:
            yield Arrow(line.at, coordinator, lane, "WriteTxnMarkers", step="5.2")
        asked.add(lane)
        name, kind, offset = found.groups()
        yield Note(line.at, lane, f"{name}: {kind.upper()} at {offset}")
