"""The identity of a member at its coordinator, and how long it is valid."""

from __future__ import annotations

import pytest

from oncelog.client.consumer.classic_membership import ClassicMembership
from oncelog.client.consumer.consumer_protocol import decode_assignment
from oncelog.client.group_offsets import GroupMetadata
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from oncelog.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from oncelog.protocol.messages.leave_group import LeaveGroupRequest
from oncelog.protocol.messages.sync_group import SyncGroupResponse
from oncelog.protocol.schema import encode_versioned


def member() -> ClassicMembership:
    made = ClassicMembership("g")
    made.join_request()
    made.joined(JoinGroupResponse(generation_id=3, member_id="m", protocol_name="range", leader="other"))
    made.sync_request({})
    made.synced(SyncGroupResponse(assignment=b""))
    return made


def test_zombie_commits_under_its_old_generation() -> None:
    # With generation -1 and no member id, the coordinator accepts transactional offsets of any client.
    for code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
        gone = member()
        assert gone.metadata() == GroupMetadata("g", 3, "m")
        gone.heartbeat_answered(code, 3)
        assert gone.needs_join
        assert gone.metadata() == GroupMetadata("g", 3, "m")
    left = member()
    left.forget()
    assert left.metadata() == GroupMetadata("g", 3, "m")


def test_member_before_its_first_assignment_has_no_generation() -> None:
    assert ClassicMembership("g").metadata() == GroupMetadata("g")


def test_member_can_leave_as_soon_as_it_has_an_id() -> None:
    joining, static = ClassicMembership("g"), ClassicMembership("g", instance_id="i")
    assert not joining.awaits_member_id, "the coordinator does not know it"
    for made in (joining, static):
        made.join_request()
    assert (joining.awaits_member_id, static.awaits_member_id) == (True, False)
    assert joining.leave_request() is None
    for made in (joining, static):
        made.joined(JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="m"))
    leaving = joining.leave_request()
    assert isinstance(leaving, LeaveGroupRequest)
    assert [member.member_id for member in leaving.members] == ["m"]
    assert not joining.awaits_member_id
    assert static.leave_request() is None, "its turn is kept"
    joining.joined(JoinGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
    assert joining.leave_request() is None


@pytest.mark.parametrize("strategy", ["range", "roundrobin"])
def test_static_members_are_sorted_first_as_in_javas_assignors(strategy: str) -> None:
    """Java's MemberInfo: by instance id, then the others by member id, whatever the member ids of the static ones."""
    wanted = encode_versioned(ConsumerProtocolSubscription(topics=["t"]), 1)
    members = [
        JoinGroupResponseMember(member_id=member, group_instance_id=instance, metadata=wanted)
        for member, instance in (("c", None), ("a", None), ("z", "i1"), ("b", "i2"))
    ]
    leader = ClassicMembership("g", strategies=[strategy])
    leader.join_request()
    leader.joined(
        JoinGroupResponse(generation_id=1, member_id="a", leader="a", protocol_name=strategy, members=members)
    )
    request = leader.sync_request({"t": 4})
    given = {item.member_id: decode_assignment(item.assignment) for item in request.assignments}
    assert given == {"z": [("t", 0)], "b": [("t", 1)], "a": [("t", 2)], "c": [("t", 3)]}
