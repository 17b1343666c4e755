"""Find out which sinks have a decision that is not carried out everywhere, from their decision topics.

A Spark sink keeps one record in its decision topic (`docs/design/sink-protocol.md`). If the last committed one is not
settled, transactions of a decided batch may still be open. Topics with other records are ignored. A decision topic is
recognized by the end of its name, which the sink chooses unless its option `decisionTopic` says otherwise.
"""

from __future__ import annotations

import msgspec

from oncelog.broker.requests.readers import STEPS_A_TURN, readable_end
from oncelog.broker.storage.partitions import Partitions
from oncelog.broker.turns import KEYS_A_TURN, Yielder, in_turns
from oncelog.cluster.image import MetadataCache
from oncelog.cluster.replica import Replica
from oncelog.log.steps import Steps
from oncelog.protocol.errors import ProtocolError
from oncelog.protocol.records import decode_records, iter_batches

SUFFIX = "-commits"
MOST_TOPICS = 1000
"""Decision topics that one scrape reads. Their names are sorted first."""
MOST_BYTES = 1 << 20
MOST_RECORDS = 10
"""The largest batch that is decoded. A sink writes its record alone."""


class _Decision(msgspec.Struct):
    settled: bool


class _Envelope(msgspec.Struct):
    version: int
    record: _Decision


class Sinks:
    """The decision topics whose partition this broker leads."""

    def __init__(self, cache: MetadataCache, partitions: Partitions) -> None:
        self._cache = cache
        self._partitions = partitions
        self._known: dict[str, tuple[Replica, int, bool | None]] = {}
        """Of each topic: the replica and the end of its records at the last look, and the result."""

    async def pending(self) -> dict[str, bool]:
        """Return for each decision topic whether its last decision is pending."""
        found: dict[str, bool] = {}
        known: dict[str, tuple[Replica, int, bool | None]] = {}
        searches = Yielder(STEPS_A_TURN)
        for topic in await in_turns(self._topics(), KEYS_A_TURN):
            replica = self._partitions.opened_replica(topic, 0)
            if replica is None or replica.term is None:
                continue
            try:
                end = await readable_end(replica, searches, committed=True)
                before = self._known.get(topic)
                if before is not None and before[:2] == (replica, end):
                    pending = before[2]
                else:
                    await searches.next(STEPS_A_TURN // 2)
                    pending = _pending(replica, end)
            except ProtocolError:  # the log was closed or has failed, or the batch is damaged; others report that
                continue
            known[topic] = replica, end, pending
            if pending is not None:
                found[topic] = pending
        self._known = known
        return found

    def _topics(self) -> Steps[list[str]]:
        """Return the names of the decision topics, with a pause after each topic."""
        found: list[str] = []
        for topic in self._cache.image.topics():
            yield
            if topic.partition_count == 1 and topic.name.endswith(SUFFIX):
                found.append(topic.name)
        return sorted(found)[:MOST_TOPICS]


def _pending(replica: Replica, end: int) -> bool | None:
    """Return whether the record before an offset is a decision that is pending, None if it is no decision."""
    log = replica.log
    if end <= log.log_start_offset:
        return None
    data = log.read(end - 1, MOST_BYTES, upto=end, at_least_one=False)
    batches = list(iter_batches(data))
    if not batches or not 0 < batches[-1][0].count <= MOST_RECORDS:
        return None
    value = decode_records(batches[-1][1], limit=MOST_BYTES)[-1].value
    if value is None:
        return None
    try:
        return not msgspec.json.decode(value, type=_Envelope).record.settled
    except msgspec.DecodeError:  # a topic of another program
        return None
