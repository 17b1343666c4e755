"""Send transaction markers to the brokers that lead their partitions, in WriteTxnMarkers requests.

While a broker processes a request, further markers for it wait, and the next request carries all of them. Source:
Kafka's `TransactionMarkerChannelManager`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping

from oncelog.broker.peers import Failure, Peers, Purpose
from oncelog.broker.workers import Workers
from oncelog.coordinator.effects import Markers
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from oncelog.protocol.topics import TopicPartition

MARKERS_A_REQUEST = 1000
"""The number of markers from which on a request takes no more transactions."""
TIMEOUT_MS = 30_000
"""The maximum time for a request (Kafka's `request.timeout.ms`)."""

Done = Callable[[dict[TopicPartition, ErrorCode]], None]


class MarkerOutbox:
    """The markers that wait for other brokers.

    A marker waits at most once, because `MarkerWriter` sends it again only after `done`. So there are at most as many
    as the prepared transactions of the coordinators have partitions. If a coordinator is loaded again meanwhile, those
    of its former term wait as well, until the broker has answered or has left the cluster.
    """

    def __init__(self, peers: Peers, workers: Workers) -> None:
        self._peers = peers
        self._workers = workers
        self._waiting: dict[int, deque[tuple[Markers, Done]]] = {}
        """The markers for each broker that a task sends to."""

    def send(self, broker: int, markers: Markers, done: Done) -> None:
        """Send markers. Call `done` later with an error for each partition, which is NONE after the commit.

        If there is no response, the errors are NETWORK_EXCEPTION, and the markers may be written or not.
        """
        waiting = self._waiting.get(broker)
        if waiting is None:
            waiting = self._waiting[broker] = deque()
            self._workers.spawn(self._drain(broker, waiting), f"markers for broker {broker}")
        waiting.append((markers, done))

    async def _drain(self, broker: int, waiting: deque[tuple[Markers, Done]]) -> None:
        batch: list[tuple[Markers, Done]] = []
        try:
            while waiting:
                size = 0
                while waiting and size < MARKERS_A_REQUEST:
                    batch.append(waiting.popleft())
                    size += len(batch[-1][0].partitions)
                request = WriteTxnMarkersRequest(markers=[_marker(markers) for markers, _ in batch])
                response = await self._peers.request(
                    broker, Purpose.MARKERS, request, WriteTxnMarkersResponse, TIMEOUT_MS
                )
                found = {} if isinstance(response, Failure) else _errors(response)
                for markers, done in batch:
                    results = _results(markers, found)
                    asyncio.get_running_loop().call_soon(done, results)  # an error in one must not lose the others
                batch.clear()
        finally:
            del self._waiting[broker]
            for markers, done in (*batch, *waiting):  # after an error, they must be sent again
                asyncio.get_running_loop().call_soon(done, _results(markers, {}))


def _marker(markers: Markers) -> WritableTxnMarker:
    by_topic: dict[str, list[int]] = {}
    for topic, index in markers.partitions:
        by_topic.setdefault(topic, []).append(index)
    return WritableTxnMarker(
        producer_id=markers.producer_id,
        producer_epoch=markers.producer_epoch,
        transaction_result=markers.commit,
        topics=[WritableTxnMarkerTopic(name=name, partition_indexes=indexes) for name, indexes in by_topic.items()],
        coordinator_epoch=markers.coordinator_epoch,
        transaction_version=markers.transaction_version,
    )


def _errors(response: WriteTxnMarkersResponse) -> Mapping[tuple[int, TopicPartition], int]:
    """Return the error codes by producer id and partition."""
    return {
        (marker.producer_id, (topic.name, result.partition_index)): result.error_code
        for marker in response.markers
        for topic in marker.topics
        for result in topic.partitions
    }


def _results(markers: Markers, found: Mapping[tuple[int, TopicPartition], int]) -> dict[TopicPartition, ErrorCode]:
    missing = ErrorCode.NETWORK_EXCEPTION
    return {each: ErrorCode.of(found.get((markers.producer_id, each), missing)) for each in markers.partitions}
