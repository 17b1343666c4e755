"""The shell around coordinators: append the records that they return, replay them, and reply after the commit.

One `CoordinatorShell` serves one internal topic. Each partition has one coordinator ("shard"). A shard gets records
only through `replay`, both while its partition is loaded and while it serves requests. Source: Kafka's
`CoordinatorRuntime`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from oncelog.broker.storage.partitions import Partitions
from oncelog.broker.turns import Turns
from oncelog.broker.workers import Workers
from oncelog.cluster.image import MetadataCache, MetadataDelta
from oncelog.cluster.replica import Replica
from oncelog.coordinator.effects import CoordinatorRecord, Effects, Markers, Reply
from oncelog.coordinator.partitioning import partition_for
from oncelog.coordinator.timers import Now
from oncelog.log.log import Origin
from oncelog.protocol.errors import ErrorCode, ProtocolError, Refusal
from oncelog.protocol.records import (
    HEADER_SIZE,
    BatchHeader,
    Record,
    build_batch,
    decode_control,
    decode_records,
    iter_batches,
)
from oncelog.protocol.schema import encode_versioned

LOAD_BYTES = 256 << 10
"""Bytes of an internal topic that are loaded in one step, before other requests have their turn."""

RECORD_OVERHEAD = 21
"""The maximum size of a record besides key and value: length, attributes, deltas, lengths, number of headers."""

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


class Shard(Protocol):
    """One coordinator: a state machine over the records of one partition."""

    def replay(self, record: CoordinatorRecord, /, *, producer_id: int | None = None, producer_epoch: int = -1) -> None:
        """Apply one record of the log. If it has a producer id, it is part of that producer's transaction."""

    def replay_end_transaction(self, producer_id: int, producer_epoch: int, commit: bool, /) -> None:
        """Apply a transaction marker of the log."""

    def loaded(self, now: Any, /) -> Effects:
        """Return the effects that are due after the partition was replayed. `now` comes from the shell's `now`."""

    def deadline(self) -> int | None:
        """Return when `tick` is due, in ms on the shell's clock. Return None if no deadline is pending."""

    def tick(self, now: Any, /) -> Effects:
        """Return the effects of deadlines that have passed."""


S = TypeVar("S", bound=Shard)
R = TypeVar("R")


