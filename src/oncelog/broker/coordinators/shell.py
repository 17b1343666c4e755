"""The shell around coordinators: append the records that they return, replay them, and reply after the commit.

One `CoordinatorShell` serves one internal topic. Each partition that this broker leads has a `Term` with a coordinator
("shard"). A shard gets records only through `replay`, both while its partition is loaded and while it serves requests.
A new leader epoch is a new term, with a new shard: the old one may have replayed records that were never committed.
Source: Kafka's `CoordinatorRuntime`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Generic, TypeVar

from oncelog.broker.coordinators.record_batches import DecodeRecord, Shard, encode, replay, replay_batch
from oncelog.broker.coordinators.term import Term
from oncelog.broker.storage.partitions import Partitions
from oncelog.broker.workers import Workers
from oncelog.cluster.image import MetadataCache, MetadataDelta
from oncelog.cluster.replica import Replica
from oncelog.cluster.waits import Outcome, Wait
from oncelog.coordinator.effects import Effects, Markers, Reply
from oncelog.coordinator.partitioning import partition_for
from oncelog.coordinator.timers import Now
from oncelog.log.log import Origin
from oncelog.protocol.errors import ErrorCode, ProtocolError, Refusal
from oncelog.protocol.records import iter_batches

LOAD_BYTES = 256 << 10
"""Bytes of an internal topic that are loaded in one step, before other requests have their turn."""

RETRY_MS = 1000
RETRY_MAX_MS = 60_000
"""If a partition cannot be loaded, the broker retries after RETRY_MS. The delay then doubles, up to the maximum."""


APPEND_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""Maps the error of an append to the error that a coordinator's client gets (Kafka's `TransactionStateManager`)."""


S = TypeVar("S", bound=Shard)
R = TypeVar("R")


