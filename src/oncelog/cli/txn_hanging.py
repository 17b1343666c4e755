"""`oncelog txn find-hanging` and `abort`: open transactions that no coordinator will end (KIP-664).

A transaction hangs when a partition holds it open for longer than any may last, and no coordinator knows that it has to
end it there: read_committed readers wait for ever.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from oncelog.cli.common import check, connected, formatted, open_cluster, show
from oncelog.cli.txn import description, listings, partition_producers
from oncelog.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from oncelog.client.blocking import BlockingCluster

COLUMNS = (
    *("topic", "partition", "producer_id", "producer_epoch", "coordinator_epoch"),
    *("start_offset", "last_timestamp", "duration_min"),
)
BATCH = 500
"""Partitions in one request."""
FIRST_COORDINATOR_EPOCH = 0
"""For a producer that no marker has ended yet: no coordinator's epoch is lower."""

Row = dict[str, Any]


@click.command("find-hanging")
@click.option("--topic", help="Look in this topic only.")
@click.option("-p", "--partition", type=click.IntRange(min=0), help="Look in this partition of the topic only.")
@click.option("--broker", type=int, help="Look in partitions with a replica on this broker, and ask that one.")
@click.option(
    "--max-transaction-timeout",
    type=click.IntRange(min=0),
    default=15,
    show_default=True,
    metavar="MINUTES",
    help="The brokers' transaction.max.timeout.ms: what is younger is left out.",
)
@connected
@formatted
def find_hanging(
    topic: str | None,
    partition: int | None,
    broker: int | None,
    max_transaction_timeout: int,
    bootstrap: str,
    form: str,
) -> None:
    """Find open transactions that no coordinator will end."""
    if topic is None and broker is None:
        raise click.UsageError("--topic or --broker is needed, to limit the search")
    if partition is not None and topic is None:
        raise click.UsageError("--partition needs --topic")
    with open_cluster(bootstrap) as cluster:
        where = _partitions(cluster, topic, partition, broker)
        longer_than_ms = max_transaction_timeout * 60_000
        candidates = _open(cluster, where, broker, longer_than_ms)
        rows = _without_coordinator(cluster, candidates)
    show(sorted(rows, key=lambda row: (row["topic"], row["partition"], row["producer_id"])), form, COLUMNS)


def _partitions(
    cluster: BlockingCluster, topic: str | None, partition: int | None, broker: int | None
) -> list[tuple[str, int, int]]:
    """(topic, partition, whom to ask)."""
    if broker is not None and broker not in cluster.brokers():
        raise click.UsageError(f"--broker: there is no broker {broker}")
    if topic is None:
        topics = cluster.topics(internal=True)
    else:
        topics = {topic: cluster.topic(topic)}
        if partition is not None:
            cluster.partition(topic, partition)
    return [
        (name, index, broker if broker is not None else found.leader)
        for name, each in sorted(topics.items())
        for index, found in sorted(each.partitions.items())
        if (broker is None or broker in found.replicas) and (partition is None or partition == index)
    ]


def _open(
    cluster: BlockingCluster, where: Sequence[tuple[str, int, int]], broker: int | None, longer_than_ms: int
) -> list[Row]:
    """Open transactions whose last record is older than that."""
    from oncelog.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest

    now_ms = int(time.time() * 1000)
    rows = []
    for node in sorted({node for _, _, node in where}):
        mine = [(name, index) for name, index, asked in where if asked == node]
        for begin in range(0, len(mine), BATCH):
            by_topic: dict[str, list[int]] = {}
            for name, index in mine[begin : begin + BATCH]:
                by_topic.setdefault(name, []).append(index)
            request = DescribeProducersRequest(
                topics=[TopicRequest(name=name, partition_indexes=indexes) for name, indexes in by_topic.items()]
            )
            for found in cluster.call_broker(node, request).topics:
                for each in found.partitions:
                    check(each.error_code, f"producers of {found.name}-{each.partition_index}")
                    rows += [
                        {
                            "topic": found.name,
                            "partition": each.partition_index,
                            "producer_id": item.producer_id,
                            "producer_epoch": item.producer_epoch,
                            "coordinator_epoch": item.coordinator_epoch,
                            "start_offset": item.current_txn_start_offset,
                            "last_timestamp": item.last_timestamp,
                            "duration_min": (now_ms - item.last_timestamp) // 60_000,
                        }
                        for item in each.active_producers
                        if item.current_txn_start_offset >= 0 and now_ms - item.last_timestamp > longer_than_ms
                    ]
    return rows


