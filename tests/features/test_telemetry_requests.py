"""GetTelemetrySubscriptions and PushTelemetry: which metrics a client shall push, and when it may (KIP-714).

These servers export no metrics, so that they drop what they get. tests/clients/test_telemetry.py has the exported ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest

from oncelog.protocol.compression import Codec, compress
from oncelog.protocol.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from oncelog.protocol.messages.push_telemetry import PushTelemetryRequest
from support.configs import CLIENT_METRICS, DELETE, SET, alter
from support.servers import Server
from support.wire import Wire, code, until

SETTINGS = {"telemetry.max.bytes": "1000"}
DEFAULT_MS = 300_000
NO_ID = UUID(int=0)


@pytest.fixture
def wire(module_wire: Wire) -> Wire:
    return module_wire


def get(wire: Wire, instance_id: UUID = NO_ID) -> Any:
    return wire.call(GetTelemetrySubscriptionsRequest(client_instance_id=instance_id), 0)


def push(
    wire: Wire,
    instance_id: UUID,
    subscription_id: int,
    metrics: bytes = b"",
    codec: int = 0,
    *,
    last: bool = False,
) -> int:
    """Return the error code of a push. `last`: the client terminates."""
    request = PushTelemetryRequest(
        client_instance_id=instance_id,
        subscription_id=subscription_id,
        terminating=last,
        compression_type=codec,
        metrics=metrics,
    )
    return int(wire.call(request, 0).error_code)


class Subscriptions:
    """Subscriptions that exist until the end of the test. Their changes have arrived when a method returns."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._names: list[str] = []

    def set(self, name: str, **settings: str) -> None:
        """Replace the settings of a subscription (`interval_ms`)."""
        keys = ("interval.ms", "match", "metrics")
        given = {key.replace("_", "."): value for key, value in settings.items()}
        ops = [(key, SET, given[key]) if key in given else (key, DELETE, None) for key in keys]
        answer = alter(self._wire, CLIENT_METRICS, name, *ops)
        assert not answer.error_code, answer
        self._names.append(name)

    def clear(self) -> None:
        for name in set(self._names):
            self.set(name)
        until(lambda: get(self._wire).requested_metrics, lambda found: not found, "no subscription is left")


@pytest.fixture
def subscriptions(wire: Wire) -> Iterator[Subscriptions]:
    made = Subscriptions(wire)
    yield made
    made.clear()


def pushes(wire: Wire, *metrics: str) -> Any:
    """Wait until a new client shall push these metrics, and return the answer to it."""
    return until(lambda: get(wire), lambda found: sorted(found.requested_metrics) == sorted(metrics), f"{metrics}")


def test_broker_that_exports_nothing_does_not_offer_to_take_metrics(wire: Wire) -> None:
    assert not wire.versions.keys() & {GetTelemetrySubscriptionsRequest.API_KEY, PushTelemetryRequest.API_KEY}


def test_client_without_a_subscription_gets_an_id_and_pushes_nothing(wire: Wire) -> None:
    found, other = get(wire), get(wire)
    assert (found.error_code, found.requested_metrics, found.push_interval_ms) == (0, [], DEFAULT_MS)
    assert (found.accepted_compression_types, found.telemetry_max_bytes, found.delta_temporality) == (
        [4, 3, 1, 2],
        1000,
        True,
    )
    assert len({NO_ID, found.client_instance_id, other.client_instance_id}) == 3
    assert found.client_instance_id.version == 4


def test_client_keeps_its_id(wire: Wire) -> None:
    own = uuid4()
    assert get(wire, own).client_instance_id == own


def test_client_that_asks_again_before_the_interval_has_passed_is_throttled(wire: Wire) -> None:
    again = get(wire, get(wire).client_instance_id)
    assert (again.error_code, again.client_instance_id, again.requested_metrics) == (
        code("THROTTLING_QUOTA_EXCEEDED"),
        NO_ID,
        [],
    )


def test_client_that_pushes_again_before_the_interval_has_passed_is_throttled(wire: Wire) -> None:
    found = get(wire)
    client = found.client_instance_id, found.subscription_id
    assert push(wire, *client) == 0
    assert push(wire, *client) == code("THROTTLING_QUOTA_EXCEEDED")
    assert get(wire, found.client_instance_id).error_code == code("THROTTLING_QUOTA_EXCEEDED")


def test_client_may_push_after_each_interval(wire: Wire, name: str, subscriptions: Subscriptions) -> None:
    subscriptions.set(name, metrics="*", interval_ms="100")
    found = pushes(wire, "*")
    assert found.push_interval_ms == 100
    for _ in range(2):
        until(
            lambda: push(wire, found.client_instance_id, found.subscription_id),
            lambda error: error == 0,
            "the push is admitted",
        )
    until(lambda: get(wire, found.client_instance_id), lambda answer: not answer.error_code, "so is the question")


@pytest.mark.parametrize("reserved", [UUID(int=0), UUID(int=1)])
def test_push_without_an_id_is_invalid(wire: Wire, reserved: UUID) -> None:
    assert push(wire, reserved, 0) == code("INVALID_REQUEST")


