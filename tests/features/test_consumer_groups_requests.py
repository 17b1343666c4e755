"""ConsumerGroupHeartbeat: which requests are refused, with which error and words (KIP-848)."""

from __future__ import annotations

from typing import Any

import pytest

from support.consumer_groups import NewMember, configure_group, heartbeat, refusal, seen_topic
from support.wire import Wire, code, until

INVALID_REQUEST = code("INVALID_REQUEST")
UNKNOWN_MEMBER_ID = code("UNKNOWN_MEMBER_ID")
GROUP_ID_NOT_FOUND = code("GROUP_ID_NOT_FOUND")
FENCED_MEMBER_EPOCH = code("FENCED_MEMBER_EPOCH")
UNSUPPORTED_ASSIGNOR = code("UNSUPPORTED_ASSIGNOR")
INVALID_REGEX = code("INVALID_REGULAR_EXPRESSION")

NO_SUBSCRIPTION = "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
NOT_EMPTY = "TopicPartitions must be empty when (re-)joining."
NO_TIMEOUT = "RebalanceTimeoutMs must be provided in first request."
BLANK = ["", " "]


def joining(**changed: Any) -> dict[str, Any]:
    """Return the fields of a member that joins."""
    fields = {
        "member_id": "m",
        "member_epoch": 0,
        "rebalance_timeout_ms": 60_000,
        "subscribed_topic_names": ["t"],
        "topic_partitions": [],
    }
    return {**fields, **changed}


@pytest.fixture
def group(wire: Wire, name: str) -> str:
    """Return the id of a group whose coordinator serves."""
    wire.find_coordinator(name, 0)
    return name


@pytest.fixture
def member(wire: Wire, group: str) -> NewMember:
    """Return the only member of a group, at its epoch."""
    topic = seen_topic(wire, group)
    return NewMember(wire, group).joined(group, owns={topic: [0]})


# -- ids ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blank", BLANK)
@pytest.mark.parametrize("epoch", [0, 1, -1, -2])
def test_group_id_must_not_be_blank(wire: Wire, blank: str, epoch: int) -> None:
    answer = refusal(wire, blank, **joining(member_epoch=epoch, instance_id="i"))
    assert answer == (INVALID_REQUEST, "GroupId can't be empty.")


@pytest.mark.parametrize("epoch", [0, 1, -1])
@pytest.mark.parametrize("blank", BLANK)
def test_member_id_must_not_be_blank(wire: Wire, group: str, blank: str, epoch: int) -> None:
    answer = refusal(wire, group, 1, **joining(member_id=blank, member_epoch=epoch))
    assert answer == (INVALID_REQUEST, "MemberId can't be empty.")


def test_version_0_gives_a_member_id_to_a_member_that_joins_without_one(wire: Wire, group: str) -> None:
    first, second = (heartbeat(wire, group, 0, **joining(member_id="")) for _ in range(2))
    assert first.error_code == second.error_code == 0
    assert len({"", first.member_id, second.member_id}) == 3
    assert heartbeat(wire, group, 0, member_id=first.member_id, member_epoch=first.member_epoch).error_code == 0


@pytest.mark.parametrize("epoch", [1, -1])
def test_version_0_needs_the_member_id_after_the_join(wire: Wire, group: str, epoch: int) -> None:
    answer = refusal(wire, group, 0, **joining(member_id="", member_epoch=epoch))
    assert answer == (INVALID_REQUEST, "MemberId can't be empty.")


def test_response_has_the_id_that_the_member_chose(wire: Wire, group: str) -> None:
    answer = heartbeat(wire, group, **joining(member_id="ä very odd/id"))
    assert (answer.error_code, answer.error_message, answer.member_id) == (0, None, "ä very odd/id")


@pytest.mark.parametrize("field", ["instance_id", "rack_id"])
@pytest.mark.parametrize("blank", BLANK)
@pytest.mark.parametrize("epoch", [0, 1, -1])
def test_optional_ids_must_not_be_blank(wire: Wire, group: str, field: str, blank: str, epoch: int) -> None:
    words = "InstanceId can't be empty." if field == "instance_id" else "RackId can't be empty."
    assert refusal(wire, group, **joining(**{field: blank}, member_epoch=epoch)) == (INVALID_REQUEST, words)