class CoordinatorShell(Generic[S]):
    """Run the shards of `topic` on this broker."""

    def __init__(
        self,
        topic: str,
        make_shard: Callable[[int], S],
        decode_record: Callable[[bytes, bytes | None], CoordinatorRecord | None],
        on_markers: Callable[[list[Markers]], None] | None = None,
        *,
        steady: bool = False,
        cache: MetadataCache,
        partitions: Partitions,
        workers: Workers,
        now_ms: Callable[[], int],
        logger: logging.Logger,
    ) -> None:
        """`make_shard(partition)` returns an empty coordinator. `decode_record` returns None for an unknown key type.

        If `steady` is set, deadlines are on the event loop's clock, and coordinators get both times (`Now`). Otherwise
        they are on the wall clock, because they come from records (timeouts of transactions).
        """
        self._cache = cache
        self._partitions = partitions
        self._workers = workers
        self._now_ms = now_ms
        self._logger = logger
        self._steady = steady
        self.topic = topic
        self.on_markers = on_markers
        self._make_shard = make_shard
        self._decode_record = decode_record
        self._shards: dict[int, S] = {}
        self._timers: dict[int, tuple[int, asyncio.TimerHandle]] = {}
        self._waiting: dict[int, set[asyncio.Future[Any]]] = {}
        self._loading: set[int] = set()
        self._failed: set[int] = set()
        self._retries: dict[int, asyncio.TimerHandle] = {}
        self._written: dict[int, int] = {}

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
        shard = self._shards.get(partition)
        if shard is not None:
            return shard
        if partition in self._retries:
            raise ProtocolError(ErrorCode.NOT_COORDINATOR, f"this broker could not load {self.topic}-{partition}")
        if self._partitions.leads(self.topic, partition):
            raise ProtocolError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self.topic}-{partition} is still loading")
        raise ProtocolError(ErrorCode.NOT_COORDINATOR, f"this broker does not lead {self.topic}-{partition}")

    def shards(self) -> Iterator[tuple[int, S]]:
        """Yield each loaded coordinator as (partition, coordinator), sorted by partition."""
        yield from sorted(self._shards.items())

    def check_loaded(self) -> None:
        """Raise COORDINATOR_LOAD_IN_PROGRESS if a partition that this broker leads is not loaded yet.

        A partition that could not be loaded does not count, as in Kafka: lists of groups and transactions omit it.
        """
        info = self._cache.image.topic(self.topic)
        for partition in range(info.partition_count if info else 0):
            if (
                partition not in self._shards
                and partition not in self._failed
                and self._partitions.leads(self.topic, partition)
            ):
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
        waiting = self._waiting.setdefault(partition, set())
        waiting.add(token)
        token.add_done_callback(waiting.discard)
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
        for partition in tuple(self._shards):
            if partition in self._shards:
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
        if effects.records:
            replica = self._partitions.get(self.topic, partition)
            try:
                if replica is None:
                    raise ProtocolError(ErrorCode.NOT_COORDINATOR, self._not_coordinator(partition))
                last_offset = self._append(replica, effects.records, producer, guard)
            except ProtocolError as error:
                refusal = Refusal.of(error)
                self._logger.warning("cannot append to %s-%d: %s", self.topic, partition, refusal.message)
                self._refuse(partition, effects, refusal)
                return
            except Exception as error:  # for example, a record cannot be encoded: nothing was appended
                self._logger.exception("cannot append to %s-%d", self.topic, partition)
                self._refuse(partition, effects, Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, repr(error)))
                return
            shard = self._shards[partition]
            try:
                for record in effects.records:
                    _replay(shard, record, producer)
            except Exception as error:  # noqa: BLE001 - `_load_again` logs it
                self._load_again(partition, error)
                return
            self._written[partition] = last_offset
            replica.when_committed(last_offset, partial(self._committed, partition, effects))
        else:
            self._deliver_in_turn(partition, effects)
        self._arm(partition)

    def apply_if_served(self, partition: int, shard: S, effects: Effects) -> None:
        """Apply effects of a shard, unless this broker has given it up or loaded it again in the meantime."""
        if self._shards.get(partition) is shard:
            self.apply(partition, effects)

    def _refuse(self, partition: int, effects: Effects, refusal: Refusal) -> None:
        """Answer with an error instead of the effects' replies."""
        for reply in effects.replies:
            if not reply.token.done():
                reply.token.set_result(refusal)
        self._arm(partition)

    def _deliver_in_turn(self, partition: int, effects: Effects) -> None:
        """Deliver effects without records after all earlier records are committed, because a reply may show them."""
        replica = self._partitions.get(self.topic, partition) if partition in self._written else None
        if replica is None:
            self._deliver(effects)
        else:
            replica.when_committed(self._written[partition], partial(self._committed, partition, effects))

    def _append(
        self,
        replica: Replica,
        records: list[CoordinatorRecord],
        producer: tuple[int, int] | None,
        guard: int | None,
    ) -> int:
        now_ms = self._now_ms()
        rows = [
            Record(
                0,
                now_ms,
                encode_versioned(record.key, record.key_version),
                None if record.value is None else encode_versioned(record.value, record.value_version),
            )
            for record in records
        ]
        producer_id, producer_epoch = producer or (-1, -1)
        batches = bytearray()
        for part in split(rows, replica.log.config.max_message_bytes):
            batches += build_batch(
                part, producer_id=producer_id, producer_epoch=producer_epoch, transactional=producer is not None
            )
        result = replica.append(memoryview(batches), now_ms=now_ms, origin=Origin.COORDINATOR, guard=guard)
        return result.last_offset

    def _committed(self, partition: int, effects: Effects, error: ErrorCode) -> None:
        if error is ErrorCode.NONE:
            self._deliver(effects)
        else:  # the log was deleted or has failed, and this coordinator with it
            message = f"{self._not_coordinator(partition)}: {error.name}"
            self._refuse(partition, effects, Refusal(ErrorCode.NOT_COORDINATOR, message))

    def _not_coordinator(self, partition: int) -> str:
        """Return the message for requests whose coordinator was closed."""
        return f"this broker no longer coordinates {self.topic}-{partition}"

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

    def _arm(self, partition: int) -> None:
        shard = self._shards.get(partition)
        deadline = None if shard is None else shard.deadline()
        armed = self._timers.get(partition)
        if armed is not None:
            if deadline is not None and armed[0] <= deadline:
                return  # it fires early enough, and `_tick` sets the next timer
            armed[1].cancel()
            del self._timers[partition]
        if deadline is not None:
            now_ms = self._steady_ms() if self._steady else self._now_ms()
            delay = max(0, deadline - now_ms) / 1000
            self._timers[partition] = deadline, asyncio.get_running_loop().call_later(delay, self._tick, partition)

    def _tick(self, partition: int) -> None:
        del self._timers[partition]
        shard = self._shards.get(partition)
        if shard is None:
            return
        try:
            effects = shard.tick(self.now())
        except Exception as error:  # noqa: BLE001 - `_load_again` logs it
            self._load_again(partition, error)
            return
        self.apply(partition, effects)

    # -- loading ----------------------------------------------------------------------------------------------------

    def metadata_changed(self, delta: MetadataDelta) -> Callable[[], Awaitable[None]] | None:
        """Return `load` for the caller to run if the topic of the coordinators was created, otherwise None."""
        return self.load if any(topic.name == self.topic for topic in delta.created_topics) else None

    async def load(self) -> None:
        """Load every partition of the topic that this broker leads and that is not loaded yet.

        If a partition cannot be loaded, its requests get NOT_COORDINATOR, and the broker retries after a delay. The
        other partitions are served.
        """
        info = self._cache.image.topic(self.topic)
        for partition in range(info.partition_count if info else 0):
            if partition not in self._retries:
                await self._try_to_load(partition, RETRY_MS)
                await asyncio.sleep(0)

    async def _try_to_load(self, partition: int, retry_ms: int) -> None:
        self._retries.pop(partition, None)
        if partition in self._shards or partition in self._loading:
            return
        self._loading.add(partition)
        try:
            await self._load_partition(partition)
            self._failed.discard(partition)
        except Exception:  # a disk error or an invalid record: the other partitions are served anyway
            self._shards.pop(partition, None)
            self._failed.add(partition)
            self._logger.exception(
                "cannot load the coordinator of %s-%d; retrying in %d s", self.topic, partition, retry_ms // 1000
            )
            self._load_later(partition, retry_ms)
        finally:
            self._loading.discard(partition)

    def _load_later(self, partition: int, retry_ms: int) -> None:
        later = min(2 * retry_ms, RETRY_MAX_MS)

        def try_again() -> None:
            self._workers.spawn(
                self._try_to_load(partition, later), f"load the coordinator of {self.topic}-{partition}"
            )

        self._retries[partition] = asyncio.get_running_loop().call_later(retry_ms / 1000, try_again)

    def _load_again(self, partition: int, error: Exception) -> None:
        """Load a coordinator again from its log, because its `replay` or `tick` has failed."""
        self._logger.error("the coordinator of %s-%d failed; loading it again", self.topic, partition, exc_info=error)
        self.resign(partition)
        self._load_later(partition, RETRY_MS)

    async def _load_partition(self, partition: int) -> None:
        """Rebuild a shard from its partition, then apply the effects that its `loaded` returns.

        The shard reads the log in parts. Other requests have their turn between two parts, and the log may grow.
        """
        await self._partitions.open_in_turns(self.topic, partition)
        replica = self._partitions.get(self.topic, partition)
        if replica is None or not self._partitions.leads(self.topic, partition):
            return
        shard = self._make_shard(partition)
        log = replica.log
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            data = log.read(offset, LOAD_BYTES, upto=log.log_end_offset, at_least_one=True)
            if not data:  # compaction has removed all records up to the end
                break
            for header, view in iter_batches(data):
                await self._replay_batch(shard, header, view)
                offset = header.next_offset
            await asyncio.sleep(0)
            if replica.offline or log.closed:
                raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, f"{log!r} was closed while it was loading")
        self._shards[partition] = shard
        self._written[partition] = log.log_end_offset - 1  # may not be committed yet, and replies wait for it
        self.apply(partition, shard.loaded(self.now()))

    async def _replay_batch(self, shard: S, header: BatchHeader, view: memoryview) -> None:
        """Replay one batch into a shard that does not serve requests yet. The loop serves other requests in between."""
        if header.is_control:
            if header.count:  # an emptied marker needs no replay: compaction has removed its transaction too
                commit, _ = decode_control(view)
                shard.replay_end_transaction(header.producer_id, header.producer_epoch, commit)
            return
        producer = (header.producer_id, header.producer_epoch) if header.is_transactional else None
        turns = Turns()
        for record in decode_records(view):
            await turns.next()
            if record.key is None:
                continue
            decoded = self._decode_record(record.key, record.value)
            if decoded is not None:
                _replay(shard, decoded, producer)

    def resign(self, partition: int) -> None:
        """Give up a partition and answer NOT_COORDINATOR to the requests that wait for its coordinator."""
        self._shards.pop(partition, None)
        self._written.pop(partition, None)
        self._failed.discard(partition)
        retry = self._retries.pop(partition, None)
        if retry is not None:
            retry.cancel()
        self._arm(partition)
        refusal = Refusal(ErrorCode.NOT_COORDINATOR, self._not_coordinator(partition))
        for token in self._waiting.pop(partition, set()).copy():
            if not token.done():
                token.set_result(refusal)

    def close(self) -> None:
        """Stop all timers, and drop the coordinators. Nothing is appended from now on."""
        for _, timer in self._timers.values():
            timer.cancel()
        for retry in self._retries.values():
            retry.cancel()
        self._retries.clear()
        self._timers.clear()
        self._shards.clear()


def split(records: list[Record], max_bytes: int) -> Iterator[list[Record]]:
    """Yield the records in parts that each fit into a batch of `max_bytes`. A larger record is a part of its own.

    All parts are appended in one write. If a crash keeps only the first parts, no client has been answered yet.
    """
    part: list[Record] = []
    size = HEADER_SIZE
    for record in records:
        length = RECORD_OVERHEAD + len(record.key or b"") + len(record.value or b"")
        if part and size + length > max_bytes:
            yield part
            part, size = [], HEADER_SIZE
        part.append(record)
        size += length
    yield part


def _replay(shard: Shard, record: CoordinatorRecord, producer: tuple[int, int] | None) -> None:
    if producer is None:
        shard.replay(record)
    else:
        shard.replay(record, producer_id=producer[0], producer_epoch=producer[1])


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