class CoordinatorShell(Generic[S]):
    """Run the shards of `topic` on this broker."""

    def __init__(
        self,
        topic: str,
        make_shard: Callable[[int], S],
        decode_record: DecodeRecord,
        on_markers: Callable[[list[Markers]], None] | None = None,
        *,
        steady: bool = False,
        commit_timeout_ms: int = 30_000,
        cache: MetadataCache,
        partitions: Partitions,
        workers: Workers,
        now_ms: Callable[[], int],
        logger: logging.Logger,
    ) -> None:
        """`make_shard(epoch)` returns an empty coordinator for a leader epoch.

        `decode_record` returns None for an unknown key type. If the records of a request are not committed within
        `commit_timeout_ms`, its error is COORDINATOR_NOT_AVAILABLE, although they may be committed later.

        If `steady` is set, deadlines are on the event loop's clock, and coordinators get both times (`Now`). Otherwise
        they are on the wall clock, because they come from records (timeouts of transactions).
        """
        self._cache = cache
        self._partitions = partitions
        self._workers = workers
        self._now_ms = now_ms
        self._logger = logger
        self._steady = steady
        self._commit_timeout_ms = commit_timeout_ms
        self.topic = topic
        self.on_markers = on_markers
        self.on_loaded: Callable[[int, S], None] | None = None
        """Called with each partition that is loaded, and its coordinator."""
        self._make_shard = make_shard
        self._decode_record = decode_record
        self._terms: dict[int, Term[S]] = {}

    # -- which shard ------------------------------------------------------------------------------------------------

    def partition_for(self, key: str) -> int:
        """Return the partition of `topic` for a group or transactional id. Raises COORDINATOR_NOT_AVAILABLE."""
        info = self._cache.image.topic(self.topic)
        if info is None:
            raise ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self.topic} does not exist yet")
        return partition_for(key, info.partition_count)

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

    def check_loaded(self) -> None:
        """Raise COORDINATOR_LOAD_IN_PROGRESS if a partition that this broker leads is not loaded yet.

        A partition that could not be loaded does not count, as in Kafka: lists of groups and transactions omit it.
        """
        info = self._cache.image.topic(self.topic)
        for partition in range(info.partition_count if info else 0):
            term = self._terms.get(partition)
            ready = term is not None and (term.shard is not None or term.failed)
            if not ready and self._partitions.leads(self.topic, partition):
                raise ProtocolError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self.topic}-{partition} is not loaded")

    # -- requests ---------------------------------------------------------------------------------------------------

    async def request(
        self,
        partition: int,
        operation: Callable[[S, asyncio.Future[Any]], Effects],
        *,
        producer: tuple[int, int] | None = None,
        guard: int | None = None,
        on_disconnect: list[Callable[[], None]] | None = None,
    ) -> Any:
        """Run `operation(shard, token)` and wait for the reply to `token`.

        `producer` (id, epoch) makes the records part of that producer's transaction. `guard` belongs to its
        verification (`Log.start_verification`). Raises ProtocolError if the records cannot be appended. The
        coordinator's state does not change then. If `on_disconnect` is given and the client disconnects, return None.
        The request can be freed then, and the coordinator's reply is dropped.
        """
        shard = self.shard(partition)
        token: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        effects = operation(shard, token)
        waiting = self._terms[partition].waiting
        waiting[token] = None
        token.add_done_callback(waiting.pop)
        self.apply(partition, effects, producer=producer, guard=guard)
        # A refusal is a value: a future that keeps an exception also keeps this frame and the request alive.
        answer = await (token if on_disconnect is None else _while_connected(token, on_disconnect))
        if isinstance(answer, Refusal):
            raise answer.error()
        return answer

    async def read(self, partition: int, query: Callable[[S], R]) -> R:
        """Return the result of `query` on the coordinator, after all records that it may depend on are committed."""
        answer: R = await self.request(partition, lambda shard, token: Effects(replies=[Reply(token, query(shard))]))
        return answer

    async def settled(self) -> None:
        """Wait until the state that earlier reads may have returned is committed, in all coordinators."""
        for partition, _ in tuple(self.shards()):
            term = self._terms.get(partition)
            if term is not None and term.shard is not None:
                await self.read(partition, lambda _: None)

    def apply(
        self,
        partition: int,
        effects: Effects,
        *,
        producer: tuple[int, int] | None = None,
        guard: int | None = None,
    ) -> None:
        """Append and replay the records. Send the replies and markers after the records are committed."""
        term = self._terms.get(partition)
        if term is None or term.shard is None:
            self._refuse(effects, self._not_coordinator(partition))
            return
        replica = self._replica(term)
        if replica is None:  # the broker has just stopped leading the partition under this epoch
            self._refuse(effects, self._not_coordinator(partition))
            self._load_again(term, None)
            return
        if effects.records:
            try:
                term.written = self._append(replica, effects, producer, guard)
            except ProtocolError as error:
                refusal = Refusal.of(error)
                self._logger.warning("cannot append to %s-%d: %s", self.topic, partition, refusal.message)
                self._refuse(effects, refusal)
                self._arm(term)
                return
            except Exception as error:  # for example, a record cannot be encoded: nothing was appended
                self._logger.exception("cannot append to %s-%d", self.topic, partition)
                self._refuse(effects, Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, repr(error)))
                self._arm(term)
                return
            try:
                for record in effects.records:
                    replay(term.shard, record, producer)
            except Exception as error:  # noqa: BLE001 - `_load_again` logs it
                self._load_again(term, error)
                return
        if replica.log.high_watermark > term.written:
            self._deliver(effects)
        else:
            self._deliver_later(replica, term, effects)
        self._arm(term)

    def apply_if_served(self, partition: int, shard: S, effects: Effects) -> None:
        """Apply effects of a shard, unless this broker has given it up or loaded it again in the meantime."""
        term = self._terms.get(partition)
        if term is not None and term.shard is shard:
            self.apply(partition, effects)

    def _replica(self, term: Term[S]) -> Replica | None:
        """Return the replica if this broker leads the partition under the term's epoch."""
        try:
            replica = self._partitions.get(self.topic, term.partition)
        except ProtocolError:
            return None
        return replica if replica is not None and replica.leader_epoch == term.epoch else None

    @staticmethod
    def _refuse(effects: Effects, refusal: Refusal) -> None:
        """Answer with an error instead of the effects' replies, unless they are answered."""
        for reply in effects.replies:
            if not reply.token.done():
                reply.token.set_result(refusal)

    def _append(self, replica: Replica, effects: Effects, producer: tuple[int, int] | None, guard: int | None) -> int:
        now_ms = self._now_ms()
        batches = encode(effects.records, producer, replica.log.config.max_message_bytes, now_ms)
        result = replica.append(memoryview(batches), now_ms=now_ms, origin=Origin.COORDINATOR, guard=guard)
        return result.last_offset

    def _deliver_later(self, replica: Replica, term: Term[S], effects: Effects) -> None:
        """Deliver effects after all records until now are committed. A reply without records may show earlier ones."""
        waiting = Effects(replies=effects.replies, markers=effects.markers)  # the wait may be long: free the records

        def committed(error: ErrorCode) -> None:
            too_late.cancel()
            if self._terms.get(term.partition) is not term:  # another leader may have written the offset again
                self._refuse(waiting, self._not_coordinator(term.partition))
            elif error is ErrorCode.NONE:
                self._deliver(waiting)
            elif error is not ErrorCode.REQUEST_TIMED_OUT:
                self._refuse(waiting, self._not_coordinator(term.partition))
                self._lost(term, error)

        delay_s = self._commit_timeout_ms / 1000
        wait: Wait | None = None
        too_late = asyncio.get_running_loop().call_later(delay_s, lambda: self._too_late(replica, term, waiting, wait))
        wait = replica.when_committed(term.written, committed)

    def _too_late(self, replica: Replica, term: Term[S], effects: Effects, wait: Wait | None) -> None:
        """Refuse the replies. Markers still wait: they must follow the decision whenever it is committed."""
        message = f"records of {self.topic}-{term.partition} were not committed within {self._commit_timeout_ms} ms"
        self._refuse(effects, Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, message))
        effects.replies = []
        if not effects.markers and wait is not None:
            self._guard(replica, term)
            wait.finish(Outcome.TIMED_OUT)

    def _guard(self, replica: Replica, term: Term[S]) -> None:
        """Notice the loss of the records until now, with one wait for all requests that have timed out."""
        if term.guarded or self._terms.get(term.partition) is not term:
            return
        term.guarded = True

        def ended(error: ErrorCode) -> None:
            term.guarded = False
            if self._terms.get(term.partition) is not term:
                return
            if error is not ErrorCode.NONE:
                self._lost(term, error)
            elif replica.log.high_watermark <= term.written:
                self._guard(replica, term)

        replica.when_committed(term.written, ended)

    def _lost(self, term: Term[S], error: ErrorCode) -> None:
        """Resign, because the coordinator has replayed records that are lost."""
        self._logger.info("records of %s-%d are lost: %s", self.topic, term.partition, error.name)
        self.resign(term.partition)

    def _not_coordinator(self, partition: int) -> Refusal:
        """Return the error for requests whose coordinator was closed."""
        message = f"this broker no longer coordinates {self.topic}-{partition}"
        return Refusal(ErrorCode.NOT_COORDINATOR, message)

    def _deliver(self, effects: Effects) -> None:
        for reply in effects.replies:
            if not reply.token.done():
                reply.token.set_result(reply.response)
        if effects.markers and self.on_markers is not None:
            self.on_markers(effects.markers)

    # -- time -------------------------------------------------------------------------------------------------------

    def now(self) -> Any:
        """Return the time for coordinators: `Now` if the shell is `steady`, otherwise ms of the wall clock."""
        wall_ms = self._now_ms()
        return Now(wall_ms, self._steady_ms()) if self._steady else wall_ms

    def _steady_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def _arm(self, term: Term[S]) -> None:
        if term.shard is None or self._terms.get(term.partition) is not term:
            return
        deadline = term.shard.deadline()
        if term.timer is not None:
            if deadline is not None and term.timer[0] <= deadline:
                return  # it fires early enough, and `_tick` sets the next timer
            term.timer[1].cancel()
            term.timer = None
        if deadline is not None:
            now_ms = self._steady_ms() if self._steady else self._now_ms()
            delay = max(0, deadline - now_ms) / 1000
            term.timer = deadline, asyncio.get_running_loop().call_later(delay, self._tick, term)

    def _tick(self, term: Term[S]) -> None:
        term.timer = None
        if term.shard is None or self._terms.get(term.partition) is not term:
            return
        try:
            effects = term.shard.tick(self.now())
        except Exception as error:  # noqa: BLE001 - `_load_again` logs it
            self._load_again(term, error)
            return
        self.apply(term.partition, effects)

    # -- loading ----------------------------------------------------------------------------------------------------

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
            term = self._terms[partition] = Term(partition, epoch)
        if term.retry is None:
            await self._try_to_load(term, RETRY_MS)

    def role_changed(self, replica: Replica) -> None:
        """Load a coordinator if the replica now leads under the epoch of its term. The term may have begun before."""
        term = self._terms.get(replica.partition)
        if term is None or replica.term is None or replica.leader_epoch != term.epoch:
            return
        if term.shard is None and term.retry is None and not term.loading:
            self._load_in_background(term, RETRY_MS)

    async def _try_to_load(self, term: Term[S], retry_ms: int) -> None:
        term.retry = None
        if term.shard is not None or term.loading or self._terms.get(term.partition) is not term:
            return
        if self._epoch(term.partition) != term.epoch:
            self.resign(term.partition, term.epoch)
            return
        term.loading = True
        try:
            await self._load(term)
            term.failed = False
        except Exception:  # a disk error or an invalid record: the other partitions are served anyway
            if self._terms.get(term.partition) is not term:
                return
            term.shard = None
            self._logger.exception(
                "cannot load the coordinator of %s-%d; retrying in %d s", self.topic, term.partition, retry_ms // 1000
            )
            self._load_later(term, retry_ms)
        finally:
            term.loading = False

    def _load_later(self, term: Term[S], retry_ms: int) -> None:
        term.failed = True
        term.retry = asyncio.get_running_loop().call_later(
            retry_ms / 1000, self._load_in_background, term, min(2 * retry_ms, RETRY_MAX_MS)
        )

    def _load_in_background(self, term: Term[S], retry_ms: int) -> None:
        self._workers.spawn(self._try_to_load(term, retry_ms), f"load the coordinator of {self.topic}-{term.partition}")

    def _load_again(self, term: Term[S], error: Exception | None) -> None:
        """Load a coordinator again from its log. With `error`, its `replay` or `tick` has failed."""
        if error is not None:
            name = f"{self.topic}-{term.partition}"
            self._logger.error("the coordinator of %s failed; loading it again", name, exc_info=error)
        self.resign(term.partition)
        again = self._terms[term.partition] = Term(term.partition, term.epoch)
        self._load_later(again, RETRY_MS)

    async def _load(self, term: Term[S]) -> None:
        """Rebuild a shard from its partition, then apply the effects that its `loaded` returns.

        The shard reads the log in parts. Other requests have their turn between two parts, and the log may grow. If the
        term ends meanwhile, drop the shard. If the replica does not lead under the term's epoch yet, load nothing.
        """
        await self._partitions.open_in_turns(self.topic, term.partition)
        replica = self._partitions.get(self.topic, term.partition)
        if self._terms.get(term.partition) is not term:
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
            if self._terms.get(term.partition) is not term:
                return
            if replica.offline or log.closed:
                raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, f"{log!r} was closed while it was loading")
        term.shard = shard
        term.written = log.log_end_offset - 1  # may not be committed yet, and replies wait for it
        self.apply(term.partition, shard.loaded(self.now()))
        if self.on_loaded is not None:
            self.on_loaded(term.partition, shard)

    def resign(self, partition: int, epoch: int | None = None) -> None:
        """Give up a partition, and answer NOT_COORDINATOR to the requests that wait for its coordinator.

        With `epoch`, ignore the call if a later term has begun.
        """
        term = self._terms.get(partition)
        if term is not None and (epoch is None or term.epoch <= epoch):
            del self._terms[partition]
            term.end(self._not_coordinator(partition))

    def close(self) -> None:
        """Stop all timers, and drop the coordinators. Nothing is appended from now on."""
        for term in self._terms.values():
            term.stop()
        self._terms.clear()


async def _while_connected(token: asyncio.Future[Any], on_disconnect: list[Callable[[], None]]) -> Any:
    """Wait for the reply, and return it. Return None if the client disconnects before."""

    def give_up() -> None:
        if not token.done():
            token.set_result(None)

    on_disconnect.append(give_up)
    try:
        return await token
    finally:
        on_disconnect.remove(give_up)