def _without_coordinator(cluster: BlockingCluster, candidates: list[Row]) -> list[Row]:
    """Those of which no coordinator knows that it has to end them in that partition."""
    wanted = sorted({row["producer_id"] for row in candidates})
    if not wanted:
        return []
    names = {
        item.producer_id: item.transactional_id
        for response in listings(cluster, producer_id_filters=wanted).values()
        for item in response.transaction_states
    }
    known: set[tuple[int, str, int]] = set()
    for producer_id, name in names.items():
        state = description(cluster, name)
        if state.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            continue
        check(state.error_code, f"transactional id {name!r}")
        known |= {(producer_id, topic.topic, index) for topic in state.topics for index in topic.partitions}
    return [row for row in candidates if (row["producer_id"], row["topic"], row["partition"]) not in known]


@click.command()
@click.argument("topic")
@click.option("-p", "--partition", type=click.IntRange(min=0), required=True, help="The partition where it hangs.")
@click.option("--start-offset", type=click.IntRange(min=0), help="Where the transaction begins (find-hanging says).")
@click.option("--producer-id", type=click.IntRange(min=0), help="In place of --start-offset, with the next two.")
@click.option("--producer-epoch", type=click.IntRange(0, 2**15 - 1))
@click.option("--coordinator-epoch", type=click.IntRange(min=-1))
@connected
@formatted
def abort(
    topic: str,
    partition: int,
    start_offset: int | None,
    producer_id: int | None,
    producer_epoch: int | None,
    coordinator_epoch: int | None,
    bootstrap: str,
    form: str,
) -> None:
    """Abort a hanging transaction in one partition, past its coordinator.

    Not for one that a coordinator knows of: its other partitions may be committed, without this one.
    """
    if (start_offset is None) == (producer_id is None):
        raise click.UsageError("the transaction is named by --start-offset, or by --producer-id and its two epochs")
    if producer_id is not None and (producer_epoch is None or coordinator_epoch is None):
        missing = "--producer-epoch" if producer_epoch is None else "--coordinator-epoch"
        raise click.UsageError(f"--producer-id needs {missing}")
    with open_cluster(bootstrap) as cluster:
        if start_offset is not None:
            found = _starting_at(cluster, topic, partition, start_offset)
            producer_id, producer_epoch = found["producer_id"], found["producer_epoch"]
            coordinator_epoch = found["latest_coordinator_epoch"]
        assert producer_id is not None
        assert producer_epoch is not None
        assert coordinator_epoch is not None
        row = {
            "topic": topic,
            "partition": partition,
            "producer_id": producer_id,
            "producer_epoch": producer_epoch,
            "coordinator_epoch": max(coordinator_epoch, FIRST_COORDINATOR_EPOCH),
        }
        _write_abort(cluster, row)
    show([row] if form == "text" else {**row, "aborted": True}, form)


def _starting_at(cluster: BlockingCluster, topic: str, partition: int, offset: int) -> Row:
    for row in partition_producers(cluster, topic, partition):
        if row["current_transaction_start_offset"] == offset:
            return row
    raise click.ClickException(f"{topic}-{partition} has no open transaction that starts at offset {offset}")


def _write_abort(cluster: BlockingCluster, row: Row) -> None:
    from oncelog.protocol.messages.write_txn_markers import (
        WritableTxnMarker,
        WritableTxnMarkerTopic,
        WriteTxnMarkersRequest,
    )

    marker = WritableTxnMarker(
        producer_id=row["producer_id"],
        producer_epoch=row["producer_epoch"],
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name=row["topic"], partition_indexes=[row["partition"]])],
        coordinator_epoch=row["coordinator_epoch"],
    )
    response = cluster.call_leader(row["topic"], row["partition"], WriteTxnMarkersRequest(markers=[marker]))
    result = response.markers[0].topics[0].partitions[0]
    check(result.error_code, f"aborting the transaction of producer {row['producer_id']}")
