"""Groups with settings of their own: resources of type GROUP (KIP-848, KIP-1142)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from oncelog.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from oncelog.protocol.messages.list_config_resources import ListConfigResourcesRequest
from support.configs import (
    APPEND,
    BROKER,
    DEFAULT,
    DELETE,
    DYNAMIC_BROKER,
    GROUP,
    ME,
    SET,
    SUBTRACT,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    Op,
    alter,
    replace,
    shown,
)
from support.servers import Server
from support.wire import Wire, code, until

OF_GROUP, INT = 8, 3
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
ASSIGNMENT = "consumer.assignment.interval.ms"
DEFAULTS = {SESSION: "45000", HEARTBEAT: "5000", ASSIGNMENT: "1000"}


@pytest.fixture
def group(wire: Wire, name: str) -> Iterator[str]:
    """Return the name of a group, and remove its settings at the end: other tests list what has settings."""
    yield name
    assert not replace(wire, GROUP, name, {}).error_code
    until(lambda: listed(wire), lambda found: name not in found, "the group has no settings")


def listed(wire: Wire) -> set[str]:
    """Return the groups with settings."""
    answer = wire.call(ListConfigResourcesRequest(resource_types=[GROUP]), 1)
    assert {each.resource_type for each in answer.config_resources} <= {GROUP}
    return {each.resource_name for each in answer.config_resources}


def values(wire: Wire, name: str) -> dict[str, str]:
    """Return the settings of the consumer protocol. Kafka's groups have those of other protocols, too."""
    return {key: entry.value for key, entry in shown(wire, GROUP, name).items() if key.startswith("consumer.")}


def change(wire: Wire, name: str, **wanted: str) -> None:
    """Set `session` and other settings, and wait until they are shown."""
    named = {f"consumer.{key.replace('_', '.')}": value for key, value in wanted.items()}
    answer = alter(wire, GROUP, name, *((key, SET, value) for key, value in named.items()))
    assert not answer.error_code, answer
    until(lambda: values(wire, name), lambda found: found.items() >= named.items(), "the settings are shown")


def test_group_without_settings_has_those_of_the_broker(wire: Wire, name: str) -> None:
    found = {key: entry for key, entry in shown(wire, GROUP, name).items() if key in DEFAULTS}
    assert {key: entry.value for key, entry in found.items()} == DEFAULTS
    for key, entry in found.items():
        assert (entry.config_source, entry.config_type, entry.read_only) == (DEFAULT, INT, False)
        assert [(each.name, each.value, each.source) for each in entry.synonyms] == [
            (f"group.{key}", DEFAULTS[key], DEFAULT)
        ]
    assert name not in listed(wire)


def test_settings_are_set_shown_listed_and_deleted(wire: Wire, group: str) -> None:
    change(wire, group, session_timeout_ms="50000", heartbeat_interval_ms="6000")
    entry = shown(wire, GROUP, group, [SESSION])[SESSION]
    assert (entry.value, entry.config_source) == ("50000", OF_GROUP)
    assert [(each.name, each.value, each.source) for each in entry.synonyms] == [
        (SESSION, "50000", OF_GROUP),
        (f"group.{SESSION}", "45000", DEFAULT),
    ]
    assert group in listed(wire)
    assert not alter(wire, GROUP, group, (SESSION, DELETE, None)).error_code
    until(lambda: values(wire, group)[SESSION], lambda found: found == "45000", "the session timeout is the broker's")
    assert values(wire, group)[HEARTBEAT] == "6000"
    assert not alter(wire, GROUP, group, (HEARTBEAT, DELETE, None)).error_code
    until(lambda: listed(wire), lambda found: group not in found, "the group has no settings")


