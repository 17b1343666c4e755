"""Client metrics subscriptions: resources of type CLIENT_METRICS with settings (KIP-714, KIP-1000)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oncelog.protocol.messages import alter_configs as legacy
from oncelog.protocol.messages.list_config_resources import ListConfigResourcesRequest
from support.configs import (
    APPEND,
    CLIENT_METRICS,
    DEFAULT,
    DELETE,
    SET,
    SUBTRACT,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    Op,
    alter,
    shown,
)
from support.servers import Server
from support.wire import Wire, code, until

OF_SUBSCRIPTION = 7
INT, LIST = 3, 7
ALL = ("interval.ms", "match", "metrics")
DEFAULTS = {"interval.ms": "300000", "match": "", "metrics": ""}


@pytest.fixture
def subscription(wire: Wire, name: str) -> Iterator[str]:
    """Return the name of a subscription, and delete it at the end."""
    yield name
    delete(wire, name)


def delete(wire: Wire, name: str) -> None:
    answer = alter(wire, CLIENT_METRICS, name, *((key, DELETE, None) for key in ALL))
    assert not answer.error_code, answer
    until(lambda: listed(wire), lambda found: name not in found, "the subscription is gone")


def change(wire: Wire, name: str, **settings: str) -> None:
    """Set these settings (`interval_ms`), and wait until they are listed."""
    ops = [(key.replace("_", "."), SET, value) for key, value in settings.items()]
    answer = alter(wire, CLIENT_METRICS, name, *ops)
    assert not answer.error_code, answer
    until(lambda: listed(wire), lambda found: name in found, "the subscription is listed")


def listed(wire: Wire) -> set[str]:
    """Return the names that the older version of the API lists, which must be those of the newer one."""
    older = wire.call(ListConfigResourcesRequest(), 0)
    newer = wire.call(ListConfigResourcesRequest(resource_types=[CLIENT_METRICS]), 1)
    assert (older.error_code, newer.error_code) == (0, 0)
    assert {each.resource_type for each in newer.config_resources} <= {CLIENT_METRICS}
    names = {each.resource_name for each in newer.config_resources}
    return names & {each.resource_name for each in older.config_resources}


def values(wire: Wire, name: str) -> dict[str, str]:
    return {key: entry.value for key, entry in shown(wire, CLIENT_METRICS, name).items()}


def test_subscription_that_does_not_exist_has_the_defaults(wire: Wire, name: str) -> None:
    found = shown(wire, CLIENT_METRICS, name)
    assert {key: entry.value for key, entry in found.items()} == DEFAULTS
    assert {key: entry.config_type for key, entry in found.items()} == {
        "interval.ms": INT,
        "match": LIST,
        "metrics": LIST,
    }
    assert all((each.config_source, each.synonyms, each.read_only) == (DEFAULT, [], False) for each in found.values())
    assert name not in listed(wire)


def test_subscription_is_created_shown_and_deleted(wire: Wire, subscription: str) -> None:
    change(wire, subscription, interval_ms=" 2000 ", metrics="org.a, org.b ,org.a")
    until(lambda: values(wire, subscription)["interval.ms"], lambda found: found == "2000", "the value is shown")
    found = shown(wire, CLIENT_METRICS, subscription)
    assert {key: (entry.value, entry.config_source) for key, entry in found.items()} == {
        "interval.ms": ("2000", OF_SUBSCRIPTION),
        "match": ("", DEFAULT),
        "metrics": ("org.a,org.b", OF_SUBSCRIPTION),
    }
    (synonym,) = found["interval.ms"].synonyms
    assert (synonym.name, synonym.value, synonym.source) == ("interval.ms", "2000", OF_SUBSCRIPTION)
    assert set(shown(wire, CLIENT_METRICS, subscription, ["metrics"])) == {"metrics"}
    delete(wire, subscription)
    until(lambda: values(wire, subscription), lambda found: found == DEFAULTS, "the defaults are back")


def test_deleting_one_setting_keeps_the_others(wire: Wire, subscription: str) -> None:
    change(wire, subscription, interval_ms="2000", metrics="*")
    assert not alter(wire, CLIENT_METRICS, subscription, ("metrics", DELETE, None)).error_code
    until(lambda: values(wire, subscription)["metrics"], lambda found: found == "", "the setting is gone")
    assert values(wire, subscription)["interval.ms"] == "2000"
    assert subscription in listed(wire)


@pytest.mark.parametrize("own", ["a b", "ä/ö", "<default>", ".", "%41", "x" * 200])
def test_name_may_have_any_characters(wire: Wire, subscription: str, own: str) -> None:
    name = f"{own}{subscription}"
    change(wire, name, metrics="q")
    until(lambda: values(wire, name)["metrics"], lambda found: found == "q", "the value is shown")
    delete(wire, name)


@pytest.mark.parametrize(
    ("op", "error", "message"),
    [
        (("interval.ms", SET, "99"), "INVALID_REQUEST", "interval must be between 100 and 3600000 (1 hour)"),
        (("interval.ms", SET, "3600001"), "INVALID_REQUEST", "interval must be between 100 and 3600000 (1 hour)"),
        (("interval.ms", SET, "-1"), "INVALID_REQUEST", "interval must be between 100 and 3600000 (1 hour)"),
        (("interval.ms", SET, "soon"), "INVALID_CONFIG", "Not a number of type INT"),
        (("interval.ms", SET, "3000000000"), "INVALID_CONFIG", "Not a number of type INT"),
        (("interval.ms", SET, ""), "INVALID_CONFIG", "Not a number of type INT"),
        (("interval.ms", SET, None), "INVALID_REQUEST", "Null value not supported for : interval.ms"),
        (("interval", SET, "1000"), "INVALID_REQUEST", "Unknown client metrics configuration: interval"),
        (("match", SET, "client_id"), "INVALID_CONFIG", "Illegal client matching pattern: client_id"),
        (("match", SET, "client_id="), "INVALID_CONFIG", "Illegal client matching pattern: client_id="),
        (("match", SET, "client_id=a=b"), "INVALID_CONFIG", "Illegal client matching pattern: client_id=a=b"),
        (("match", SET, "client=a"), "INVALID_CONFIG", "Illegal client matching pattern: client=a"),
        (("match", SET, "client_id=("), "INVALID_CONFIG", "Illegal client matching pattern: client_id=("),
        (("match", SET, ","), "INVALID_CONFIG", "Configuration 'match' values must not be empty."),
        (("metrics", SET, "a,,b"), "INVALID_CONFIG", "Configuration 'metrics' values must not be empty."),
        (("metrics", APPEND, "a"), "INVALID_CONFIG", "Can't APPEND to key metrics because its type is not LIST."),
        (("match", SUBTRACT, "a"), "INVALID_CONFIG", "Can't SUBTRACT to key match because its type is not LIST."),
    ],
)
def test_invalid_settings_are_rejected(wire: Wire, name: str, op: Op, error: str, message: str) -> None:
    answer = alter(wire, CLIENT_METRICS, name, op)
    assert answer.error_code == code(error)
    assert message in answer.error_message
    assert name not in listed(wire)


@pytest.mark.parametrize("setting", ["match=", "match=client_id=a,client_id=b", "match= client_id = a.* ", "metrics="])
def test_unusual_settings_are_accepted(wire: Wire, subscription: str, setting: str) -> None:
    key, _, value = setting.partition("=")
    assert not alter(wire, CLIENT_METRICS, subscription, (key, SET, value), ("interval.ms", SET, "1000")).error_code


def test_deleting_what_does_not_exist_succeeds(wire: Wire, name: str) -> None:
    assert not alter(wire, CLIENT_METRICS, name, ("metrics", DELETE, None), ("nothing", DELETE, None)).error_code
    assert not alter(wire, CLIENT_METRICS, name).error_code
    assert name not in listed(wire)


def test_empty_name_is_rejected(wire: Wire) -> None:
    assert alter(wire, CLIENT_METRICS, "", ("metrics", SET, "*")).error_code == code("INVALID_REQUEST")
    asked = DescribeConfigsResource(resource_type=CLIENT_METRICS, resource_name="", configuration_keys=None)
    (found,) = wire.call(DescribeConfigsRequest(resources=[asked])).results
    assert (found.error_code, found.error_message) == (
        code("INVALID_REQUEST"),
        "Client metrics subscription name must not be empty",
    )


def test_validation_only_changes_nothing(wire: Wire, name: str) -> None:
    assert not alter(wire, CLIENT_METRICS, name, ("metrics", SET, "*"), validate_only=True).error_code
    wrong = alter(wire, CLIENT_METRICS, name, ("interval.ms", SET, "1"), validate_only=True)
    assert wrong.error_code == code("INVALID_REQUEST")
    assert name not in listed(wire)


def test_older_api_replaces_all_settings(wire: Wire, subscription: str) -> None:
    change(wire, subscription, interval_ms="2000")
    config = legacy.AlterableConfig(name="metrics", value="org.a")
    resource = legacy.AlterConfigsResource(resource_type=CLIENT_METRICS, resource_name=subscription, configs=[config])
    (answer,) = wire.call(legacy.AlterConfigsRequest(resources=[resource]), 2).responses
    assert not answer.error_code
    wanted = {**DEFAULTS, "metrics": "org.a"}
    until(lambda: values(wire, subscription), lambda found: found == wanted, "only the new setting is left")


def test_name_has_a_limit(wire: Wire, server: Server, subscription: str) -> None:
    """DIFFERS: Kafka has no limit but that of a string."""
    long = subscription + "x" * 256
    answer = alter(wire, CLIENT_METRICS, long, ("metrics", SET, "*"))
    if server.name == "apache-kafka":
        assert not answer.error_code
        delete(wire, long)
    else:
        assert (answer.error_code, "at most 255 characters" in answer.error_message) == (code("INVALID_REQUEST"), True)
