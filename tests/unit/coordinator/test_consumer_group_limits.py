"""Groups of the consumer protocol that are large, that may not move, or whose records are refused or damaged."""

from __future__ import annotations

from typing import Any

from oncelog.coordinator.groups.consumer import records
from oncelog.coordinator.groups.consumer.group import ConsumerGroup
from oncelog.coordinator.groups.registry import GroupConfig
from oncelog.protocol.errors import ErrorCode as E
from oncelog.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from support.fixed_topics import topic_id
from support.group_driver import GROUP, GroupDriver, Waiting, subscription


def joining(**changed: Any) -> dict[str, Any]:
    return {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ["t"], "topic_partitions": [], **changed}


def join(driver: GroupDriver, member_id: str, **changed: Any) -> Waiting:
    answer = driver.consumer_heartbeat(member_id=member_id, member_epoch=0, **joining(**changed))
    assert isinstance(answer, Waiting)
    return answer


def group(driver: GroupDriver) -> ConsumerGroup:
    found = driver.coordinator.registry.find(GROUP, ConsumerGroup)
    assert found is not None
    return found


def test_refused_removal_in_one_group_does_not_keep_the_members_of_others() -> None:
    driver = GroupDriver()
    for name in ("a", "b", "c"):
        request = ConsumerGroupHeartbeatRequest(group_id=name, member_id="m", **joining())
        driver.apply(driver.coordinator.consumer.heartbeat(request, 1, "client", "/host", Waiting(), driver.now))
    driver.pass_time(44_000)
    driver.refuse = E.NOT_ENOUGH_REPLICAS  # the next append, which removes one of them
    driver.pass_time(1_100)
    assert sorted(each.is_empty for each in driver.coordinator.groups.values()) == [False, True, True]
    driver.pass_time(1_000)  # it is removed when the append succeeds
    assert all(each.is_empty for each in driver.coordinator.groups.values())


def test_group_whose_record_would_be_too_large_stays_a_consumer_group() -> None:
    driver = GroupDriver(GroupConfig(record_max_bytes=2_000))
    driver.topics.counts["t"] = 2
    join(driver, "new")
    said = (("range", subscription("t", *(f"topic-{number}" for number in range(200)))),)
    old = driver.join("", version=3, protocols=said).response.member_id
    left = driver.consumer_heartbeat(member_id="new", member_epoch=-1)
    assert isinstance(left, Waiting)
    assert left.error is E.NONE
    assert list(group(driver).members) == [old]
    driver.pass_time(1_000)
    generation = group(driver).members[old].epoch
    assert driver.heartbeat(old, generation) is E.REBALANCE_IN_PROGRESS  # it gets what the other one had
    answer = driver.join(old, version=3, protocols=said).response
    assert group(driver).members[old].assigned == {topic_id("t"): {0: answer.generation_id, 1: answer.generation_id}}


def test_classic_members_of_a_group_that_may_not_move_back_get_new_partitions() -> None:
    driver = GroupDriver(GroupConfig(consumer_migration_policy="upgrade"))
    driver.topics.counts["t"] = 1
    join(driver, "new")
    old = driver.join("", version=3).response.member_id
    driver.consumer_heartbeat(member_id="new", member_epoch=-1)
    driver.pass_time(1_000)
    answer = driver.join(old, version=3).response
    assert driver.sync(old, answer.generation_id).error is E.NONE
    assert driver.heartbeat(old, answer.generation_id) is E.NONE
    driver.topics.counts["t"] = 2
    driver.coordinator.topics_changed(frozenset({"t"}), driver.now)
    driver.pass_time(1_000)
    assert driver.heartbeat(old, answer.generation_id) is E.REBALANCE_IN_PROGRESS
    answer = driver.join(old, version=3).response
    assert group(driver).members[old].assigned[topic_id("t")].keys() == {0, 1}


def test_target_of_a_later_epoch_than_the_group_does_not_keep_partitions_back() -> None:
    """The record of the group's epoch is missing: the log is damaged."""
    driver = GroupDriver()
    driver.topics.counts["t"] = 1
    driver.coordinator.replay(records.target_epoch_record(GROUP, 5, 0))
    answer = join(driver, "m").response
    assert answer.member_epoch == 6
    assert [each.partitions for each in answer.assignment.topic_partitions] == [[0]]


# -- regular expressions ---------------------------------------------------------------------------------------------


def test_only_new_expressions_are_matched_until_topics_are_created() -> None:
    driver = GroupDriver()
    matches = driver.coordinator.consumer.matches
    join(driver, "one", subscribed_topic_names=None, subscribed_topic_regex="a.*")
    assert matches.begin(GROUP, driver.now) == {"a.*"}
    assert not matches.begin(GROUP, driver.now), "one match at a time"
    driver.apply(matches.found(GROUP, "a.*", ["ab"], driver.now))
    matches.end(GROUP, {"a.*": ["ab"]}, driver.now)
    join(driver, "two", subscribed_topic_names=None, subscribed_topic_regex="b.*")
    assert not matches.begin(GROUP, driver.now), "a pause"
    driver.pass_time(1_000)
    assert matches.begin(GROUP, driver.now) == {"b.*"}
    driver.pass_time(300)
    matches.end(GROUP, None, driver.now)
    driver.pass_time(2_000)
    assert not matches.begin(GROUP, driver.now), "a long match is followed by a long pause"
    driver.pass_time(1_000)
    assert matches.begin(GROUP, driver.now) == {"a.*", "b.*"}, "it had failed"


def test_match_that_was_not_written_is_repeated() -> None:
    driver = GroupDriver()
    matches = driver.coordinator.consumer.matches
    join(driver, "m", subscribed_topic_names=None, subscribed_topic_regex="a.*")
    for refused in (True, False):
        assert matches.begin(GROUP, driver.now) == {"a.*"}
        driver.refuse = E.NOT_ENOUGH_REPLICAS if refused else None
        driver.apply(matches.found(GROUP, "a.*", ["ab"], driver.now))
        matches.end(GROUP, {"a.*": ["ab"]}, driver.now)
        driver.pass_time(1_000)
    assert not matches.begin(GROUP, driver.now)
    assert group(driver).patterns == {"a.*": frozenset({"ab"})}


def test_offsets_do_not_expire_while_an_expression_is_not_matched() -> None:
    driver = GroupDriver()
    join(driver, "m", subscribed_topic_names=None, subscribed_topic_regex="a.*")
    assert group(driver).is_subscribed("any")
    matches = driver.coordinator.consumer.matches
    driver.apply(matches.found(GROUP, "a.*", ["ab"], driver.now))
    assert [group(driver).is_subscribed(name) for name in ("ab", "any")] == [True, False]
