"""Run programs of the commit protocol on a cluster (oncelog or Apache Kafka), through the blocking client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from oncelog import errors
from oncelog.client.blocking import BlockingCluster
from oncelog.client.response_errors import error_codes
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages import write_txn_markers as wm
from oncelog.spark import faults
from oncelog.spark.cluster import batched_lookups, partitions
from oncelog.spark.cluster.transactions import TransactionRequests, outcome_of
from oncelog.spark.commit import operations as op
from oncelog.spark.commit.errors import NotPermittedError
from oncelog.spark.commit.names import TopicPartition
from oncelog.spark.commit.record import Owner
from oncelog.spark.commit.steps import Steps

T = TypeVar("T")

TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


def run(program: Steps[T], brokers: Brokers) -> T:
    """Run a program of the protocol to its end. It gets the error of an operation, and may continue."""
    try:
        operation = next(program)
        while True:
            faults.reach(type(operation).__name__)
            try:
                answer = brokers.answer(operation)
            except errors.OncelogError as error:
                operation = program.throw(error)
            else:
                operation = program.send(answer)
    except StopIteration as stop:
        value: T = stop.value
        return value


class TaskRows(Protocol):
    """A task's rows."""

    def peek(self) -> bool:
        """Return whether there are any. This computes the first rows."""

    def __call__(self, owner: Owner) -> op.Rows:
        """Write them in the owner's transaction, or only count them if the owner has no producer id."""


class Brokers:
    """Execute operations. `rows` writes a task's rows (PeekRows, ProduceRows); the driver has none."""

    def __init__(
        self,
        cluster: BlockingCluster,
        *,
        rows: TaskRows | None = None,
        marker_wait_ms: int = 5_000,
        end_wait_ms: int = 30_000,
    ) -> None:
        self.cluster = cluster
        self.rows = rows
        self.transactions = TransactionRequests(cluster, end_wait_ms=end_wait_ms)
        self._table: dict[type, Callable[[Any], Any]] = {
            op.ListTransactions: self.transactions.list_ids,
            op.DescribeTransactions: self.transactions.describe,
            op.InitProducerId: self.transactions.begin,
            op.EndTxn: self.transactions.end,
            op.EndAll: self.transactions.end_all,
            op.AwaitEnded: self.transactions.await_ended,
            op.DescribeProducers: self._producers,
            op.ReadDecisions: lambda o: partitions.read_window(cluster, o),
            op.ReadParts: lambda o: partitions.read_parts(cluster, o),
            op.Produce: self._produce,
            op.FindEnds: lambda o: partitions.find_ends(cluster, o.partitions),
            op.FindMarkers: lambda o: partitions.find_markers(cluster, o.places, marker_wait_ms),
            op.WriteTxnMarkers: self._write_markers,
            op.PeekRows: lambda o: self._task_rows().peek(),
            op.ProduceRows: lambda o: self._task_rows()(o.owner),
        }

    def answer(self, operation: op.Operation) -> Any:
        """Execute one operation. Raises NotPermittedError if the brokers deny it."""
        try:
            return self._table[type(operation)](operation)
        except errors.AuthorizationError as error:
            raise NotPermittedError(f"{_permission_for(operation)} ({error})") from error

    def _producers(self, o: op.DescribeProducers) -> tuple[op.OpenProducer, ...]:
        return tuple(sorted(found for found, _ in self._open_producers(o.partitions)))

    def _open_producers(self, wanted: Iterable[TopicPartition]) -> Iterable[tuple[op.OpenProducer, int]]:
        """Yield each producer with an open transaction, with its coordinator epoch in the partition."""
        client = self.cluster.cluster
        (found,) = self.cluster.run_many([batched_lookups.describe_producers(client, wanted)])
        for at, active in found.items():
            for p in active:
                start = p.current_txn_start_offset
                yield op.OpenProducer(at, p.producer_id, p.producer_epoch, start), p.coordinator_epoch

    def _produce(self, o: op.Produce) -> op.Produced:
        self.transactions.note_produce(o.owner)
        batch = partitions.decision_batch(o.owner, o.record, int(time.time() * 1000))
        new_protocol = self.transactions.new_protocol
        response = partitions.produce(self.cluster, o.owner, o.at, batch, new_protocol=new_protocol)
        if any(code in TOO_LARGE for code, _ in error_codes(response)):
            return op.Produced(op.RequestOutcome.TOO_LARGE)
        outcome = outcome_of(response, f"Produce into {o.at.topic}-{o.at.partition}")
        if outcome is not op.RequestOutcome.DONE:
            return op.Produced(op.RequestOutcome.FENCED)
        return op.Produced(outcome, response.responses[0].partition_responses[0].base_offset)

    def _write_markers(self, o: op.WriteTxnMarkers) -> op.RequestOutcome:
        coordinator_epoch = max((epoch for p, epoch in self._open_producers([o.at]) if p.pid == o.pid), default=0)
        marker = wm.WritableTxnMarker(
            producer_id=o.pid,
            producer_epoch=o.epoch,
            transaction_result=o.commit,
            topics=[wm.WritableTxnMarkerTopic(name=o.at.topic, partition_indexes=[o.at.partition])],
            coordinator_epoch=max(coordinator_epoch, 0),
            transaction_version=0,
        )
        # In version 1, the broker checks the marker as in the old protocol: it has the epoch of the rows.
        response = self.cluster.call_leader(*o.at, wm.WriteTxnMarkersRequest(markers=[marker]), 1)
        return outcome_of(response, f"WriteTxnMarkers into {o.at.topic}-{o.at.partition}")

    def _task_rows(self) -> TaskRows:
        if self.rows is None:
            raise ValueError("only a task writes rows")
        return self.rows


# Permissions


def _on_ids(*ids: str) -> str:
    prefix = ids[0].partition("/")[0] if ids else ""
    return (
        f"option transactionalIdPrefix={prefix}: the sink needs the permission Write on the transactional ids {prefix} "
        f"and {prefix}/...; add one ACL of pattern type prefixed"
    )


def _on_topics(verb: str, topics: Iterable[str]) -> str:
    return f"option topic: the sink needs the permission {verb} on {', '.join(sorted(set(topics)))}"


PERMISSIONS: dict[type, Callable[..., str]] = {
    op.DescribeTransactions: lambda o: _on_ids(*o.ids),
    op.InitProducerId: lambda o: _on_ids(o.id),
    op.EndTxn: lambda o: _on_ids(o.owner.id),
    op.EndAll: lambda o: _on_ids(*(owner.id for owner in o.owners)),
    op.AwaitEnded: lambda o: _on_ids(*(owner.id for owner in o.owners)),
    op.DescribeProducers: lambda o: _on_topics("Read (to find open transactions)", (at.topic for at in o.partitions)),
    op.FindMarkers: lambda o: _on_topics("Read (to find commit markers)", (place.at[0] for place in o.places)),
    op.ProduceRows: lambda o: "the sink needs the permission Write on the topics of option topic or column topic",
    op.ReadDecisions: lambda o: f"option decisionTopic: the sink needs the permission Read on {o.at.topic}",
    op.Produce: lambda o: f"option decisionTopic: the sink needs the permission Write on {o.at.topic}",
}
"""Operation: the option that it concerns, and the permission that it needs.

ListTransactions omits ids that the user may not describe. WriteTxnMarkers has an outcome for it (DENIED)."""


def _permission_for(operation: op.Operation) -> str:
    """Return the first sentence of an error message."""
    describe = PERMISSIONS.get(type(operation))
    return describe(operation) if describe is not None else "the sink lacks a permission"
