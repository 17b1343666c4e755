"""Answer the requests for groups with the coordinators of this broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from copy import copy
from functools import partial
from typing import Any, Protocol

from oncelog.broker.config.dynamic import DynamicConfig
from oncelog.broker.coordinators.deleted_topics import DeletedTopics, Deletion
from oncelog.broker.coordinators.request_parts import ITEMS_A_PART, joined, parts_of
from oncelog.broker.coordinators.shell import APPEND_ERRORS, CoordinatorShell
from oncelog.broker.coordinators.topics import matching_topics
from oncelog.broker.storage.partitions import Partitions
from oncelog.broker.turns import Yielder, counted
from oncelog.broker.workers import Workers
from oncelog.cluster.features import GROUP_VERSION
from oncelog.cluster.image import MetadataCache, MetadataDelta
from oncelog.coordinator.effects import Effects
from oncelog.coordinator.groups.classic.queries import unknown
from oncelog.coordinator.groups.coordinator import GroupCoordinator
from oncelog.coordinator.timers import Now
from oncelog.net.session import Session
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages import consumer_group_describe
from oncelog.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from oncelog.protocol.messages.delete_groups import DeletableGroupResult
from oncelog.protocol.messages.describe_groups import DescribedGroup
from oncelog.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from oncelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from oncelog.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from oncelog.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from oncelog.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from oncelog.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchResponseGroup
from oncelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from oncelog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from oncelog.protocol.records import NO_SEQUENCE
from oncelog.protocol.topics import CONSUMER_OFFSETS, TopicPartition

_IMPLICIT_ADD_SINCE = 5
"""From this version of TxnOffsetCommit on, the request itself adds the partition to the transaction (KIP-890)."""
_ABORTABLE_SINCE = 4

# Maps the error of an append to the error that a group's members get (`CoordinatorOperationExceptionHelper`).
_OPERATION_ERRORS = APPEND_ERRORS | {
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


class TransactionVerifier(Protocol):
    """The part of the transaction coordinators that commits of offsets need."""

    async def confirm(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[TopicPartition],
        *,
        implicit: bool,
    ) -> dict[TopicPartition, ErrorCode]:
        """See `TransactionService.confirm`."""
        raise NotImplementedError


class GroupService:
    """Answer the handlers' requests for groups.

    Responses carry their errors. Only the methods that commit, fetch or delete offsets raise ProtocolError, if an error
    applies to all partitions of the request.
    """

    def __init__(
        self,
        shell: CoordinatorShell[GroupCoordinator],
        config: DynamicConfig,
        cache: MetadataCache,
        partitions: Partitions,
        verifier: TransactionVerifier,
        deleted_topics: DeletedTopics,
        workers: Workers,
    ) -> None:
        self.shell = shell
        self._config = config
        self._cache = cache
        self._partitions = partitions
        self._verifier = verifier
        self._deleted_topics = deleted_topics
        self._workers = workers
        self._matching = asyncio.Lock()
        """One group at a time matches its regular expressions: each match takes a part of every turn of the loop."""

    def metadata_changed(self, delta: MetadataDelta) -> Callable[[], Awaitable[None]] | None:
        """Follow the leaders of the coordinators' topic, and delete the offsets of deleted topics.

        This method begins all deletions before it returns: see `DeletedTopics.begin`. Loaded coordinators get the names
        of changed topics.
        """
        load = self.shell.terms.metadata_changed(delta)
        deletions = self._deleted_topics.begin(delta.deleted_topics)
        topics = _changed_topics(delta)
        if topics:
            self.shell.apply_to_all(lambda shard: shard.topics_changed(topics, self.shell.now()))
        return partial(self._apply, deletions, load) if deletions else load

    async def _apply(self, deletions: list[Deletion], load: Callable[[], Awaitable[None]] | None) -> None:
        await self._deleted_topics.delete(deletions)
        if load is not None:
            await load()

    # -- membership -------------------------------------------------------------------------------------------------

    async def join_group(
        self, request: JoinGroupRequest, version: int, client_id: str, session: Session
    ) -> JoinGroupResponse | None:
        """Answer JoinGroup after the other members have joined. Return None if the client disconnects before."""
        try:
            coordinator_partition = self._coordinator_partition(request.group_id)
            response: JoinGroupResponse | None = await self.shell.request(
                coordinator_partition,
                lambda shard, token: shard.classic_protocol(request.group_id).join(
                    request, version, client_id, f"/{session.host}", token, self.shell.now()
                ),
                session=session,
            )
        except ProtocolError as error:
            return JoinGroupResponse(error_code=operation_error(error), member_id=request.member_id, protocol_name=None)
        return response

    async def sync_group(self, request: SyncGroupRequest, session: Session) -> SyncGroupResponse | None:
        """Answer SyncGroup after the leader has sent its SyncGroup. Return None if the client disconnects before."""
        try:
            coordinator_partition = self._coordinator_partition(request.group_id)
            response: SyncGroupResponse | None = await self.shell.request(
                coordinator_partition,
                lambda shard, token: shard.classic_protocol(request.group_id).sync(request, token, self.shell.now()),
                session=session,
            )
        except ProtocolError as error:
            return SyncGroupResponse(error_code=operation_error(error))
        return response

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResponse:
        """Answer Heartbeat. While the coordinator is loading, the response has no error."""
        try:
            partition = self._coordinator_partition(request.group_id)
            shard = self.shell.terms.shard(partition)
        except ProtocolError as error:
            loading = error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return HeartbeatResponse(error_code=ErrorCode.NONE if loading else operation_error(error))
        response = shard.classic_protocol(request.group_id).heartbeat(request, self.shell.now())
        self.shell.apply(partition, Effects())  # it may have set an earlier deadline
        return response

    async def leave_group(self, request: LeaveGroupRequest, version: int) -> LeaveGroupResponse:
        """Answer LeaveGroup for one member or several. Many members leave in parts."""
        answers: list[LeaveGroupResponse] = []
        try:
            coordinator_partition = self._coordinator_partition(request.group_id)
            for first in range(0, len(request.members) or 1, ITEMS_A_PART):
                if answers:
                    await asyncio.sleep(0)
                part = copy(request)
                part.members = request.members[first : first + ITEMS_A_PART]
                answers.append(
                    await self.shell.request(coordinator_partition, partial(_leave, part, version, self.shell.now))
                )
        except ProtocolError as error:
            return LeaveGroupResponse(error_code=operation_error(error))
        for answer in answers[1:]:
            answers[0].members += answer.members
        return answers[0]

    @property
    def consumer_protocol_enabled(self) -> bool:
        """Return whether the settings of this broker and the cluster's `group.version` allow the consumer protocol."""
        level = self._cache.image.feature_level(GROUP_VERSION)
        return level > 0 and self._config.static.consumer_protocol_enabled

    async def consumer_heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        version: int,
        client_id: str,
        session: Session,
        may_describe: Callable[[str], bool],
    ) -> ConsumerGroupHeartbeatResponse:
        """Answer ConsumerGroupHeartbeat.

        If it is time, this also starts to match the group's regular expressions with all topics that the client may
        describe. The members get these topics with their next heartbeats.
        """
        try:
            partition = self.shell.partition_for(request.group_id)
            response: ConsumerGroupHeartbeatResponse = await self.shell.request(
                partition,
                lambda shard, token: shard.consumer.heartbeat(
                    request, version, client_id, f"/{session.host}", token, self.shell.now()
                ),
            )
            shard = self.shell.terms.shard(partition)
        except ProtocolError as error:
            return ConsumerGroupHeartbeatResponse(error_code=operation_error(error), error_message=str(error))
        patterns = shard.consumer.matches.begin(request.group_id, self.shell.now())
        if patterns:
            match = self._match_topics(partition, shard, request.group_id, patterns, may_describe)
            self._workers.spawn(match, f"match the topics of group {request.group_id!r}")
        return response

    async def _match_topics(
        self,
        partition: int,
        shard: GroupCoordinator,
        group_id: str,
        patterns: Iterable[str],
        may_describe: Callable[[str], bool],
    ) -> None:
        matches, found = shard.consumer.matches, None
        try:
            async with self._matching:
                matched = {}
                for pattern in patterns:
                    names = matched[pattern] = await matching_topics(pattern, self._cache.image, may_describe)
                    effects = matches.found(group_id, pattern, names, self.shell.now())
                    self.shell.apply_if_served(partition, shard, effects)
                    await asyncio.sleep(0)
                found = matched
        finally:
            matches.end(group_id, found, self.shell.now())

    # -- offsets ----------------------------------------------------------------------------------------------------

    async def commit_offsets(
        self,
        request: OffsetCommitRequest,
        version: int,
        existing: Callable[[list[OffsetCommitRequestTopic]], list[OffsetCommitRequestTopic]],
    ) -> OffsetCommitResponse:
        """Commit offsets of existing topics, given with their names and ids. An empty group id is valid.

        The broker writes many offsets in parts, and serves other requests in between. If one part fails, the response
        carries its error, although the parts before it are committed: the client commits all offsets again.
        Before each part, `existing(topics)` returns the part's topics that still exist. The caller answers the others.
        """
        coordinator_partition = self.shell.partition_for(request.group_id)
        answers: list[OffsetCommitResponse] = []
        for part in parts_of(request, "topics", "partitions"):
            if answers:
                await asyncio.sleep(0)
            part.topics = existing(part.topics)
            response: OffsetCommitResponse = await self.shell.request(
                coordinator_partition, partial(_commit, part, version, self.shell.now)
            )
            answers.append(response)
        return joined(answers, "topics", "partitions")

    async def commit_transactional_offsets(
        self,
        request: TxnOffsetCommitRequest,
        version: int,
        existing: Callable[[list[TxnOffsetCommitRequestTopic]], list[TxnOffsetCommitRequestTopic]],
    ) -> TxnOffsetCommitResponse:
        """Commit offsets of existing topics in a transaction, after its coordinator has confirmed the transaction.

        The broker writes many offsets in parts. `existing` has the same meaning as in `commit_offsets`.
        """
        coordinator_partition = self._coordinator_partition(request.group_id)
        self.shell.terms.shard(coordinator_partition)  # raise the error before the transaction is verified
        producer = request.producer_id, request.producer_epoch
        answers: list[TxnOffsetCommitResponse] = []
        for part in parts_of(request, "topics", "partitions"):
            if answers:
                await asyncio.sleep(0)
            guard = await self._verify(coordinator_partition, request.transactional_id, producer, version)
            part.topics = existing(part.topics)
            response: TxnOffsetCommitResponse = await self.shell.request(
                coordinator_partition,
                partial(_commit_transactional, part, self.shell.now),
                producer=producer,
                guard=guard,
            )
            answers.append(response)
        return joined(answers, "topics", "partitions")

    async def _verify(
        self, coordinator_partition: int, transactional_id: str, producer: tuple[int, int], version: int
    ) -> int | None:
        """Return the guard of the append. A marker that arrives during the verification invalidates it."""
        replica = self._partitions.get(CONSUMER_OFFSETS, coordinator_partition)
        if replica is None:
            message = f"this broker no longer coordinates {CONSUMER_OFFSETS}-{coordinator_partition}"
            raise ProtocolError(ErrorCode.NOT_COORDINATOR, message)
        implicit = version >= _IMPLICIT_ADD_SINCE
        if not implicit and not self._config.current.transaction_partition_verification_enable:
            return None
        guard = replica.log.start_verification(
            *producer, NO_SEQUENCE, transaction_version=2 if implicit else 1, now_ms=self.shell.now().wall_ms
        )
        if guard is None:
            return None
        partition = CONSUMER_OFFSETS, coordinator_partition
        results = await self._verifier.confirm(transactional_id, *producer, [partition], implicit=implicit)
        code = results[partition]
        if code is ErrorCode.TRANSACTION_ABORTABLE and version < _ABORTABLE_SINCE:
            code = ErrorCode.INVALID_TXN_STATE
        if code is not ErrorCode.NONE:
            raise ProtocolError(code, f"transactional id {transactional_id!r}, producer {producer}: {code.text}")
        return guard

    async def fetch_offsets(self, request: OffsetFetchRequestGroup, require_stable: bool) -> OffsetFetchResponseGroup:
        """Return the committed offsets of one group, with topics by name. An empty group id is valid.

        If `request.topics` is None, return all offsets of the group.
        """
        coordinator_partition = self.shell.partition_for(request.group_id)
        if request.topics is None:
            request = copy(request)
            request.topics = await self.shell.read(
                coordinator_partition, lambda shard: shard.offsets.topics(request.group_id)
            )
        answers: list[OffsetFetchResponseGroup] = []
        for part in parts_of(request, "topics", "partition_indexes"):
            if answers:
                await asyncio.sleep(0)
            answers.append(await self.shell.read(coordinator_partition, partial(_fetch, part, require_stable)))
        return joined(answers, "topics", "partitions")

    async def delete_offsets(self, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
        """Delete offsets of existing partitions, in parts like `commit_offsets`. Raises the group's error.

        If the group gets an error between two parts, the offsets of the parts before it are deleted.
        """
        coordinator_partition = self._coordinator_partition(request.group_id)
        answers: list[OffsetDeleteResponse] = []
        for part in parts_of(request, "topics", "partitions"):
            if answers:
                await asyncio.sleep(0)
            answers.append(await self.shell.request(coordinator_partition, partial(_delete_offsets, part)))
        return joined(answers, "topics", "partitions")

    async def delete_groups(self, group_ids: Iterable[str]) -> list[DeletableGroupResult]:
        """Delete groups without members, and their offsets. Errors are in the results. The empty group id is valid.

        The broker deletes a group's offsets in parts first. If a member joins in between, the group stays, with
        NON_EMPTY_GROUP, and without those offsets.
        """
        by_partition: dict[int, list[str]] = {}
        results: list[DeletableGroupResult] = []
        yielder = Yielder()
        for group_id in group_ids:
            await yielder.next()
            try:
                by_partition.setdefault(self.shell.partition_for(group_id), []).append(group_id)
            except ProtocolError as error:
                results.append(DeletableGroupResult(group_id=group_id, error_code=operation_error(error)))
        for coordinator_partition, names in by_partition.items():
            part: list[str] = []
            left = ITEMS_A_PART
            for group_id in names:
                items = 1 + await self._delete_most_offsets(coordinator_partition, group_id)
                if part and items > left:
                    results += await self._delete_at(coordinator_partition, part)
                    await asyncio.sleep(0)
                    part, left = [], ITEMS_A_PART
                part.append(group_id)
                left -= items
            results += await self._delete_at(coordinator_partition, part)
            await asyncio.sleep(0)
        return results

    async def _delete_most_offsets(self, coordinator_partition: int, group_id: str) -> int:
        """Delete offsets of an empty group in parts, until one part is left. Return the number of offsets in it."""
        with suppress(ProtocolError):  # the deletion of the group reports it
            while True:
                left: int = await self.shell.request(
                    coordinator_partition, lambda shard, token: shard.delete_some_offsets(group_id, ITEMS_A_PART, token)
                )
                if left <= ITEMS_A_PART:
                    return left
                await asyncio.sleep(0)
        return 0

    async def _delete_at(self, coordinator_partition: int, group_ids: list[str]) -> list[DeletableGroupResult]:
        try:
            results: list[DeletableGroupResult] = await self.shell.request(
                coordinator_partition, lambda shard, token: shard.delete_groups(group_ids, token)
            )
        except ProtocolError as error:
            code = operation_error(error)
            return [DeletableGroupResult(group_id=group_id, error_code=code) for group_id in group_ids]
        return results

    # -- queries ----------------------------------------------------------------------------------------------------

    async def list_groups(self, request: ListGroupsRequest) -> ListGroupsResponse:
        """List the groups of this broker's coordinators.

        Until all coordinators are loaded, the response has the error COORDINATOR_LOAD_IN_PROGRESS.
        """
        try:
            self.shell.terms.check_loaded()
        except ProtocolError as error:
            return ListGroupsResponse(error_code=error.code)
        states = await counted(name.strip().lower() for name in request.states_filter)
        kinds = await counted(name.strip().lower() for name in request.types_filter)
        groups = []
        for _, shard in tuple(self.shell.terms.shards()):
            groups += shard.list_groups(states, kinds)
            await asyncio.sleep(0)
        return ListGroupsResponse(groups=groups)

    def describe_group(self, group_id: str, version: int) -> DescribedGroup:
        """Return the description of one group, or its error. An empty group id is valid."""
        if self._cache.image.topic(CONSUMER_OFFSETS) is None:
            return unknown(group_id, version)
        try:
            shard = self.shell.terms.shard(self.shell.partition_for(group_id))
        except ProtocolError as error:
            return DescribedGroup(group_id=group_id, error_code=operation_error(error))
        return shard.classic.describe(group_id, version)

    def describe_consumer_group(self, group_id: str) -> consumer_group_describe.DescribedGroup:
        """Return the description of one consumer group, or its error."""
        try:
            shard = self.shell.terms.shard(self._coordinator_partition(group_id))
        except ProtocolError as error:
            return consumer_group_describe.DescribedGroup(group_id=group_id, error_code=operation_error(error))
        return shard.consumer.describe(group_id)

    def _coordinator_partition(self, group_id: str) -> int:
        if not group_id:
            raise ProtocolError(ErrorCode.INVALID_GROUP_ID, "the group id must not be empty")
        return self.shell.partition_for(group_id)


def _changed_topics(delta: MetadataDelta) -> frozenset[str]:
    """Return the topics that were created or deleted, or that have more partitions than before."""
    before = delta.before.topics_by_name
    grown = (topic for topic in delta.changed_topics if topic.partition_count > before[topic.name].partition_count)
    return frozenset(topic.name for topic in (*delta.created_topics, *delta.deleted_topics, *grown))


def _leave(
    part: LeaveGroupRequest, version: int, now: Callable[[], Now], shard: GroupCoordinator, token: Any
) -> Effects:
    return shard.classic_protocol(part.group_id).leave(part, version, token, now())


def _commit(
    part: OffsetCommitRequest, version: int, now: Callable[[], Now], shard: GroupCoordinator, token: Any
) -> Effects:
    return shard.commit_offsets(part, version, token, now())


def _commit_transactional(
    part: TxnOffsetCommitRequest, now: Callable[[], Now], shard: GroupCoordinator, token: Any
) -> Effects:
    return shard.commit_transactional_offsets(part, token, now())


def _delete_offsets(part: OffsetDeleteRequest, shard: GroupCoordinator, token: Any) -> Effects:
    return shard.delete_offsets(part, token)


def _fetch(part: OffsetFetchRequestGroup, require_stable: bool, shard: GroupCoordinator) -> OffsetFetchResponseGroup:
    return shard.fetch_offsets(part, require_stable)


def operation_error(error: ProtocolError) -> ErrorCode:
    """Return the error that the members of a group get for an error of the shell or the log."""
    code: ErrorCode = error.code
    return _OPERATION_ERRORS.get(code, code)
