"""The rules of `FaultProxy`: what they match, and what they reject."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from oncelog.faults import proxy
from oncelog.faults.held import MOST_HELD, Held, HeldRequests
from oncelog.faults.proxy import FaultProxy
from oncelog.faults.requests import Request
from oncelog.faults.rules import FILTERS, Action, Fault, Rule, RuleError, parse_fault
from oncelog.protocol.apis import ApiKey, messages
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.headers import RequestHeader, encode_request_header
from oncelog.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from oncelog.protocol.messages.describe_groups import DescribeGroupsRequest
from oncelog.protocol.messages.end_txn import EndTxnRequest
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from oncelog.protocol.messages.find_coordinator import FindCoordinatorRequest
from oncelog.protocol.messages.join_group import JoinGroupRequest
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from oncelog.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from oncelog.protocol.schema import Message

LOSE = Fault(Action.LOSE_ANSWER)


def passing(message: Message, version: int | None = None, client: str = "app") -> Request:
    version = message.MAX_VERSION if version is None else version
    header = encode_request_header(RequestHeader(message.API_KEY, version, 7, client))
    return Request(header + message.encode(version), 1, {})


def matched(rule: Rule, count: int) -> list[int]:
    """Return which of so many equal requests meet the fault, from 1."""
    request = passing(EndTxnRequest(transactional_id="t"))
    return [number for number in range(1, count + 1) if rule.fault(request) is not None]


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [("", [1, 2, 3, 4, 5, 6]), (":3", [3]), (":2-4", [2, 3, 4]), (":5-", [5, 6]), (":1,4-5", [1, 4, 5]), (":9", [])],
)
def test_numbers_count_from_one(numbers: str, expected: list[int]) -> None:
    assert matched(Rule(f"lose-answer EndTxn{numbers}"), 6) == expected


@pytest.mark.parametrize("api", ["EndTxn", "endtxn", "END_TXN", "end-txn", "*"])
def test_names_of_apis(api: str) -> None:
    assert Rule(f"lose-answer {api}").fault(passing(EndTxnRequest(transactional_id="t"))) == LOSE
    other = Rule(f"lose-answer {api}").fault(passing(MetadataRequest()))
    assert other == (LOSE if api == "*" else None)


@pytest.mark.parametrize(
    ("rule", "request_"),
    [
        ("lose-answer EndTxn transactional-id=t", EndTxnRequest(transactional_id="t")),
        ("lose-answer JoinGroup group=g", JoinGroupRequest(group_id="g")),
        ("lose-answer Metadata topic=orders", MetadataRequest(topics=[MetadataRequestTopic(name="orders")])),
        ("lose-answer * client=app broker=1", MetadataRequest()),
        ("lose-answer * group=g", DescribeGroupsRequest(groups=["g"])),
        ("lose-answer * group=g", OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g")])),
        ("lose-answer * group=g", FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])),
        ("lose-answer * transactional-id=t", FindCoordinatorRequest(key_type=1, coordinator_keys=["t"])),
        ("lose-answer * topic=orders", DeleteTopicsRequest(topics=[DeleteTopicState(name="orders")])),
    ],
)
def test_filters(rule: str, request_: Message) -> None:
    assert Rule(rule).fault(passing(request_)) == LOSE
    for key in FILTERS:
        if f"{key}=" in rule:
            assert Rule(f"lose-answer * {key}=other").fault(passing(request_)) is None


def fetch(*partitions: tuple[str, int]) -> FetchRequest:
    topics = [FetchTopic(topic=topic, partitions=[FetchPartition(partition=index)]) for topic, index in partitions]
    return FetchRequest(topics=topics)


@pytest.mark.parametrize(
    ("rule", "matches"),
    [
        ("lose-answer Fetch topic=a partition=0", True),
        ("lose-answer Fetch topic=b partition=1", True),
        ("lose-answer Fetch topic=a partition=1", False),
        ("lose-answer Fetch partition=1", True),
        ("lose-answer Fetch partition=2", False),
    ],
)
def test_topic_and_partition_belong_together(rule: str, matches: bool) -> None:
    assert (Rule(rule).fault(passing(fetch(("a", 0), ("b", 1)), 12)) is not None) == matches


def test_partitions_in_lists_of_numbers_and_topics_by_id() -> None:
    added = AddPartitionsToTxnRequest(v3_and_below_topics=[AddPartitionsToTxnTopic(name="a", partitions=[3, 4])])
    assert Rule("lose-answer * topic=a partition=4").fault(passing(added, 3)) == LOSE
    id_ = UUID(int=7)
    by_id = FetchRequest(topics=[FetchTopic(topic_id=id_, partitions=[FetchPartition(partition=5)])])
    header = encode_request_header(RequestHeader(by_id.API_KEY, 13, 7, "app"))
    request = Request(header + by_id.encode(13), 1, {id_: "known"})
    assert Rule("lose-answer Fetch topic=known partition=5").fault(request) == LOSE
    assert Rule("lose-answer Fetch topic=other").fault(request) is None


def test_seen_and_held_requests_are_bounded() -> None:
    faults = FaultProxy("127.0.0.1:1")
    route = proxy._Route("127.0.0.1", 1)
    frame = encode_request_header(RequestHeader(ApiKey.PRODUCE, 9, 7, "app")) + bytes(1 << 20)
    for _ in range(200):
        request, _ = faults.decide(route, frame)
    assert 0 < sum(len(each.frame) for each in faults.seen) <= proxy.MOST_SEEN_BYTES
    small = encode_request_header(RequestHeader(ApiKey.HEARTBEAT, 4, 7, "app"))
    for _ in range(proxy.MOST_SEEN + 5):
        request, _ = faults.decide(route, small)
    assert len(faults.seen) == proxy.MOST_SEEN
    held: Any = Held(None, request, None)  # type: ignore[arg-type]
    requests = HeldRequests()
    assert [requests.keep(held) for _ in range(MOST_HELD + 1)] == [True] * MOST_HELD + [False]


def test_only_matching_requests_count() -> None:
    rule = Rule("lose-answer EndTxn:2 transactional-id=t")
    ids = ["t", "other", "other", "t", "t"]
    assert [rule.fault(passing(EndTxnRequest(transactional_id=id_))) is not None for id_ in ids] == [
        *(False, False, False, True, False)
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not a rule"),
        ("lose-answer", "is not a rule"),
        ("lose Produce", "is not an action; the actions are pass, lose-request"),
        ("lose-answer Producing", "is not an API; the APIs are"),
        ("lose-answer Produce:0", "count from 1"),
        ("lose-answer Produce:a", "is not a number"),
        ("lose-answer Produce:-3", "is not a number"),
        ("lose-answer Produce:3-2", "ends before it begins"),
        ("lose-answer Produce for=1s", "lose-answer has no option 'for'"),
        ("lose-answer Produce topic", "is not KEY=VALUE"),
        ("lose-answer Produce topic=", "is not KEY=VALUE"),
        ("lose-answer Produce topic=a topic=b", "topic is given twice"),
        ("delay Produce", "delay needs a time"),
        ("delay Produce for=soon", "is not a time"),
        ("error Produce", "error needs an error"),
        ("error Produce code=NOPE", "is not the name of a Kafka error"),
        ("error Produce code=NONE", "is no error"),
        ("hold Produce for=2", "'2' is not a time; write 200ms, 2s or 1m"),
    ],
)
def test_wrong_rules_say_what_is_allowed(text: str, why: str) -> None:
    with pytest.raises(RuleError, match=why):
        Rule(text)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("hold", Fault(Action.HOLD)),
        ("hold for=200ms", Fault(Action.HOLD, 0.2)),
        ("delay for=1.5s", Fault(Action.DELAY, 1.5)),
        ("delay for=2m", Fault(Action.DELAY, 120.0)),
        ("error code=not_leader_or_follower", Fault(Action.ERROR, code=ErrorCode.NOT_LEADER_OR_FOLLOWER)),
        ("error-after code=REQUEST_TIMED_OUT for=1s", Fault(Action.ERROR_AFTER, 1.0, ErrorCode.REQUEST_TIMED_OUT)),
    ],
)
def test_options_of_a_fault(text: str, fault: Fault) -> None:
    assert parse_fault(text) == fault


@pytest.mark.parametrize("key", ApiKey)
def test_requests_of_all_apis_and_versions_are_read(key: ApiKey) -> None:
    """Also those that a later version sends: they pass, without a message."""
    kind = messages(key)[0]
    for version in range(kind.MIN_VERSION, kind.MAX_VERSION + 1):
        request = passing(kind(), version)
        assert (request.api, request.message) == (key, kind())
        assert request.error(ErrorCode.UNKNOWN_SERVER_ERROR) is not None
    later = encode_request_header(RequestHeader(key, kind.MAX_VERSION + 1, 7, "app")) + b"\xff"
    assert Request(later, None, {}).message is None