def test_alter_configs_replaces_all_settings(wire: Wire, group: str) -> None:
    change(wire, group, session_timeout_ms="50000", heartbeat_interval_ms="6000")
    assert not replace(wire, GROUP, group, {SESSION: "55000"}).error_code
    until(
        lambda: values(wire, group), lambda found: found == {**DEFAULTS, SESSION: "55000"}, "only one setting is left"
    )
    assert replace(wire, GROUP, group, {SESSION: "1"}).error_code == code("INVALID_CONFIG")


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        (
            [(SESSION, SET, "44999")],
            f"{SESSION} must be greater than or equal to group.consumer.min.session.timeout.ms",
        ),
        ([(SESSION, SET, "60001")], f"{SESSION} must be less than or equal to group.consumer.max.session.timeout.ms"),
        (
            [(HEARTBEAT, SET, "4999")],
            f"{HEARTBEAT} must be greater than or equal to group.consumer.min.heartbeat.interval.ms",
        ),
        (
            [(HEARTBEAT, SET, "15001")],
            f"{HEARTBEAT} must be less than or equal to group.consumer.max.heartbeat.interval.ms",
        ),
        (
            [(ASSIGNMENT, SET, "15001")],
            f"{ASSIGNMENT} must be less than or equal to group.consumer.max.assignment.interval.ms",
        ),
        ([(SESSION, SET, "0")], f"Invalid value 0 for configuration {SESSION}: Value must be at least 1"),
        ([(ASSIGNMENT, SET, "-1")], f"Invalid value -1 for configuration {ASSIGNMENT}: Value must be at least 0"),
        ([(SESSION, SET, "x")], f"Invalid value x for configuration {SESSION}: Not a number of type INT"),
        ([(SESSION, SET, "2147483648")], "Not a number of type INT"),
        ([(SESSION, SET, "")], "Not a number of type INT"),
        ([("nope", SET, "1")], "Unknown group config name: nope"),
        ([("consumer.assignor.offload.enable", SET, "true")], "Unknown group config name: consumer.assignor.offload"),
        ([(SESSION, APPEND, "1")], f"Can't APPEND to key {SESSION} because its type is not LIST."),
        ([(SESSION, SUBTRACT, "1")], f"Can't SUBTRACT to key {SESSION} because its type is not LIST."),
    ],
)
def test_illegal_settings_are_rejected(wire: Wire, name: str, ops: list[Op], message: str) -> None:
    answer = alter(wire, GROUP, name, *ops)
    assert answer.error_code == code("INVALID_CONFIG")
    assert message in answer.error_message
    assert name not in listed(wire)


def test_change_is_made_in_full_or_not_at_all(wire: Wire, group: str) -> None:
    answer = alter(wire, GROUP, group, (HEARTBEAT, SET, "6000"), (SESSION, SET, "1"))
    assert answer.error_code == code("INVALID_CONFIG")
    twice = alter(wire, GROUP, group, (SESSION, SET, "50000"), (SESSION, SET, "50001"))
    assert twice.error_code == code("INVALID_REQUEST")
    assert not alter(wire, GROUP, group, (SESSION, SET, "50000"), validate_only=True).error_code
    change(wire, group, heartbeat_interval_ms="7000")
    assert values(wire, group) == {**DEFAULTS, HEARTBEAT: "7000"}


def test_all_groups_together_have_no_settings(wire: Wire) -> None:
    assert alter(wire, GROUP, "", (SESSION, SET, "50000")).error_code == code("INVALID_REQUEST")
    asked = DescribeConfigsResource(resource_type=GROUP, resource_name="", configuration_keys=None)
    [described] = wire.call(DescribeConfigsRequest(resources=[asked])).results
    assert (described.error_code, described.error_message) == (
        code("INVALID_REQUEST"),
        "Group name must not be empty",
    )


def test_name_of_a_group_may_have_any_characters(wire: Wire, group: str) -> None:
    strange = f"{group}/a b%2F.é"
    change(wire, strange, session_timeout_ms="50000")
    assert strange in listed(wire)
    assert not replace(wire, GROUP, strange, {}).error_code
    until(lambda: listed(wire), lambda found: strange not in found, "the group has no settings")


