"""Fetch: return the log's record batches (KIP-98, 227, 392, 516).

Consumers get the batches up to the high watermark or the last stable offset, from the leader or from a follower.
Followers get them up to the log end offset, and their fetches tell the leader's term which records they have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from itertools import islice
from uuid import UUID

from oncelog.broker.config.dynamic import DynamicConfig
from oncelog.broker.quotas.metering import Meter
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.delayed import MOST_PAUSING, PAUSE_S, WaitingPartitions, wait_for_event
from oncelog.broker.requests.fetch_consumers import reachable_racks, read_for_consumer
from oncelog.broker.requests.fetch_followers import FollowerConnections, read_for_follower
from oncelog.broker.requests.fetch_reads import (
    HIGH_WATERMARK_WAIT_S,
    READ_COMMITTED,
    DelayedFetch,
    PartitionRead,
    follower_of,
    is_enough,
)
from oncelog.broker.requests.fetch_sessions import (
    INITIAL_EPOCH,
    MOST_IN_SESSION,
    FetchContext,
    FetchPosition,
    FetchSessions,
    Key,
    partition_key,
)
from oncelog.broker.requests.operations import CLUSTER
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.broker.storage.partitions import Partitions
from oncelog.broker.turns import ITEMS_A_TURN, by_key, in_turns, listed
from oncelog.cluster.image import MetadataCache
from oncelog.cluster.read_replica import nearest_replica
from oncelog.cluster.replica import Replica
from oncelog.log.steps import at_once
from oncelog.net.unsent import LEAST_AT_ONCE, Unsent
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.kinds import AclOperation, AclResource
from oncelog.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from oncelog.protocol.schema import Message

_WITH_RACKS = 11
"""From this version on, consumers may read from followers."""
_WITH_TOPIC_IDS = 13
_READ, _TOPIC = AclOperation.READ, AclResource.TOPIC
"""Constants, because looking up two enum members for each topic would take longer than the check."""


def _names_many(topics: Sequence[FetchTopic] | Sequence[ForgottenTopic]) -> bool:
    return len(topics) > ITEMS_A_TURN or any(len(topic.partitions) > ITEMS_A_TURN for topic in topics)


def _forgotten(request: FetchRequest) -> Iterator[Key]:
    """Return the forgotten partitions, at most one more than a session may have: more make no difference."""
    keys = (
        partition_key(topic.topic, topic.topic_id, partition)
        for topic in request.forgotten_topics_data
        for partition in topic.partitions
    )
    return islice(keys, MOST_IN_SESSION + 1)


def _response(
    context: FetchContext, reads: list[PartitionRead], *, follower: bool
) -> Generator[None, None, FetchResponse]:
    """Build the response, with a pause after each partition."""
    topics: dict[tuple[str | None, UUID], FetchableTopicResponse] = {}
    for read in reads:
        position = read.position
        high_watermark = log_start_offset = -1
        if read.replica is not None:
            read.replica.traffic.served(len(read.data), failed=bool(read.error), follower=follower)
        if read.replica is not None and not read.error:
            high_watermark, log_start_offset = read.high_watermark, read.log_start_offset
        has_news = bool(read.data) or read.diverging is not None or read.preferred is not None
        named = position.changed(read.error, high_watermark, log_start_offset, has_news)
        if context.incremental and not named:
            yield
            continue
        if read.data:
            context.served(position)
        key = position.topic, position.topic_id
        topic = topics.get(key)
        if topic is None:
            topic = topics[key] = FetchableTopicResponse(
                topic=position.topic or "", topic_id=position.topic_id, partitions=[]
            )
        topic.partitions.append(_partition_data(read))
        yield
    return FetchResponse(session_id=context.session_id, responses=list(topics.values()))


def _partition_data(read: PartitionRead) -> PartitionData:
    if read.error or read.replica is None:
        return PartitionData(
            partition_index=read.position.partition,
            error_code=read.error,
            high_watermark=-1,
            records=b"",
            aborted_transactions=None,
        )
    aborted = read.aborted
    data = PartitionData(
        partition_index=read.position.partition,
        high_watermark=read.high_watermark,
        last_stable_offset=read.last_stable_offset,
        log_start_offset=read.log_start_offset,
        aborted_transactions=(
            None if aborted is None else [AbortedTransaction(producer_id=p, first_offset=f) for p, f in aborted]
        ),
        records=read.data,
    )
    if read.preferred is not None:
        data.preferred_read_replica = read.preferred
    if read.diverging is not None:
        data.diverging_epoch = EpochEndOffset(epoch=read.diverging.epoch, end_offset=read.diverging.end_offset)
    return data


class FetchHandler:
    """The handler of Fetch."""

    def __init__(
        self,
        cache: MetadataCache,
        partitions: Partitions,
        sessions: FetchSessions,
        config: DynamicConfig,
        unsent: Unsent,
        now_ms: Callable[[], int],
    ) -> None:
        self._node_id = config.static.node_id
        self._cache = cache
        self._partitions = partitions
        self._sessions = sessions
        self._config = config
        self._unsent = unsent
        self._now_ms = now_ms
        self._waiting = WaitingPartitions()
        self._followers_waiting = WaitingPartitions()
        """Clients must not take the place of followers, on which the other clients depend."""
        self._pausing = WaitingPartitions(MOST_PAUSING)
        self._connected = FollowerConnections()

    def __call__(self, request: FetchRequest, ctx: RequestContext) -> FetchResponse | Awaitable[FetchResponse]:
        """Wait up to `max_wait_ms` for `min_bytes` of records. If a partition has an error, answer at once."""
        if ctx.meter is not None:
            self._limit(request, ctx, ctx.meter)
        if follower_of(request) is None:
            ctx.session.fetches(ctx.client_id, request.isolation_level)
        if _names_many(request.topics) or _names_many(request.forgotten_topics_data):
            return self._handle_many(request, ctx)
        positions = list(self._positions(request, ctx.api_version))
        if len(positions) > 1 and request.session_epoch <= INITIAL_EPOCH:  # the others update a session
            positions = list({(p.topic, p.topic_id.int, p.partition): p for p in positions}.values())
        context = self._begin(request, ctx, positions, list(_forgotten(request)))
        if context.error is not ErrorCode.NONE:
            return FetchResponse(error_code=context.error)
        if len(context.positions) > ITEMS_A_TURN:
            return self._in_turns(request, ctx, context)
        reads = at_once(self._read_all(request, ctx, context))
        place = self._place(request, context, reads)
        if place is None:
            return at_once(self._answer(request, ctx, context, reads))
        return self._wait_then_read(
            request, ctx, context, place, DelayedFetch(request, reads, in_session=context.session is not None)
        )

    async def _handle_many(self, request: FetchRequest, ctx: RequestContext) -> FetchResponse:
        """Answer a request that names many partitions, and let the loop serve other requests in between."""
        positions = await listed(self._positions(request, ctx.api_version))
        positions = list((await by_key(positions, lambda each: each.key)).values())
        context = self._begin(request, ctx, positions, await listed(_forgotten(request)))
        if context.error is not ErrorCode.NONE:
            return FetchResponse(error_code=context.error)
        return await self._in_turns(request, ctx, context)

    def _limit(self, request: FetchRequest, ctx: RequestContext, meter: Meter) -> None:
        """Let a consumer fetch at most what its quota admits at once. Exempt a follower."""
        if follower_of(request) is not None and ctx.may(AclOperation.CLUSTER_ACTION, *CLUSTER):
            meter.exempt()
            return
        most = meter.most_fetched
        if most is not None:
            request.max_bytes = min(request.max_bytes, most)
            request.min_bytes = min(request.min_bytes, request.max_bytes)

    def _answer(
        self, request: FetchRequest, ctx: RequestContext, context: FetchContext, reads: list[PartitionRead]
    ) -> Generator[None, None, FetchResponse]:
        """Build the response. It is empty if the client must pause first (KIP-219)."""
        if ctx.meter is None or ctx.meter.admit_fetched(sum(len(read.data) for read in reads)):
            return (yield from _response(context, reads, follower=follower_of(request) is not None))
        self._unsent.drop_draft(ctx.session)
        if not context.incremental:
            self._sessions.end(context.session_id)  # the client does not know its partitions
            return FetchResponse()
        return FetchResponse(session_id=context.session_id)

    def _begin(
        self,
        request: FetchRequest,
        ctx: RequestContext,
        positions: list[FetchPosition],
        forgotten: list[Key],
    ) -> FetchContext:
        return self._sessions.begin(
            request.session_id,
            request.session_epoch,
            positions,
            forgotten,
            uses_topic_ids=ctx.api_version >= _WITH_TOPIC_IDS,
            now_ms=self._now_ms(),
            privileged=follower_of(request) is not None and ctx.may(AclOperation.CLUSTER_ACTION, *CLUSTER),
        )

    async def _in_turns(self, request: FetchRequest, ctx: RequestContext, context: FetchContext) -> FetchResponse:
        """Answer a request for many partitions, and let the loop serve other requests in between."""
        reads = await in_turns(self._read_all(request, ctx, context))
        place = self._place(request, context, reads)
        if place is None:
            return await in_turns(self._answer(request, ctx, context, reads))
        missing = DelayedFetch(request, reads, in_session=context.session is not None)
        del reads  # the wait may be long
        return await self._wait_then_read(request, ctx, context, place, missing)

    def _place(
        self, request: FetchRequest, context: FetchContext, reads: list[PartitionRead]
    ) -> WaitingPartitions | None:
        """Return where a Fetch waits for records or pauses, or None if it must be answered now."""
        partitions = len(context.positions)
        if request.max_wait_ms <= 0 or not partitions or is_enough(reads, request.min_bytes):
            return None
        is_follower = follower_of(request) is not None
        waiting = self._followers_waiting if is_follower else self._waiting
        if (is_follower or partitions <= MOST_IN_SESSION) and waiting.admits(partitions):
            return waiting
        return self._pausing if self._pausing.admits(partitions) else None

    def _positions(self, request: FetchRequest, version: int) -> Iterator[FetchPosition]:
        for topic in request.topics:
            name = topic.topic if version < _WITH_TOPIC_IDS else self._name_of(topic.topic_id)
            for asked in topic.partitions:
                yield FetchPosition(
                    name,
                    topic.topic_id,
                    asked.partition,
                    asked.fetch_offset,
                    asked.partition_max_bytes,
                    asked.current_leader_epoch,
                    asked.last_fetched_epoch,
                    asked.log_start_offset,
                )

    def _name_of(self, topic_id: UUID) -> str | None:
        info = self._cache.image.topic_by_id(topic_id)
        return info.name if info else None

    def _read_all(
        self, request: FetchRequest, ctx: RequestContext, context: FetchContext, *, again: bool = False
    ) -> Generator[None, None, list[PartitionRead]]:
        """Read each partition as far as the memory limit for unread responses allows, with a pause after each.

        With `again`, the request has been read before, and says nothing new about a follower's log.
        """
        follower = follower_of(request)
        read_committed = request.isolation_level == READ_COMMITTED
        may_follow = follower is not None and ctx.allowed(AclOperation.CLUSTER_ACTION, *CLUSTER)
        if follower is not None and may_follow and not again and follower[0] in self._cache.image.brokers:
            self._connected.add(follower[0], ctx.session)
        left = min(request.max_bytes, self._config.current.fetch_max_bytes)
        unsent = self._unsent
        unsent.drop_draft(ctx.session)
        own = 0
        first = True
        reads = []
        readable: set[str] = set()
        any_replica = ctx.api_version >= _WITH_RACKS
        racks: Mapping[int, str | None] = {}
        if request.rack_id and self._config.static.replica_selector_class:
            racks = reachable_racks(self._cache.image, self._node_id, self._connected, ctx.session.listener.name)
        for position in context.positions:
            read = PartitionRead(position)
            available = unsent.available(own)
            limit = min(left, max(available, LEAST_AT_ONCE)) if available > 0 else 0
            try:
                name = position.topic or self._topic_of(position)
                if follower is not None:
                    if not may_follow:
                        raise ProtocolError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "a follower needs CLUSTER_ACTION")
                    replica = self._find(name, position)
                    most = min(limit, self._config.static.replica_fetch_max_bytes)
                    read_for_follower(read, replica, most, *follower, at_least_one=first, again=again)
                    if not again and read.diverging is None and follower[0] not in replica.leading().isr:
                        self._partitions.roles.isr_change_due(replica)
                else:
                    if name not in readable:
                        ctx.authorize(_READ, _TOPIC, name)
                        readable.add(name)
                    replica = self._find(name, position, any_replica=any_replica)
                    replica.check_leader_epoch(position.current_leader_epoch)
                    if racks and replica.term is not None:
                        read.preferred = nearest_replica(replica.term, position.fetch_offset, request.rack_id, racks)
                    read_for_consumer(read, replica, limit, read_committed, at_least_one=first)
                read.note_offsets()
            except ProtocolError as error:
                read.error = error.code
            if read.data:
                first = False
                left -= len(read.data)
                if taken := unsent.taken_by(read.data, ctx.session):
                    own += taken
                    unsent.draft(ctx.session, taken)
            elif available <= 0 < left and read.replica is not None:
                read.held_back = read.position.fetch_offset < read.end
            reads.append(read)
            yield
        return reads

    def _topic_of(self, position: FetchPosition) -> str:
        """Return the name of a partition's topic. Raises UNKNOWN_TOPIC_ID."""
        name = position.topic
        if name is None:  # the topic did not exist when the session began to read it
            name = position.topic = self._name_of(position.topic_id)
        if name is None:
            raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {position.topic_id}")
        return name

    def _find(self, topic: str, position: FetchPosition, *, any_replica: bool = False) -> Replica:
        """Return the replica that leads the partition, or with `any_replica` one that follows."""
        find = self._partitions.require_any if any_replica else self._partitions.require
        replica = find(topic, position.partition)
        if position.topic_id.int not in (0, replica.topic_id.int):
            raise ProtocolError(ErrorCode.INCONSISTENT_TOPIC_ID, f"topic {topic!r} was created again with another id")
        return replica

    async def _wait_then_read(
        self,
        request: FetchRequest,
        ctx: RequestContext,
        context: FetchContext,
        place: WaitingPartitions,
        missing: DelayedFetch,
    ) -> FetchResponse:
        self._unsent.drop_draft(ctx.session)
        if ctx.on_wait is not None:
            named: list[Message | None] = [
                FetchRequest(topics=request.topics, forgotten_topics_data=request.forgotten_topics_data)
            ]
            request.topics, request.forgotten_topics_data = [], []  # the context has the partitions
            ctx.on_wait(named)
        partitions = len(context.positions)
        place.count += partitions
        try:
            if place is not self._pausing:
                return await self._wait(request, ctx, context, missing)
            await asyncio.sleep(min(PAUSE_S, request.max_wait_ms / 1000))
        finally:
            place.count -= partitions
        return await self._read_and_answer(request, ctx, context)

    async def _wait(
        self, request: FetchRequest, ctx: RequestContext, context: FetchContext, missing: DelayedFetch
    ) -> FetchResponse:
        # Not the wall clock: if it is set back, the response would be late.
        now_s = asyncio.get_running_loop().time
        deadline_s = now_s() + request.max_wait_ms / 1000
        is_shortened = False
        # While records stream in, `can_complete` may always be true, so the time is checked first.
        while (left_ms := int((deadline_s - now_s()) * 1000)) > 0 and await wait_for_event(
            missing.can_complete, missing.replicas, left_ms, ctx.session
        ):
            if missing.has_new_high_watermark and not is_shortened:
                is_shortened = True
                deadline_s = min(deadline_s, now_s() + HIGH_WATERMARK_WAIT_S)
                continue
            reads = await in_turns(self._read_all(request, ctx, context, again=True))
            if is_enough(reads, request.min_bytes):
                return await in_turns(self._answer(request, ctx, context, reads))
            missing.read_again(reads)
            del reads
            self._unsent.drop_draft(ctx.session)
        return await self._read_and_answer(request, ctx, context)

    async def _read_and_answer(
        self, request: FetchRequest, ctx: RequestContext, context: FetchContext
    ) -> FetchResponse:
        reads = await in_turns(self._read_all(request, ctx, context, again=True))
        return await in_turns(self._answer(request, ctx, context, reads))


def bind(services: HandlerServices) -> Handler:
    """Return the handler of Fetch."""
    return FetchHandler(
        services.cache,
        services.partitions,
        services.fetch_sessions,
        services.config,
        services.unsent,
        services.runtime.now_ms,
    )
