"""The terms of one coordinators' topic: which partitions this broker coordinates, and under which leader epoch.

Each partition that this broker leads has a `CoordinatorTerm` with a coordinator ("shard"). A new leader epoch is a new
term, with a new shard: the old one may have replayed records that were never committed. A shard is loaded from the
partition's log, in the background and in parts. Source: Kafka's `CoordinatorRuntime` and `CoordinatorLoaderImpl`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Generic, TypeVar

from oncelog.broker.coordinators.record_batches import DecodeRecord, Shard, replay_batch
from oncelog.broker.coordinators.term import CoordinatorTerm
from oncelog.broker.durations import Durations
from oncelog.broker.events import Event
from oncelog.broker.retrying import Backoff
from oncelog.broker.storage.partitions import Partitions
from oncelog.broker.workers import Runtime
from oncelog.cluster.image import MetadataCache, MetadataDelta
from oncelog.cluster.replica import Replica
from oncelog.protocol.errors import ErrorCode, ProtocolError, Refusal
from oncelog.protocol.records import iter_batches

LOAD_BYTES = 256 << 10
"""Bytes of an internal topic that are loaded in one step, before other requests have their turn."""

RETRY_MS = 1000, 60_000
"""How long the broker waits after it could not load a partition: at first, and at most."""

S = TypeVar("S", bound=Shard)


class CoordinatorTerms(Generic[S]):
    """Begin, load and end the terms of `topic` on this broker."""

    def __init__(
        self,
        topic: str,
        make_shard: Callable[[int], S],
        decode_record: DecodeRecord,
        cache: MetadataCache,
        partitions: Partitions,
        runtime: Runtime,
    ) -> None:
        """`make_shard(epoch)` returns an empty coordinator for a leader epoch.

        `decode_record` returns None for an unknown key type.
        """
        self.topic = topic
        self.loaded: Event[[CoordinatorTerm[S], S]] = Event()
        """A term's shard is loaded. If a subscriber raises, the shard is loaded again later."""
        self._make_shard = make_shard
        self._decode_record = decode_record
        self._cache = cache
        self._partitions = partitions
        self._workers = runtime.workers
        self._logger = runtime.logger
        self._terms: dict[int, CoordinatorTerm[S]] = {}
        self.loads = Durations()
        """How long it took to load coordinators, by the event loop's clock."""

    # -- which shard ------------------------------------------------------------------------------------------------

    def shard(self, partition: int) -> S:
        """Return the loaded coordinator of a partition.

        Raises COORDINATOR_LOAD_IN_PROGRESS while the partition is being loaded. Raises NOT_COORDINATOR if it could not
        be loaded (as in Kafka), or if this broker does not lead it.
        """
        term = self._terms.get(partition)
        if term is not None and term.shard is not None:
            return term.shard
        if term is not None and term.retry is not None:
            raise ProtocolError(ErrorCode.NOT_COORDINATOR, f"this broker could not load {self.topic}-{partition}")
        if self._partitions.leads(self.topic, partition):
            raise ProtocolError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self.topic}-{partition} is still loading")
        raise ProtocolError(ErrorCode.NOT_COORDINATOR, f"this broker does not lead {self.topic}-{partition}")

    def shards(self) -> Iterator[tuple[int, S]]:
        """Yield each loaded coordinator as (partition, coordinator), sorted by partition."""
        for partition, term in sorted(self._terms.items()):
            if term.shard is not None:
                yield partition, term.shard

    def states(self) -> Iterator[str]:
        """Yield the state of each term, as Kafka's metrics name it: active, loading or failed."""
        for term in self._terms.values():
            yield "active" if term.shard is not None else "failed" if term.backoff.failures else "loading"

    def check_loaded(self) -> None:
        """Raise COORDINATOR_LOAD_IN_PROGRESS if a partition that this broker leads is not loaded yet.

        A partition that could not be loaded does not count, as in Kafka: lists of groups and transactions omit it.
        """
        info = self._cache.image.topic(self.topic)
        for partition in range(info.partition_count if info else 0):
            term = self._terms.get(partition)
            ready = term is not None and (term.shard is not None or term.backoff.failures > 0)
            if not ready and self._partitions.leads(self.topic, partition):
                raise ProtocolError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self.topic}-{partition} is not loaded")

    def get(self, partition: int) -> CoordinatorTerm[S] | None:
        """Return the present term of a partition, whether its shard is loaded or not."""
        return self._terms.get(partition)

    def is_current(self, term: CoordinatorTerm[S]) -> bool:
        """Return whether a term has not ended."""
        return self._terms.get(term.partition) is term

    def replica(self, term: CoordinatorTerm[S]) -> Replica | None:
        """Return the replica if this broker leads the partition under the term's epoch."""
        try:
            replica = self._partitions.get(self.topic, term.partition)
        except ProtocolError:
            return None
        return replica if replica is not None and replica.leader_epoch == term.epoch else None

    def refusal(self, partition: int) -> Refusal:
        """Return the error for requests whose term has ended."""
        message = f"this broker no longer coordinates {self.topic}-{partition}"
        return Refusal(ErrorCode.NOT_COORDINATOR, message)

    # -- beginning and loading --------------------------------------------------------------------------------------

    def metadata_changed(self, delta: MetadataDelta) -> Callable[[], Awaitable[None]] | None:
        """Resign the partitions that this broker leads no longer, or under a later epoch.

        Return `load` for the caller to run if the topic of the coordinators has changed, otherwise None.
        """
        if any(topic.name == self.topic for topic in delta.deleted_topics):
            for partition in tuple(self._terms):
                self.resign(partition)
        if all(topic.name != self.topic for topic in (*delta.created_topics, *delta.changed_topics)):
            return None
        for partition, term in tuple(self._terms.items()):
            if self._epoch(partition) != term.epoch:
                self.resign(partition)
        return self.load

    def _epoch(self, partition: int) -> int | None:
        """Return the leader epoch of a partition that this broker leads, otherwise None."""
        info = self._cache.image.partition(self.topic, partition)
        return None if info is None or not self._partitions.leads(self.topic, partition) else info.leader_epoch

    async def load(self) -> None:
        """Load every partition of the topic that this broker leads and that is not loaded yet.

        If a partition cannot be loaded, its requests get NOT_COORDINATOR, and the broker retries after a delay. The
        other partitions are served.
        """
        info = self._cache.image.topic(self.topic)
        for partition in range(info.partition_count if info else 0):
            await self.load_partition(partition)
            await asyncio.sleep(0)

    async def load_partition(self, partition: int) -> None:
        """Load a partition if this broker leads it. If it was loaded under an older epoch, resign that term first."""
        epoch = self._epoch(partition)
        term = self._terms.get(partition)
        if term is not None and term.epoch != epoch:
            self.resign(partition)
            term = None
        if epoch is None:
            return
        if term is None:
            term = self._terms[partition] = CoordinatorTerm(partition, epoch, Backoff(*RETRY_MS))
        if term.retry is None:
            await self._try_to_load(term)

    def role_changed(self, replica: Replica) -> None:
        """Load a coordinator if the replica now leads under the epoch of its term. The term may have begun before."""
        term = self._terms.get(replica.partition)
        if term is None or replica.term is None or replica.leader_epoch != term.epoch:
            return
        if term.shard is None and term.retry is None and not term.loading:
            self._load_in_background(term)

    async def _try_to_load(self, term: CoordinatorTerm[S]) -> None:
        term.retry = None
        if term.shard is not None or term.loading or not self.is_current(term):
            return
        if self._epoch(term.partition) != term.epoch:
            self.resign(term.partition, term.epoch)
            return
        term.loading = True
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            await self._load(term)
            term.backoff.reset()
            self.loads.add(began, clock())
        except Exception:  # a disk error or an invalid record: the other partitions are served anyway
            if not self.is_current(term):
                return
            term.shard = None
            wait_s = self._load_later(term)
            text = "cannot load the coordinator of %s-%d; retrying in %d s"
            self._logger.exception(text, self.topic, term.partition, wait_s)
        finally:
            term.loading = False

    def _load_later(self, term: CoordinatorTerm[S]) -> float:
        """Load a coordinator after a delay. Return its seconds."""
        wait_s = term.backoff.next_s()
        term.retry = asyncio.get_running_loop().call_later(wait_s, self._load_in_background, term)
        return wait_s

    def _load_in_background(self, term: CoordinatorTerm[S]) -> None:
        self._workers.spawn(self._try_to_load(term), f"load the coordinator of {self.topic}-{term.partition}")

    def load_again(self, term: CoordinatorTerm[S], error: Exception | None) -> None:
        """Load a coordinator again from its log. With `error`, its `replay` or `tick` has failed."""
        if error is not None:
            name = f"{self.topic}-{term.partition}"
            self._logger.error("the coordinator of %s failed; loading it again", name, exc_info=error)
        self.resign(term.partition)
        again = self._terms[term.partition] = CoordinatorTerm(term.partition, term.epoch, Backoff(*RETRY_MS))
        self._load_later(again)

    async def _load(self, term: CoordinatorTerm[S]) -> None:
        """Rebuild a shard from its partition.

        The shard reads the log in parts. Other requests have their turn between two parts, and the log may grow. If the
        term ends meanwhile, drop the shard. If the replica does not lead under the term's epoch yet, load nothing.
        """
        await self._partitions.open_in_turns(self.topic, term.partition)
        replica = self._partitions.get(self.topic, term.partition)
        if not self.is_current(term):
            return
        if replica is None or replica.leader_epoch != term.epoch:
            return  # `role_changed` loads the shard when the replica leads under the term's epoch
        shard = self._make_shard(term.epoch)
        log = replica.log
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            data = log.read(offset, LOAD_BYTES, upto=log.log_end_offset, at_least_one=True)
            if not data:  # compaction has removed all records up to the end
                break
            for header, view in iter_batches(data):
                await replay_batch(shard, self._decode_record, header, view)
                offset = header.next_offset
            await asyncio.sleep(0)
            if not self.is_current(term):
                return
            if replica.offline or log.closed:
                raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, f"{log!r} was closed while it was loading")
        term.shard = shard
        term.written = log.log_end_offset - 1  # may not be committed yet, and replies wait for it
        if log.log_end_offset > log.log_start_offset:
            self._logger.debug("loaded the coordinator of %r, epoch %d", log, term.epoch)
        self.loaded(term, shard)

    def resign(self, partition: int, epoch: int | None = None) -> None:
        """Give up a partition, and answer NOT_COORDINATOR to the requests that wait for its coordinator.

        With `epoch`, ignore the call if a later term has begun.
        """
        term = self._terms.get(partition)
        if term is not None and (epoch is None or term.epoch <= epoch):
            del self._terms[partition]
            self._logger.debug("resigned as the coordinator of %s-%d, epoch %d", self.topic, partition, term.epoch)
            term.end(self.refusal(partition))

    def close(self) -> None:
        """Stop all timers, and drop the coordinators. Nothing is appended from now on."""
        for term in self._terms.values():
            term.stop()
        self._terms.clear()
