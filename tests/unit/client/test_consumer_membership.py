"""The requests of a member with a server-side assignor, and its reactions to the answers (KIP-848)."""

from __future__ import annotations

import re
import uuid

import pytest

from oncelog import errors
from oncelog.client.consumer.consumer_membership import ConsumerMembership, HeartbeatResult, as_re2
from oncelog.client.group_offsets import GroupMetadata
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

TOPIC = uuid.uuid4()


def joined(**options: object) -> ConsumerMembership:
    made = ConsumerMembership("g", "m", rebalance_timeout_ms=7, assignor="uniform", rack="r", **options)  # type: ignore[arg-type]
    made.subscribe(["t"], "")
    made.heartbeat_request()
    answer = ConsumerGroupHeartbeatResponse(
        member_epoch=3,
        heartbeat_interval_ms=5_000,
        assignment=Assignment(topic_partitions=[TopicPartitions(topic_id=TOPIC, partitions=[0, 1])]),
    )
    assert made.answered(answer, 0) is HeartbeatResult.ACCEPTED
    return made


def test_first_heartbeat_contains_everything_and_later_ones_only_changes() -> None:
    member = ConsumerMembership("g", "m", rebalance_timeout_ms=7, assignor="uniform", rack="r")
    member.subscribe(["t"], "")
    first = member.heartbeat_request()
    assert (first.member_epoch, first.rebalance_timeout_ms, first.server_assignor, first.rack_id) == (
        0,
        7,
        "uniform",
        "r",
    )
    assert (first.subscribed_topic_names, first.subscribed_topic_regex, first.topic_partitions) == (["t"], None, [])
    member = joined()
    second = member.heartbeat_request()
    assert (second.member_epoch, second.rebalance_timeout_ms, second.server_assignor, second.rack_id) == (
        3,
        -1,
        None,
        None,
    )
    assert (second.subscribed_topic_names, second.topic_partitions) == (None, None)
    member.owned = {(TOPIC, 1)}
    assert member.heartbeat_request().topic_partitions == [TopicPartitions(topic_id=TOPIC, partitions=[1])]
    member.failed()
    again = member.heartbeat_request()
    assert (again.rebalance_timeout_ms, again.subscribed_topic_names) == (7, ["t"]), (
        "everything again after a lost answer"
    )


def test_change_in_a_lost_heartbeat_is_sent_again() -> None:
    member = joined()
    member.subscribe(["u"], "")
    assert member.heartbeat_request().subscribed_topic_names == ["u"]
    assert member.heartbeat_request().subscribed_topic_names == ["u"], "not answered yet"
    member.answered(ConsumerGroupHeartbeatResponse(member_epoch=3), 3)
    assert member.heartbeat_request().subscribed_topic_names is None


def test_pattern_can_be_removed() -> None:
    member = joined()
    member.subscribe([], "a.*")
    request = member.heartbeat_request()
    assert (request.subscribed_topic_names, request.subscribed_topic_regex) == ([], "a.*")
    member.answered(ConsumerGroupHeartbeatResponse(member_epoch=3), 3)
    member.subscribe(["t"], "")
    request = member.heartbeat_request()
    assert (request.subscribed_topic_names, request.subscribed_topic_regex) == (["t"], "")


def test_missing_assignment_means_no_change() -> None:
    member = joined()
    assert member.needs_reconciliation
    assert member.target == {(TOPIC, 0), (TOPIC, 1)}
    member.answered(ConsumerGroupHeartbeatResponse(member_epoch=4, heartbeat_interval_ms=1), 3)
    assert (member.epoch, member.interval_ms, member.target) == (4, 1, {(TOPIC, 0), (TOPIC, 1)})
    member.owned = {(TOPIC, 0), (TOPIC, 1)}
    assert not member.needs_reconciliation
    member.answered(ConsumerGroupHeartbeatResponse(member_epoch=4, assignment=Assignment(topic_partitions=[])), 4)
    assert member.needs_reconciliation


@pytest.mark.parametrize("code", [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID])
def test_fenced_member_loses_its_partitions_and_rejoins_with_its_member_id(code: ErrorCode) -> None:
    member = joined()
    member.owned = {(TOPIC, 0)}
    assert member.answered(ConsumerGroupHeartbeatResponse(error_code=code), 3) is HeartbeatResult.FENCED
    assert (member.lost, member.epoch, member.owned, member.target) == (True, 0, set(), None)
    assert member.metadata() == GroupMetadata("g", 3, "m"), "a zombie commits in its old epoch and is rejected"
    member.rejoin()
    request = member.heartbeat_request()
    assert (request.member_id, request.member_epoch, request.subscribed_topic_names) == ("m", 0, ["t"])


def test_answer_to_an_earlier_epoch_is_ignored() -> None:
    member = joined()
    member.forget()
    member.answered(ConsumerGroupHeartbeatResponse(member_epoch=4, assignment=Assignment()), 3)
    assert (member.epoch, member.target) == (0, None)


def test_retriable_and_fatal_heartbeat_errors() -> None:
    member = joined()
    for code, what in (
        (ErrorCode.NOT_COORDINATOR, HeartbeatResult.FIND_COORDINATOR),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, HeartbeatResult.FIND_COORDINATOR),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, HeartbeatResult.RETRY),
    ):
        assert member.answered(ConsumerGroupHeartbeatResponse(error_code=code), 3) is what
        assert (member.epoch, member.lost) == (3, False)
    for code, kind, word in (
        (ErrorCode.UNRELEASED_INSTANCE_ID, errors.FencedMemberError, "group_instance_id"),
        (ErrorCode.UNSUPPORTED_ASSIGNOR, errors.RequestError, "group_remote_assignor"),
        (ErrorCode.UNSUPPORTED_VERSION, errors.UnsupportedError, "group_protocol = 'classic'"),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, errors.AuthorizationError, "'g'"),
    ):
        with pytest.raises(kind, match=word):
            member.answered(ConsumerGroupHeartbeatResponse(error_code=code), 3)


def test_leaving() -> None:
    asking = ConsumerMembership("g", "m")
    assert asking.leave_request() is None, "the coordinator does not know it"
    asking.heartbeat_request()
    assert asking.leave_request() is not None, "it may be a member, although it has no answer yet"
    asking.answered(ConsumerGroupHeartbeatResponse(error_code=ErrorCode.FENCED_MEMBER_EPOCH), 0)
    assert asking.leave_request() is None, "it is no longer a member"
    dynamic, static = joined().leave_request(), joined(instance_id="i").leave_request()
    assert dynamic is not None
    assert static is not None
    assert (dynamic.member_epoch, static.member_epoch, static.instance_id) == (-1, -2, "i")


def test_pattern_may_match_part_of_a_name() -> None:
    assert as_re2(re.compile("^a|b")) == ".*(?:^a|b).*"
    assert as_re2(re.compile("x", re.IGNORECASE)) == ".*(?i:x).*"