def test_settings_of_other_protocols(wire: Wire, server: Server, group: str) -> None:
    """DIFFERS: oncelog has neither share groups (KIP-932) nor streams groups (KIP-1071)."""
    kafka = server.name == "apache-kafka"
    for key in ("share.session.timeout.ms", "streams.session.timeout.ms"):
        answer = alter(wire, GROUP, group, (key, SET, "50000"))
        assert answer.error_code == (0 if kafka else code("INVALID_CONFIG"))
        assert kafka or "oncelog has no share or streams groups" in answer.error_message


# -- effect ---------------------------------------------------------------------------------------------------------


def beat(wire: Wire, name: str, member: Any = None) -> Any:
    """Send a heartbeat of a member, or of a new one."""
    request = ConsumerGroupHeartbeatRequest(group_id=name, member_id="m", rebalance_timeout_ms=-1)
    if member is None:
        request.rebalance_timeout_ms, request.subscribed_topic_names, request.topic_partitions = 1_000, [name], []
    else:
        request.member_epoch = member.member_epoch
    return wire.call(request, 1)


def test_heartbeat_interval_takes_effect_with_the_next_heartbeat(wire: Wire, group: str) -> None:
    wire.create_topic(group)
    wire.find_coordinator(group, 0)
    joined = until(lambda: beat(wire, group), lambda answer: not answer.error_code, "the member joins")
    assert joined.heartbeat_interval_ms == 5_000
    change(wire, group, heartbeat_interval_ms="6000")
    until(
        lambda: beat(wire, group, joined), lambda answer: answer.heartbeat_interval_ms == 6_000, "the interval is new"
    )


def test_settings_of_a_group_are_checked_against_the_brokers_and_survive_a_restart(
    start_server: Callable[[dict[str, str]], Server], name: str
) -> None:
    server = start_server(
        {
            "group.consumer.session.timeout.ms": "7000",
            "group.consumer.min.session.timeout.ms": "6000",
            "group.consumer.heartbeat.interval.ms": "2000",
            "group.consumer.min.heartbeat.interval.ms": "1000",
        }
    )
    with Wire(server.bootstrap) as wire:
        assert values(wire, name) == {SESSION: "7000", HEARTBEAT: "2000", ASSIGNMENT: "1000"}
        answer = alter(wire, GROUP, name, (HEARTBEAT, SET, "8000"))
        assert answer.error_code == code("INVALID_CONFIG")
        assert answer.error_message == f"{SESSION} must be greater than {HEARTBEAT}"
        change(wire, name, heartbeat_interval_ms="8000", session_timeout_ms="9000")
    server.kill()
    server.wait_ready()
    with Wire(server.bootstrap) as wire:
        until(lambda: values(wire, name)[HEARTBEAT], lambda found: found == "8000", "the setting is kept")


def test_broker_setting_that_is_the_default_can_change_while_the_broker_runs(
    start_server: Callable[[dict[str, str]], Server], name: str
) -> None:
    key = f"group.{ASSIGNMENT}"
    with Wire(start_server({}).bootstrap) as wire:
        answer = alter(wire, BROKER, ME, (key, SET, "15001"))
        assert answer.error_code == code("INVALID_REQUEST")
        assert answer.error_message == f"{key} must be less than or equal to group.consumer.max.assignment.interval.ms"
        fixed = alter(wire, BROKER, ME, (f"group.{SESSION}", SET, "50000"))
        assert fixed.error_code == code("INVALID_REQUEST")
        assert not alter(wire, BROKER, ME, (key, SET, "500")).error_code
        until(lambda: values(wire, name)[ASSIGNMENT], lambda found: found == "500", "the broker's setting is shown")
        assert shown(wire, GROUP, name)[ASSIGNMENT].config_source == DYNAMIC_BROKER
