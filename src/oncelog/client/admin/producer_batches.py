"""Ask oncelog's broker for the remembered batches of a partition's producers. Apache Kafka does not show them."""

from __future__ import annotations

from typing import NamedTuple

from oncelog import errors
from oncelog.client.admin.transactions import ProducerInfo, ask_for_producers, producer_info
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.notebooks import in_notebooks


@in_notebooks()
class RememberedBatch(NamedTuple):
    """A batch that a partition remembers, to recognize it if the producer sends it again.

    Both sequences and both offsets are included. `timestamp` is that of its newest record, in ms since the epoch.
    """

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


@in_notebooks()
class PartitionProducers(NamedTuple):
    """The producers of a partition with their last five batches, the oldest first, and what the broker has counted.

    `duplicate_batches` were in the log already. A batch with a sequence gap came before an earlier one. A stale
    sequence is before the expected one, but no remembered batch has it. The broker counts since it opened the log.
    """

    producers: list[tuple[ProducerInfo, list[RememberedBatch]]]
    duplicate_batches: int
    sequence_gaps: int
    stale_sequences: int


async def describe_producer_batches(
    cluster: ClusterClient, topic: str, partition: int, *, broker: int | None = None
) -> PartitionProducers:
    """Return a partition's producers and their last five batches, from its leader or the replica on `broker` (node id).

    Raises UnsupportedError if the broker is not oncelog's, UnknownTopicError, or RequestError
    (BROKER_ID_NOT_REGISTERED).
    """
    found = await ask_for_producers(cluster, (topic, partition), broker, include_batches=True)
    if found.counters is None:
        raise errors.UnsupportedError(
            f"the broker does not show the remembered batches of {topic}-{partition}: only oncelog's broker does"
        )
    producers = [
        (
            producer_info(item),
            [
                RememberedBatch(
                    batch.first_sequence, batch.last_sequence, batch.first_offset, batch.last_offset, batch.timestamp
                )
                for batch in item.batches
            ],
        )
        for item in found.active_producers
    ]
    counted = found.counters
    return PartitionProducers(
        sorted(producers), counted.duplicate_batches, counted.sequence_gaps, counted.stale_sequences
    )