@pytest.mark.parametrize("field", ["member_id", "instance_id", "rack_id"])
def test_ids_may_be_long(wire: Wire, group: str, field: str) -> None:
    answer = heartbeat(wire, group, **joining(**{field: "x" * 30_000}))
    assert answer.error_code == 0


def test_group_id_may_be_long(wire: Wire, name: str) -> None:
    group = name + "x" * 10_000
    wire.find_coordinator(group, 0)
    assert heartbeat(wire, group, **joining()).error_code == 0


# -- epochs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epoch", [-3, -2_147_483_648])
def test_epochs_below_minus_2_are_invalid(wire: Wire, member: NewMember, epoch: int) -> None:
    assert refusal(wire, member.group, **joining(member_epoch=epoch)) == (INVALID_REQUEST, "MemberEpoch is invalid.")
    assert member.beat().error_code == 0


def test_only_static_members_leave_for_a_while(wire: Wire, member: NewMember) -> None:
    group = member.group
    answer = refusal(wire, group, member_id="m", member_epoch=-2)
    assert answer == (INVALID_REQUEST, "InstanceId can't be null.")
    for epoch in (-1, -2, member.epoch):
        answer = refusal(wire, group, member_id="m", member_epoch=epoch, instance_id="i")
        assert answer == (UNKNOWN_MEMBER_ID, "Instance id i is unknown.")
    assert member.beat().error_code == 0


@pytest.mark.parametrize("instance", [None, "i"])
def test_group_that_does_not_exist_has_no_members(wire: Wire, group: str, instance: str | None) -> None:
    fields: dict[str, Any] = {"member_id": "m", "instance_id": instance}
    answer = refusal(wire, group, member_epoch=1, **fields)
    assert answer == (GROUP_ID_NOT_FOUND, f"Consumer group {group} not found.")
    answer = refusal(wire, group, member_epoch=-1, **fields)
    assert answer == (GROUP_ID_NOT_FOUND, f"Group {group} not found.")
    if instance is not None:
        assert refusal(wire, group, member_epoch=-2, **fields) == (GROUP_ID_NOT_FOUND, f"Group {group} not found.")


def test_member_that_is_unknown(wire: Wire, member: NewMember) -> None:
    words = f"Member x is not a member of group {member.group}."
    for epoch in (member.epoch, -1):
        assert refusal(wire, member.group, member_id="x", member_epoch=epoch) == (UNKNOWN_MEMBER_ID, words)


def test_empty_group_stays(wire: Wire, member: NewMember) -> None:
    """GROUP_ID_NOT_FOUND is only the answer of a group that never was or is deleted."""
    epoch = member.epoch
    answer = member.leave()
    assert (answer.error_code, answer.member_id, answer.member_epoch) == (0, "m", -1)
    assert (answer.heartbeat_interval_ms, answer.assignment) == (0, None)
    words = f"Member m is not a member of group {member.group}."
    for again in (-1, epoch):
        assert refusal(wire, member.group, member_id="m", member_epoch=again) == (UNKNOWN_MEMBER_ID, words)
    before = member.owned
    assert member.join(member.group).error_code == 0
    member.until_owns(before)
    assert member.epoch > epoch


# -- what a member that joins must say ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"rebalance_timeout_ms": -1}, NO_TIMEOUT),
        ({"topic_partitions": None}, NOT_EMPTY),
        ({"owned": {"": [0]}}, NOT_EMPTY),
        ({"subscribed_topic_names": None}, NO_SUBSCRIPTION),
    ],
    ids=["no timeout", "no partitions", "partitions", "no subscription"],
)
@pytest.mark.parametrize("version", [0, 1])
def test_member_that_joins_must_say(wire: Wire, group: str, changed: dict[str, Any], words: str, version: int) -> None:
    if "owned" in changed:
        changed = {"owned": {wire.create_topic(group): [0]}}
    assert refusal(wire, group, version, **joining(**changed)) == (INVALID_REQUEST, words)
    answer = refusal(wire, group, version, member_id="m", member_epoch=1)
    assert answer[0] == GROUP_ID_NOT_FOUND  # a refused member creates no group


