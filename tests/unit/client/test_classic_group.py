"""Who a member is for its coordinator, and for how long."""

from __future__ import annotations

from oncelog.client.consumer.classic_group import Membership
from oncelog.client.group_metadata import GroupMetadata
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.join_group import JoinGroupResponse
from oncelog.protocol.messages.sync_group import SyncGroupResponse


def member() -> Membership:
    made = Membership("g")
    made.join_request()
    made.joined(JoinGroupResponse(generation_id=3, member_id="m", protocol_name="range", leader="other"))
    made.sync_request({})
    made.synced(SyncGroupResponse(assignment=b""))
    return made


def test_a_zombie_commits_under_its_old_generation_and_not_as_nobody() -> None:
    # With generation -1 and no member id the coordinator lets transactional offsets of anybody pass.
    for code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
        gone = member()
        assert gone.metadata() == GroupMetadata("g", 3, "m")
        gone.heartbeat_answered(code, 3)
        assert gone.needs_join
        assert gone.metadata() == GroupMetadata("g", 3, "m")
    left = member()
    left.forget()
    assert left.metadata() == GroupMetadata("g", 3, "m")


def test_before_the_first_assignment_a_member_is_nobody() -> None:
    assert Membership("g").metadata() == GroupMetadata("g")
