"""Check that a handle belongs to the connected cluster, and find how its transaction ended, from the markers."""

from __future__ import annotations

from oncelog import errors
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.producer.markers import find_markers
from oncelog.client.producer.prepared import PreparedTransaction, TransactionOutcome
from oncelog.client.types import Marker, Place

_SETTLED = {
    frozenset({Marker.COMMIT}): TransactionOutcome.COMMITTED,
    frozenset({Marker.COMMIT, Marker.GONE}): TransactionOutcome.COMMITTED,
    frozenset({Marker.ABORT}): TransactionOutcome.ABORTED,
    frozenset({Marker.ABORT, Marker.GONE}): TransactionOutcome.ABORTED,
}


async def require_cluster(cluster: ClusterClient, handle: PreparedTransaction) -> None:
    """Raise UsageError if this is the handle of another cluster: its producer id means nothing here."""
    if not handle.cluster_id:
        return
    if not cluster.topology.cluster_id:
        await cluster.refresh((), patient=True)
    found = cluster.topology.cluster_id
    if found != handle.cluster_id:
        raise errors.UsageError(
            f"the handle belongs to cluster {handle.cluster_id}, but the client is connected to {found}; check "
            "bootstrap_servers"
        )


async def settled_outcome(cluster: ClusterClient, handle: PreparedTransaction, wait_ms: float) -> TransactionOutcome:
    """Return COMMITTED, ABORTED, or UNKNOWN if there is no marker within `wait_ms`.

    Raises OutcomeUnknownError if the markers contradict each other.
    """
    places = [Place((topic, index), handle.producer_id, last) for topic, index, _, last in handle.spans]
    found = frozenset(await find_markers(cluster, places, wait_ms))
    if {Marker.COMMIT, Marker.ABORT} <= found:
        raise errors.OutcomeUnknownError(
            f"the prepared transaction of {handle.transactional_id!r} is committed in some partitions and "
            "aborted in others: a marker was lost, and a later transaction of the same producer ended it there"
        )
    return _SETTLED.get(found - {Marker.MISSING} if len(found) > 1 else found, TransactionOutcome.UNKNOWN)