@pytest.mark.parametrize("timeout_ms", [0, -2, 2_147_483_647])
def test_rebalance_timeout_has_no_bounds(wire: Wire, group: str, timeout_ms: int) -> None:
    assert heartbeat(wire, group, **joining(rebalance_timeout_ms=timeout_ms)).error_code == 0


@pytest.mark.parametrize(
    "changed",
    [{"subscribed_topic_names": []}, {"subscribed_topic_names": None, "subscribed_topic_regex": ""}],
    ids=["names", "regex"],
)
def test_subscription_may_be_empty(wire: Wire, group: str, changed: dict[str, Any]) -> None:
    answer = heartbeat(wire, group, **joining(**changed))
    assert (answer.error_code, answer.member_epoch) == (0, 1)
    assert answer.assignment.topic_partitions == []


def test_names_that_no_topic_can_have_are_never_assigned(wire: Wire, group: str) -> None:
    answer = heartbeat(wire, group, **joining(subscribed_topic_names=["a/b", "", " ", "x" * 300]))
    assert answer.error_code == 0
    assert answer.assignment.topic_partitions == []


# -- assignors and regular expressions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("assignor", ["", "nope", "UNIFORM"])
@pytest.mark.parametrize("epoch", [0, 1, -1])
def test_assignor_must_be_one_of_the_brokers(wire: Wire, group: str, assignor: str, epoch: int) -> None:
    answer = refusal(wire, group, **joining(server_assignor=assignor, member_epoch=epoch))
    words = f"ServerAssignor {assignor} is not supported. Supported assignors: uniform, range."
    assert answer == (UNSUPPORTED_ASSIGNOR, words)


@pytest.mark.parametrize(
    ("regex", "reason"),
    [
        ("[", "missing closing ]"),
        ("(a)\\1", "invalid escape sequence"),
        ("(?=a)b", "invalid or unsupported Perl syntax"),
        ("a**b", "invalid nested repetition operator"),
    ],
)
def test_regular_expression_must_be_one_of_re2(wire: Wire, group: str, regex: str, reason: str) -> None:
    for names in (None, ["t"]):
        answer = refusal(wire, group, 1, **joining(subscribed_topic_names=names, subscribed_topic_regex=regex))
        words = f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {reason}."
        assert answer == (INVALID_REGEX, words)


def test_refused_heartbeat_of_a_member_changes_nothing(wire: Wire, member: NewMember) -> None:
    before = member.owned
    refused: list[tuple[dict[str, Any], int]] = [
        ({"subscribed_topic_regex": "["}, INVALID_REGEX),
        ({"server_assignor": "nope"}, UNSUPPORTED_ASSIGNOR),
        ({"rack_id": ""}, INVALID_REQUEST),
        ({"member_epoch": member.epoch + 1, "subscribed_topic_names": []}, FENCED_MEMBER_EPOCH),
    ]
    for changed, error in refused:
        answer = member.beat(**changed)
        assert (answer.error_code, answer.member_id, answer.member_epoch) == (error, None, 0)
        assert (answer.heartbeat_interval_ms, answer.assignment) == (0, None)
    answer = member.report(subscribed_topic_names=[member.group], rebalance_timeout_ms=60_000)
    assert (answer.error_code, member.owned) == (0, before)


def test_response_has_the_groups_own_heartbeat_interval(wire: Wire, member: NewMember) -> None:
    assert member.beat().heartbeat_interval_ms == 5_000
    assert configure_group(wire, member.group, consumer_heartbeat_interval_ms="7000") == 0
    until(lambda: member.beat().heartbeat_interval_ms, lambda found: found == 7_000, "the interval of the group")
