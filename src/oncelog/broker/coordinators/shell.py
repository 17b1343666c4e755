"""The shell around coordinators: append the records that they return, replay them, and reply after the commit.

One `CoordinatorShell` serves one internal topic. Its `CoordinatorTerms` have the coordinators ("shards"). A shard gets
records only through `replay`, both while its partition is loaded and while it serves requests. Source: Kafka's
`CoordinatorRuntime`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from oncelog.broker.coordinators.record_batches import EndMarker, Shard, encode, replay
from oncelog.broker.coordinators.term import CoordinatorTerm
from oncelog.broker.coordinators.terms import CoordinatorTerms
from oncelog.broker.events import Event
from oncelog.broker.workers import Runtime
from oncelog.cluster.image import MetadataCache
from oncelog.cluster.replica import Replica
from oncelog.cluster.waits import Outcome, Wait
from oncelog.coordinator.effects import Effects, Markers, Reply
from oncelog.coordinator.partitioning import partition_for
from oncelog.coordinator.timers import Now
from oncelog.log.log import Origin
from oncelog.net.session import Session
from oncelog.protocol.errors import ErrorCode, ProtocolError, Refusal

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
        terms: CoordinatorTerms[S],
        cache: MetadataCache,
        runtime: Runtime,
        *,
        steady: bool = False,
        commit_timeout_ms: int = 30_000,
    ) -> None:
        """`commit_timeout_ms` bounds how long a request waits for its records to be committed.

        Then its error is COORDINATOR_NOT_AVAILABLE, although they may be committed later.

        If `steady` is set, deadlines are on the event loop's clock, and coordinators get both times (`Now`). Otherwise
        they are on the wall clock, because they come from records (timeouts of transactions).
        """
        self.terms = terms
        self.topic = terms.topic
        self.markers_due: Event[[list[Markers]]] = Event()
        """The decisions of these markers are committed."""
        self.loaded: Event[[int, S]] = Event()
        """The coordinator of a partition is loaded."""
        self._cache = cache
        self._now_ms = runtime.now_ms
        self._logger = runtime.logger
        self._steady = steady
        self._commit_timeout_ms = commit_timeout_ms
        terms.loaded.subscribe(self._loaded)

    def partition_for(self, key: str) -> int:
        """Return the partition of `topic` for a group or transactional id. Raises COORDINATOR_NOT_AVAILABLE."""
        info = self._cache.image.topic(self.topic)
        if info is None:
            raise ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self.topic} does not exist yet")
        return partition_for(key, info.partition_count)

    # -- requests ---------------------------------------------------------------------------------------------------

    async def request(
        self,
        partition: int,
        operation: Callable[[S, asyncio.Future[Any]], Effects],
        *,
        producer: tuple[int, int] | None = None,
        guard: int | None = None,
        session: Session | None = None,
    ) -> Any:
        """Run `operation(shard, token)` and wait for the reply to `token`.

        `producer` (id, epoch) makes the records part of that producer's transaction. `guard` belongs to its
        verification (`Log.start_verification`). Raises ProtocolError if the records cannot be appended. The
        coordinator's state does not change then. If `session` is given and its client disconnects, return None.
        The request can be freed then, and the coordinator's reply is dropped.
        """
        shard = self.terms.shard(partition)
        token: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        effects = operation(shard, token)
        term = self.terms.get(partition)
        assert term is not None
        term.waiting[token] = None
        token.add_done_callback(term.waiting.pop)
        self.apply(partition, effects, producer=producer, guard=guard)
        # A refusal is a value: a future that keeps an exception also keeps this frame and the request alive.
        answer = await (token if session is None else _while_connected(token, session))
        if isinstance(answer, Refusal):
            raise answer.error()
        return answer

    async def read(self, partition: int, query: Callable[[S], R]) -> R:
        """Return the result of `query` on the coordinator, after all records that it may depend on are committed."""
        answer: R = await self.request(partition, lambda shard, token: Effects(replies=[Reply(token, query(shard))]))
        return answer

    async def settled(self) -> None:
        """Wait until the state that earlier reads may have returned is committed, in all coordinators."""
        for partition, _ in tuple(self.terms.shards()):
            term = self.terms.get(partition)
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
        """Append and replay the records. Send the replies and markers after the records are committed.

        Also set the timer of the coordinator's next deadline. Without effects, do nothing else.
        """
        term = self.terms.get(partition)
        if term is None or term.shard is None:
            self._refuse(effects, self.terms.refusal(partition))
            return
        replica = self.terms.replica(term)
        if replica is None:  # the broker has just stopped leading the partition under this epoch
            self._refuse(effects, self.terms.refusal(partition))
            self.terms.load_again(term, None)
            return
        if not (effects.records or effects.replies or effects.markers):
            self._arm(term)
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
            except Exception as error:  # noqa: BLE001 - `load_again` logs it
                self.terms.load_again(term, error)
                return
        if replica.log.high_watermark > term.written:
            self._deliver(effects)
        else:
            self._deliver_later(replica, term, effects)
        self._arm(term)

    def append_marker(self, replica: Replica, marker: EndMarker) -> int:
        """Append and replay the end of a transaction, and return the offset. The caller waits for the commit.

        As after any record, reads wait for the commit too. So when the marker is committed, a client finds the offsets
        that it has made visible. A coordinator that is loading reads the marker from its log, and one of another leader
        epoch serves no reads (Kafka's `CoordinatorCompleteTransactionEvent`). Raises the errors of
        `Replica.append_control`.
        """
        offset = replica.append_control(**marker._asdict(), now_ms=self._now_ms()).last_offset
        term = self.terms.get(replica.partition)
        if term is None or term.shard is None or term.epoch != replica.leader_epoch:
            return offset
        term.written = offset
        try:
            term.shard.replay_end_transaction(marker.producer_id, marker.producer_epoch, marker.commit)
        except Exception as error:  # noqa: BLE001 - `load_again` logs it
            self.terms.load_again(term, error)
            return offset
        self._guard(replica, term)
        return offset

    def apply_if_served(self, partition: int, shard: S, effects: Effects) -> None:
        """Apply effects of a shard, unless this broker has given it up or loaded it again in the meantime."""
        term = self.terms.get(partition)
        if term is not None and term.shard is shard:
            self.apply(partition, effects)

    def apply_to_all(self, operation: Callable[[S], Effects]) -> None:
        """Apply the effects of an operation on each loaded coordinator. The operation may also set timers."""
        for partition, _ in tuple(self.terms.shards()):
            term = self.terms.get(partition)
            if term is not None:
                self._run(term, operation)

    def _run(self, term: CoordinatorTerm[S], operation: Callable[[S], Effects]) -> None:
        """Apply the effects of an operation. If it fails, load the coordinator again."""
        if term.shard is None or not self.terms.is_current(term):
            return
        try:
            effects = operation(term.shard)
        except Exception as error:  # noqa: BLE001 - `load_again` logs it
            self.terms.load_again(term, error)
            return
        self.apply(term.partition, effects)

    @staticmethod
    def _refuse(effects: Effects, refusal: Refusal) -> None:
        """Answer with an error instead of the effects' replies, unless they are answered."""
        for reply in effects.replies:
            if not reply.token.done():
                reply.token.set_result(refusal)

    def _append(self, replica: Replica, effects: Effects, producer: tuple[int, int] | None, guard: int | None) -> int:
        now_ms = self._now_ms()
        most = replica.log.config.max_message_bytes
        batches = encode(effects.records, producer, most, now_ms, whole=effects.whole)
        result = replica.append(memoryview(batches), now_ms=now_ms, origin=Origin.COORDINATOR, guard=guard)
        return result.last_offset

    def _deliver_later(self, replica: Replica, term: CoordinatorTerm[S], effects: Effects) -> None:
        """Deliver effects after all records until now are committed. A reply without records may show earlier ones."""
        waiting = Effects(replies=effects.replies, markers=effects.markers)  # the wait may be long: free the records

        def committed(error: ErrorCode) -> None:
            too_late.cancel()
            if not self.terms.is_current(term):  # another leader may have written the offset again
                self._refuse(waiting, self.terms.refusal(term.partition))
            elif error is ErrorCode.NONE:
                self._deliver(waiting)
            elif error is not ErrorCode.REQUEST_TIMED_OUT:
                self._refuse(waiting, self.terms.refusal(term.partition))
                self._lost(term, error)

        delay_s = self._commit_timeout_ms / 1000
        wait: Wait | None = None
        too_late = asyncio.get_running_loop().call_later(delay_s, lambda: self._too_late(replica, term, waiting, wait))
        wait = replica.when_committed(term.written, committed)

    def _too_late(self, replica: Replica, term: CoordinatorTerm[S], effects: Effects, wait: Wait | None) -> None:
        """Refuse the replies. Markers still wait: they must follow the decision whenever it is committed."""
        message = f"records of {self.topic}-{term.partition} were not committed within {self._commit_timeout_ms} ms"
        self._refuse(effects, Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, message))
        effects.replies = []
        if not effects.markers and wait is not None:
            self._guard(replica, term)
            wait.finish(Outcome.TIMED_OUT)

    def _guard(self, replica: Replica, term: CoordinatorTerm[S]) -> None:
        """Notice the loss of the records until now, with one wait for all requests that have timed out."""
        if term.guarded or not self.terms.is_current(term):
            return
        term.guarded = True

        def ended(error: ErrorCode) -> None:
            term.guarded = False
            if not self.terms.is_current(term):
                return
            if error is not ErrorCode.NONE:
                self._lost(term, error)
            elif replica.log.high_watermark <= term.written:
                self._guard(replica, term)

        replica.when_committed(term.written, ended)

    def _lost(self, term: CoordinatorTerm[S], error: ErrorCode) -> None:
        """Resign, because the coordinator has replayed records that are lost."""
        self._logger.info("records of %s-%d are lost: %s", self.topic, term.partition, error.name)
        self.terms.resign(term.partition)

    def _deliver(self, effects: Effects) -> None:
        for reply in effects.replies:
            if not reply.token.done():
                reply.token.set_result(reply.response)
        if effects.markers:
            self.markers_due(effects.markers)

    # -- time -------------------------------------------------------------------------------------------------------

    def now(self) -> Any:
        """Return the time for coordinators: `Now` if the shell is `steady`, otherwise ms of the wall clock."""
        wall_ms = self._now_ms()
        return Now(wall_ms, self._steady_ms()) if self._steady else wall_ms

    def _loaded(self, term: CoordinatorTerm[S], shard: S) -> None:
        self.apply(term.partition, shard.loaded(self.now()))
        self.loaded(term.partition, shard)

    def _steady_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def _arm(self, term: CoordinatorTerm[S]) -> None:
        if term.shard is None or not self.terms.is_current(term):
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

    def _tick(self, term: CoordinatorTerm[S]) -> None:
        term.timer = None
        self._run(term, lambda shard: shard.tick(self.now()))


async def _while_connected(token: asyncio.Future[Any], session: Session) -> Any:
    """Wait for the reply, and return it. Return None if the client disconnects before."""

    def give_up() -> None:
        if not token.done():
            token.set_result(None)

    with session.on_disconnect(give_up):
        return await token
