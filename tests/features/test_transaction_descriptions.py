"""T9: ListTransactions, DescribeTransactions, DescribeProducers (KIP-664, 994, 1152)."""

from __future__ import annotations

import time

import pytest

from oncelog.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from oncelog.protocol.messages.describe_transactions import DescribeTransactionsRequest
from support.servers import Server
from support.transactions import describe, ended, listed, markers, producers, until_state, written
from support.wire import Session, Wire, batch, code, until


def names(answer: object) -> set[str]:
    assert not answer.error_code, answer  # type: ignore[attr-defined]
    return {each.transactional_id for each in answer.transaction_states}  # type: ignore[attr-defined]


def test_filters_of_the_list(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    idle, busy = f"{name}-idle", f"{name}-busy"
    wire.session(idle)
    who = wire.session(busy)
    written(wire, busy, who, name, [b"x"])
    mine = {idle, busy}
    assert names(listed(wire)) >= mine
    assert names(listed(wire, state_filters=["Ongoing"])) & mine == {busy}
    assert names(listed(wire, state_filters=["Empty", "Ongoing"])) & mine == mine
    assert names(listed(wire, producer_id_filters=[who.producer_id])) == {busy}
    assert names(listed(wire, producer_id_filters=[who.producer_id], state_filters=["Empty"])) == set()
    until(
        lambda: names(listed(wire, duration_filter=5)), lambda found: busy in found, "the transaction has run for 5 ms"
    )
    assert busy not in names(listed(wire, duration_filter=3_600_000))
    answer = listed(wire, state_filters=["Ongoing", "Nonsense"])
    assert answer.unknown_state_filters == ["Nonsense"]
    assert names(answer) & mine == {busy}
    assert listed(wire, state_filters=["Nonsense"]).transaction_states == []
    (row,) = [each for each in listed(wire, 0).transaction_states if each.transactional_id == busy]
    assert (row.producer_id, row.transaction_state) == (who.producer_id, "Ongoing")
    ended(wire, busy, who)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("{}-[ab].*", {"a1", "b2"}),
        ("{}-(a|c)\\d", {"a1", "c3"}),
        ("(?i){}-A1", {"a1"}),
        ("{}-.{{2}}", {"a1", "b2", "c3"}),
        ("{}-a", set()),
        (".*{}-a1$", {"a1"}),
        ("", {"a1", "b2", "c3"}),
    ],
)
def test_kip_1152_pattern_matches_whole_ids(wire: Wire, name: str, pattern: str, found: set[str]) -> None:
    for each in ("a1", "b2", "c3"):
        wire.session(f"{name}-{each}")
    answer = listed(wire, transactional_id_pattern=pattern.format(name))
    assert {each.removeprefix(f"{name}-") for each in names(answer) if each.startswith(name)} == found


@pytest.mark.parametrize("pattern", ["(", "a**", "[b-a]", "(?=x)", "(?<!x)", "(a)\\1"])
def test_invalid_pattern_is_rejected(wire: Wire, pattern: str) -> None:
    answer = listed(wire, transactional_id_pattern=pattern)
    assert answer.error_code == code("INVALID_REGULAR_EXPRESSION")
    assert answer.transaction_states == []


def test_slow_patterns_do_not_stop_the_broker(wire: Wire, name: str) -> None:
    """A backtracking engine would practically never finish."""
    wire.session("a" * 200)
    assert "a" * 200 not in names(listed(wire, transactional_id_pattern="(a+)+b"))
    assert "a" * 200 in names(listed(wire, transactional_id_pattern="(a+)+"))


def test_descriptions(wire: Wire, name: str) -> None:
    wire.create_topic(name, 2)
    who = wire.session(name, timeout_ms=34_567)
    written(wire, name, who, name, [b"x"], partition=1)
    written(wire, name, who, name, [b"x"], partition=0)
    unknown = f"{name}-unknown"
    wire.find_coordinator(unknown)
    answer = wire.call(DescribeTransactionsRequest(transactional_ids=[name, unknown, ""]))
    found = {each.transactional_id: each for each in answer.transaction_states}
    assert found[unknown].error_code == code("TRANSACTIONAL_ID_NOT_FOUND")
    assert found[""].error_code == code("INVALID_REQUEST")
    one = found[name]
    assert (one.error_code, one.transaction_state, one.transaction_timeout_ms) == (0, "Ongoing", 34_567)
    assert (one.producer_id, one.producer_epoch) == who
    assert one.transaction_start_time_ms > 0
    assert [(each.topic, sorted(each.partitions)) for each in one.topics] == [(name, [0, 1])]
    ended(wire, name, who)
    until_state(wire, name, "CompleteCommit")
    assert describe(wire, name).topics == []


def test_transaction_is_described_once(wire: Wire, server: Server, name: str) -> None:
    """DIFFERS[repeated names]: Kafka describes it as often as the request names it."""
    wire.session(name)
    answer = wire.call(DescribeTransactionsRequest(transactional_ids=[name, f"{name}-none", name]))
    found = [each.transactional_id for each in answer.transaction_states]
    assert found == [name, f"{name}-none"] + [name] * (server.name != "oncelog")


def test_producers_of_a_partition(wire: Wire, name: str) -> None:
    topic_id = wire.create_topic(name)
    assert producers(wire, name) == {}
    plain, who = wire.session(), wire.session(name)
    an_hour_ago = int(time.time() * 1000) - 3_600_000
    assert not wire.produce(name, batch([b"a", b"b"], plain, 0, timestamp=an_hour_ago)).error_code
    written(wire, name, who, name, [b"c"])
    found = producers(wire, name)
    one, other = found[plain.producer_id], found[who.producer_id]
    assert (one.producer_epoch, one.last_sequence, one.last_timestamp) == (0, 1, an_hour_ago)
    assert (one.coordinator_epoch, one.current_txn_start_offset) == (-1, -1)
    assert (other.last_sequence, other.coordinator_epoch, other.current_txn_start_offset) == (0, -1, 2)
    after = ended(wire, name, who)
    until_state(wire, name, "CompleteCommit")
    assert markers(wire, topic_id) == [(who.producer_id, after.epoch, "COMMIT")]
    other = producers(wire, name)[who.producer_id]
    assert (other.producer_epoch, other.coordinator_epoch, other.current_txn_start_offset) == (after.epoch, 0, -1)


def test_producers_of_a_missing_partition(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    request = DescribeProducersRequest(
        topics=[
            TopicRequest(name=name, partition_indexes=[0, 5]),
            TopicRequest(name=f"{name}-missing", partition_indexes=[0]),
        ]
    )
    answer = wire.call(request)
    codes = {
        (topic.name, each.partition_index): each.error_code for topic in answer.topics for each in topic.partitions
    }
    unknown = code("UNKNOWN_TOPIC_OR_PARTITION")
    assert codes == {(name, 0): 0, (name, 5): unknown, (f"{name}-missing", 0): unknown}


def test_descriptions_survive_a_kill(own_server: Server, name: str) -> None:
    with Wire(own_server.bootstrap) as wire:
        wire.create_topic(name)
        who = wire.session(name)
        written(wire, name, who, name, [b"x"])
        before = describe(wire, name), producers(wire, name)[who.producer_id]
    own_server.kill()
    own_server.wait_ready()
    with Wire(own_server.bootstrap) as wire:
        wire.find_coordinator(name)
        until_state(wire, name, "Ongoing")
        assert (describe(wire, name), producers(wire, name)[who.producer_id]) == before
        ended(wire, name, Session(*who))
