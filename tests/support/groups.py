"""Members of a classic group at the protocol level: the requests of a consumer's client, one at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from oncelog.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from oncelog.protocol.messages.delete_groups import DeleteGroupsRequest
from oncelog.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsRequest
from oncelog.protocol.messages.heartbeat import HeartbeatRequest
from oncelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from oncelog.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from oncelog.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from oncelog.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from oncelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from oncelog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from oncelog.protocol.schema import NO_UUID, encode_versioned
from support.wire import Session, Wire, code, retried, until

SESSION_MS = 30_000
SHORT_REBALANCE_MS = 3_000
"""For a test that waits for the timeout. Members have sent SyncGroup long before."""
MEMBER_ID_REQUIRED = code("MEMBER_ID_REQUIRED")
NEW_JOIN = 9
"""From this version of JoinGroup on, a static leader must skip the assignment (KIP-814)."""
BY_NAME = 9
"""The last version of OffsetFetch and OffsetCommit that names topics."""


def subscription(*topics: str, owned: bytes | None = None) -> bytes:
    """Return a consumer's metadata in the assignors' format."""
    return encode_versioned(ConsumerProtocolSubscription(topics=list(topics), user_data=owned), 1)


def join_request(group: str, member_id: str = "", **options: Any) -> JoinGroupRequest:
    """Return a JoinGroup with `protocols` ({name: metadata}) and other fields of the request."""
    protocols = options.pop("protocols", {"range": subscription("t")})
    fields = {"session_timeout_ms": SESSION_MS, "rebalance_timeout_ms": SESSION_MS, "protocol_type": "consumer"}
    return JoinGroupRequest(
        group_id=group,
        member_id=member_id,
        protocols=[JoinGroupRequestProtocol(name=name, metadata=data) for name, data in protocols.items()],
        **{**fields, **options},
    )


class Member:
    """A member on its own connection, because a join may wait for the other members."""

    def __init__(self, bootstrap: str, group: str, **options: Any) -> None:
        """Connect. `options` are those of `join_request`."""
        self.wire = Wire(bootstrap, client_id="member")
        self.group = group
        self.options = options
        self.member_id = ""
        self.generation = -1
        self.joined: Any = None
        self._waiting: list[tuple[Any, int]] = []

    @property
    def instance(self) -> str | None:
        instance: str | None = self.options.get("group_instance_id")
        return instance

    @property
    def identity(self) -> dict[str, Any]:
        return {
            "group_id": self.group,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
            "generation_id": self.generation,
        }

    def close(self) -> None:
        """Close the connection without leaving the group."""
        self.wire.close()

    # -- join ---

    def ask_to_join(self, **changed: Any) -> None:
        """Send JoinGroup with a member id (request one if necessary), and do not wait."""
        self.options |= changed
        if not self.member_id and self.instance is None:
            self.wire.find_coordinator(self.group, 0)
            answer = retried(lambda: self.wire.call(join_request(self.group, **self.options)))
            assert answer.error_code == MEMBER_ID_REQUIRED, answer
            self.member_id = answer.member_id
        request = join_request(self.group, self.member_id, **self.options)
        self._waiting.append((request, self.wire.send(request)))

    def take(self) -> Any:
        """Return the response to the pending request."""
        request, version = self._waiting.pop(0)
        answer = self.wire.receive(request, version)
        if isinstance(request, JoinGroupRequest) and not answer.error_code:
            self.member_id, self.generation, self.joined = answer.member_id, answer.generation_id, answer
        return answer

    def join(self, **changed: Any) -> Any:
        self.ask_to_join(**changed)
        return self.take()

    def join_first(self) -> int:
        """Join a group without members, with a new member id, and return the error code.

        UNKNOWN_MEMBER_ID if the group was removed between the two requests: a group without members and offsets is
        deleted although a member id was assigned (every `offsets.retention.check.interval.ms`).
        """
        self.member_id = ""
        error: int = self.join().error_code
        return error

    @property
    def leads(self) -> bool:
        return bool(self.joined.leader == self.member_id)

    # -- sync ---

    def ask_to_sync(self, assignments: Mapping[str, bytes] | None = None, **changed: Any) -> None:
        fields = {"protocol_type": self.joined.protocol_type, "protocol_name": self.joined.protocol_name}
        request = SyncGroupRequest(
            **{**self.identity, **fields, **changed},
            assignments=[
                SyncGroupRequestAssignment(member_id=name, assignment=data)
                for name, data in (assignments or {}).items()
            ],
        )
        self._waiting.append((request, self.wire.send(request)))

    def sync(self, assignments: Mapping[str, bytes] | None = None, **changed: Any) -> Any:
        self.ask_to_sync(assignments, **changed)
        return self.take()

    # -- heartbeat and leave ---

    def heartbeat(self, **changed: Any) -> int:
        error: int = retried(lambda: self.wire.call(HeartbeatRequest(**{**self.identity, **changed}))).error_code
        return error

    def leave(self, reason: str | None = None) -> Any:
        member = MemberIdentity(member_id=self.member_id, group_instance_id=self.instance, reason=reason)
        return self.wire.call(LeaveGroupRequest(group_id=self.group, members=[member]))

    def commit(self, topic: str, offset: int, **changed: Any) -> int:
        identity = {**self.identity, "generation_id_or_member_epoch": self.generation}
        del identity["generation_id"]
        return commit(self.wire, topic, {0: offset}, **{**identity, **changed})[0]


def rebalance(members: Iterable[Member], **changed: Any) -> list[Member]:
    """Let all members join, and assign each its own member id. The leader comes first."""
    members = list(members)
    for member in members:
        member.ask_to_join(**changed)
    for member in members:
        assert not member.take().error_code
    members.sort(key=lambda member: not member.leads)
    finish(members)
    return members


def make_impatient(members: Iterable[Member]) -> list[Member]:
    """Give a stable group a short rebalance timeout. The leader comes first.

    If it were short from the beginning, a slow machine would exceed it while the members join.
    """
    return rebalance(members, rebalance_timeout_ms=SHORT_REBALANCE_MS, protocols={"range": subscription("short")})


def finish(members: list[Member]) -> None:
    """Give the joined members their assignments. The leader is first."""
    leader, *others = members
    answer = leader.sync({member.member_id: member.member_id.encode() for member in members})
    assert not answer.error_code, answer
    for member in others:
        assert member.sync().assignment == member.member_id.encode()


def stable(bootstrap: str, group: str, count: int = 1, **options: Any) -> list[Member]:
    """Create a group with so many members, each assigned its own id. The leader comes first."""
    members = [Member(bootstrap, group, **options) for _ in range(count)]
    members[0].wire.find_coordinator(group, 0)
    found: list[Member] = []
    for member in members:
        if not found:
            error = until(member.join_first, lambda error: error != code("UNKNOWN_MEMBER_ID"), "the first member joins")
            assert not error
            found.append(member)
            finish(found)
            continue
        member.ask_to_join()
        for known in found:
            until(known.heartbeat, lambda error: error == code("REBALANCE_IN_PROGRESS"), "the member must rejoin")
            known.ask_to_join()
        found.append(member)
        for each in found:
            assert not each.take().error_code
        found.sort(key=lambda each: not each.leads)
        finish(found)
    return found


def rejoin_as_static(member: Member, wire: Wire, version: int = NEW_JOIN, **options: Any) -> Any:
    """Join as the next process of a static member, which knows only its instance id."""
    request = join_request(member.group, group_instance_id=member.instance, **options)
    return retried(lambda: wire.call(request, version))


# -- offsets ---------------------------------------------------------------------------------------------------------


def commit(wire: Wire, topic: str, offsets: Mapping[int, int], *, metadata: str = "", **fields: Any) -> list[int]:
    """Commit offsets of a topic's partitions, and return the error code of each.

    `fields` are those of OffsetCommitRequest.
    """
    partitions = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata=metadata)
        for index, offset in offsets.items()
    ]
    version = fields.pop("version", BY_NAME)
    topic_id = fields.pop("topic_id", NO_UUID)
    topics = [OffsetCommitRequestTopic(name=topic, topic_id=topic_id, partitions=partitions)]
    request = OffsetCommitRequest(**fields, topics=topics)
    answer = retried(lambda: wire.call(request, version), lambda found: found.topics[0].partitions[0].error_code)
    return [partition.error_code for partition in answer.topics[0].partitions]


def txn_commit(
    wire: Wire, transactional_id: str, who: Session, topic: str, offset: int, *, partition: int = 0, **fields: Any
) -> int:
    """Send the TxnOffsetCommit of a client before KIP-890's part 2.

    `fields` (group_id, member_id, ...) are the request's.
    """
    parts = [TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)]
    version = fields.pop("version", 3)
    request = TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        producer_id=who.producer_id,
        producer_epoch=who.epoch,
        topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=parts)],
        **fields,
    )
    answer = retried(lambda: wire.call(request, version), lambda found: found.topics[0].partitions[0].error_code)
    error: int = answer.topics[0].partitions[0].error_code
    return error


def pending(wire: Wire, name: str, offset: int, *, partition: int = 0, **fields: Any) -> Session:
    """Open a transaction of the id `name` with an offset of the topic `name` in the group `name`."""
    who = wire.session(name)
    assert not wire.add_offsets(name, who, name).error_code
    assert not txn_commit(wire, name, who, name, offset, partition=partition, group_id=name, **fields)
    return who


def simple_commit(wire: Wire, group: str, topic: str, offsets: Mapping[int, int], **fields: Any) -> None:
    """Commit as a consumer with manual assignment. The commit must succeed."""
    wire.find_coordinator(group, 0)
    assert not any(commit(wire, topic, offsets, group_id=group, **fields))


def fetch_group(
    wire: Wire,
    group: str,
    topics: Mapping[str, Iterable[int]] | None = None,
    *,
    stable: bool = False,
    version: int = BY_NAME,
) -> Any:
    """Send OffsetFetch for one group by topic names (None: all), and return its response."""
    asked = None
    if topics is not None:
        asked = [OffsetFetchRequestTopics(name=name, partition_indexes=list(of)) for name, of in topics.items()]
    request = OffsetFetchRequest(require_stable=stable, groups=[OffsetFetchRequestGroup(group_id=group, topics=asked)])
    return retried(lambda: wire.call(request, version).groups[0])


def offsets_of(wire: Wire, group: str) -> dict[tuple[str, int], int]:
    """Return every committed offset of the group."""
    found = fetch_group(wire, group)
    assert not found.error_code, found
    return {
        (topic.name, partition.partition_index): partition.committed_offset
        for topic in found.topics
        for partition in topic.partitions
    }


def delete_offsets(wire: Wire, group: str, topics: Mapping[str, Iterable[int]]) -> Any:
    """Send OffsetDelete. Return the group's error code, or {(topic, partition): error code}."""
    asked = [
        OffsetDeleteRequestTopic(
            name=name, partitions=[OffsetDeleteRequestPartition(partition_index=index) for index in of]
        )
        for name, of in topics.items()
    ]
    answer = retried(lambda: wire.call(OffsetDeleteRequest(group_id=group, topics=asked)))
    if answer.error_code:
        return answer.error_code
    return {
        (topic.name, partition.partition_index): partition.error_code
        for topic in answer.topics
        for partition in topic.partitions
    }


# -- groups ----------------------------------------------------------------------------------------------------------


def describe(wire: Wire, group: str, **fields: Any) -> DescribedGroup:
    """Describe one group."""
    version = fields.pop("version", None)
    request = DescribeGroupsRequest(groups=[group], **fields)
    found: DescribedGroup = retried(lambda: wire.call(request, version).groups[0])
    return found


def delete_groups(wire: Wire, *groups: str) -> dict[str, int]:
    """Send DeleteGroups, and return each group's error code."""
    answer = wire.call(DeleteGroupsRequest(groups_names=list(groups)))
    return {result.group_id: result.error_code for result in answer.results}