def test_push_for_another_subscription_is_rejected_and_the_client_may_ask_at_once(wire: Wire) -> None:
    found = get(wire)
    assert push(wire, found.client_instance_id, found.subscription_id + 1) == code("UNKNOWN_SUBSCRIPTION_ID")
    again = get(wire, found.client_instance_id)
    assert (again.error_code, again.subscription_id) == (0, found.subscription_id)
    assert get(wire, found.client_instance_id).error_code == code("THROTTLING_QUOTA_EXCEEDED")


def test_push_of_an_unknown_client_is_for_an_unknown_subscription(wire: Wire) -> None:
    own = uuid4()
    assert push(wire, own, 5) == code("UNKNOWN_SUBSCRIPTION_ID")
    found = get(wire, own)
    assert found.error_code == 0
    assert push(wire, own, found.subscription_id) == code("THROTTLING_QUOTA_EXCEEDED")


def test_unknown_compression_is_rejected_and_the_client_may_ask_at_once(wire: Wire) -> None:
    found = get(wire)
    error = push(wire, found.client_instance_id, found.subscription_id, b"x", 9)
    assert error == code("UNSUPPORTED_COMPRESSION_TYPE")
    assert get(wire, found.client_instance_id).error_code == 0


@pytest.mark.parametrize(("size", "error"), [(1000, "NONE"), (1001, "TELEMETRY_TOO_LARGE")])
def test_size_of_a_push_is_limited(wire: Wire, size: int, error: str) -> None:
    found = get(wire)
    assert push(wire, found.client_instance_id, found.subscription_id, bytes(size)) == code(error)


@pytest.mark.parametrize("codec", Codec)
def test_each_compression_is_admitted(wire: Wire, codec: Codec) -> None:
    found = get(wire)
    metrics = bytes(compress(codec, b""))
    assert push(wire, found.client_instance_id, found.subscription_id, metrics, codec) == 0


def test_last_push_may_be_early_and_ends_the_client(wire: Wire) -> None:
    found = get(wire)
    client = found.client_instance_id, found.subscription_id
    assert push(wire, *client) == 0
    assert push(wire, *client, last=True) == 0
    assert push(wire, *client, last=True) == code("INVALID_REQUEST")


def test_rejected_last_push_also_ends_the_client(wire: Wire) -> None:
    found = get(wire)
    error = push(wire, found.client_instance_id, found.subscription_id + 1, last=True)
    assert error == code("UNKNOWN_SUBSCRIPTION_ID")
    assert push(wire, found.client_instance_id, found.subscription_id) == code("INVALID_REQUEST")


def test_change_of_the_subscriptions_gives_clients_another_subscription_id_at_once(
    wire: Wire, name: str, subscriptions: Subscriptions
) -> None:
    before = get(wire)
    subscriptions.set(name, metrics="org.a")
    pushes(wire, "org.a")
    assert push(wire, before.client_instance_id, before.subscription_id) == code("UNKNOWN_SUBSCRIPTION_ID")
    after = get(wire, before.client_instance_id)
    assert (after.error_code, after.requested_metrics) == (0, ["org.a"])
    assert after.subscription_id != before.subscription_id


def test_metrics_of_all_matching_subscriptions_are_pushed_at_the_shortest_interval(
    wire: Wire, name: str, subscriptions: Subscriptions
) -> None:
    subscriptions.set(f"{name}1", metrics="org.a,org.b", interval_ms="5000", match="client_id=w.re")
    subscriptions.set(f"{name}2", metrics="org.a,org.c", interval_ms="3600000")
    subscriptions.set(f"{name}3", metrics="org.d", interval_ms="100", match="client_id=wir")
    assert pushes(wire, "org.a", "org.b", "org.c").push_interval_ms == 5000
    subscriptions.set(f"{name}1")
    assert pushes(wire, "org.a", "org.c").push_interval_ms == DEFAULT_MS
    subscriptions.set(f"{name}1", metrics="org.a,*", interval_ms="7000")
    assert pushes(wire, "*").push_interval_ms == 7000


@pytest.mark.parametrize(
    "match",
    [
        "client_id=wire",
        "client_software_name=wire",
        "client_software_version=[0-9]",
        "client_source_address=127.0.0.1",
        "client_source_port=[0-9]+",
        "client_instance_id=[A-Za-z0-9_-]{22}",
        "client_id=b,client_id=wire",
        "client_software_name=wire , client_id = wire",
    ],
)
def test_client_matches_by_its_attributes(wire: Wire, name: str, subscriptions: Subscriptions, match: str) -> None:
    subscriptions.set(name, metrics="org.a", match=match)
    pushes(wire, "org.a")


@pytest.mark.parametrize(
    "match", ["client_id=wir", "client_id=wire,client_id=b", "client_id=wire,client_source_port=x"]
)
def test_client_does_not_match(wire: Wire, name: str, subscriptions: Subscriptions, match: str) -> None:
    subscriptions.set(name, metrics="org.a", match=match)
    subscriptions.set(f"{name}-all", metrics="org.b")
    pushes(wire, "org.b")


def test_client_may_push_on_another_connection(module_server: Server, wire: Wire) -> None:
    found = get(wire)
    with Wire(module_server.bootstrap) as other:
        assert push(other, found.client_instance_id, found.subscription_id) == 0
