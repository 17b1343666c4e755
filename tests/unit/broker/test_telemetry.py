"""The parts of telemetry alone: the reader of OTLP, the client instances, the exported series, and their limits."""

from __future__ import annotations

import math
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.broker.config.client_metrics import parse
from oncelog.broker.telemetry import exported, instances, otlp
from oncelog.broker.telemetry.exported import ExportedMetrics
from oncelog.broker.telemetry.instances import ClientInstances
from oncelog.broker.telemetry.names import named, series_of
from oncelog.broker.telemetry.otlp import Point, PushedMetrics, read_metrics
from oncelog.protocol.errors import ErrorCode, ProtocolError
from support.pushed_metrics import CUMULATIVE, field, gauge, metrics_data, total

MANY = 1000


def attributes(number: int) -> dict[str, str]:
    return {
        "client_instance_id": f"i{number}",
        "client_id": f"c{number}",
        "client_software_name": "n",
        "client_software_version": "1",
        "client_source_address": "::1",
        "client_source_port": "1",
    }


# -- the reader --------------------------------------------------------------------------------------------------------


def test_numbers_of_gauges_and_counters_are_read() -> None:
    data = metrics_data(
        gauge("a", -5), gauge("b", 0.5, topic="t", node="1"), total("c", 7), total("d", 8, CUMULATIVE),
        resource={"group_id": "g"},
    )  # fmt: skip
    found = read_metrics(data, MANY)
    assert found.points == [
        Point("a", False, False, -5, ()),
        Point("b", False, False, 0.5, (("node", "1"), ("topic", "t"))),
        Point("c", True, True, 7, ()),
        Point("d", True, False, 8, ()),
    ]
    assert (found.resource, found.ignored, found.truncated) == ((("group_id", "g"),), 0, False)


def test_types_of_attributes() -> None:
    minus_one = field(3, 2**64 - 1)
    values = {"bool": field(2, 1), "int": minus_one, "none": b"", "list": field(5, b""), "bytes": field(7, b"x")}
    pairs = b"".join(field(7, field(1, key.encode()) + field(2, value)) for key, value in values.items())
    number = pairs + bytes([6 << 3 | 1]) + bytes(8)
    metric = field(1, b"a") + field(5, field(1, number))
    (found,) = read_metrics(metrics_data(metric), MANY).points
    assert found.attributes == (("bool", "true"), ("int", "-1"))


def test_other_types_and_points_without_a_value_are_counted_only() -> None:
    histogram = field(1, b"h") + field(9, b"")
    without = field(1, b"n") + field(5, field(1, b""))
    unrecorded = field(1, b"u") + field(5, field(1, bytes([6 << 3 | 1]) + bytes(8) + field(8, 1)))
    found = read_metrics(metrics_data(histogram, without, unrecorded, field(1, b"e")), MANY)
    assert (found.points, found.ignored) == ([], 4)


def test_number_of_points_is_limited() -> None:
    data = metrics_data(*(gauge(f"m{number}", number) for number in range(10)))
    assert (len(read_metrics(data, 10).points), read_metrics(data, 10).truncated) == (10, False)
    assert (len(read_metrics(data, 9).points), read_metrics(data, 9).truncated) == (9, True)


def test_number_of_fields_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "MOST_FIELDS", 100)
    found = read_metrics(metrics_data(gauge("a", 1)) + field(15, 0) * 100, MANY)
    assert (len(found.points), found.truncated) == (1, True)


def test_texts_and_attributes_are_limited() -> None:
    many = {f"k{number}": "v" * MANY for number in range(50)}
    (found,) = read_metrics(metrics_data(gauge("n" * MANY, 1, **many)), MANY).points
    assert len(found.name) == otlp.LONGEST_TEXT
    assert len(found.attributes) == otlp.MOST_ATTRIBUTES
    assert {len(text) for _, text in found.attributes} == {otlp.LONGEST_TEXT}


def read_or_rejected(data: bytes) -> PushedMetrics | None:
    try:
        return read_metrics(data, MANY)
    except ProtocolError as error:
        if error.code != ErrorCode.INVALID_RECORD:
            raise
        return None


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_rejected(data: bytes) -> None:
    read_or_rejected(data)


@given(st.data())
def test_changed_and_cut_messages_are_read_or_rejected(data: st.DataObject) -> None:
    message = bytearray(metrics_data(gauge("a", 1, topic="t"), total("b", 0.5), resource={"r": "x"}))
    for _ in range(data.draw(st.integers(0, 3))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    found = read_or_rejected(bytes(message[: data.draw(st.integers(0, len(message)))]))
    if found is not None:
        named(found, lambda name: True)


# -- client instances --------------------------------------------------------------------------------------------------


def ready(**settings: str) -> ClientInstances:
    made = ClientInstances()
    made.replace({"s": parse({key.replace("_", "."): text for key, text in settings.items()})})
    return made


def test_least_recently_used_instance_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instances, "MOST_INSTANCES", 2)
    known = ready(metrics="*")
    first, second, third = (UUID(int=number) for number in (11, 12, 13))
    known.subscribe(first, attributes(1), 1, 0.0)
    known.subscribe(second, attributes(2), 2, 1.0)
    known.subscribe(first, attributes(1), 1, 400.0)
    known.subscribe(third, attributes(3), 3, 401.0)
    assert (first in known, second in known, third in known) == (True, False, True)


def test_silent_instance_is_forgotten_after_three_intervals() -> None:
    known = ready(metrics="*", interval_ms="30000")
    known.subscribe(UUID(int=11), attributes(1), 1, 0.0)
    known.expire(89.9)
    assert len(known) == 1
    known.expire(90.0)
    assert len(known) == 0


def test_instance_that_has_moved_survives_the_end_of_its_former_connection() -> None:
    known = ready(metrics="*", interval_ms="100")
    known.subscribe(UUID(int=11), attributes(1), 1, 0.0)
    known.subscribe(UUID(int=11), attributes(1), 2, 1.0)
    known.disconnected(1)
    assert len(known) == 1
    known.disconnected(2)
    known.disconnected(2)
    assert len(known) == 0


def test_subscription_id_depends_on_client_metrics_and_interval() -> None:
    def subscription(number: int, **settings: str) -> int:
        known = ready(**settings)
        return known.subscribe(UUID(int=number), attributes(1), 1, 0.0).subscription_id(UUID(int=number))

    ids = [
        subscription(11, metrics="a,b"),
        subscription(12, metrics="a,b"),
        subscription(11, metrics="a"),
        subscription(11, metrics="a,b", interval_ms="1000"),
    ]
    assert len(set(ids)) == len(ids)
    assert ids[0] == subscription(11, metrics="b,a")
    assert all(-(2**31) <= each < 2**31 for each in ids)


# -- exported series ---------------------------------------------------------------------------------------------------


def shown(metrics: ExportedMetrics) -> dict[tuple[str, tuple[str, ...]], float]:
    return {(name, sample.values): sample.value for name, _, samples in metrics.families() for sample in samples}


def take(metrics: ExportedMetrics, number: int, *pushed: bytes, now: float = 0.0, subscription: int = 1) -> None:
    found = named(read_metrics(metrics_data(*pushed), 10 * MANY), lambda name: True)
    metrics.update(attributes(number), found, subscription, now, 60.0)


def test_differences_of_counters_are_added_up_and_gauges_replaced() -> None:
    metrics = ExportedMetrics()
    take(metrics, 1, total("sent", 5), total("all", 5, CUMULATIVE), gauge("rate", 5.0))
    take(metrics, 1, total("sent", 2), total("all", 7, CUMULATIVE), gauge("rate", 2.0))
    assert shown(metrics) == {
        ("kafka_client_sent_total", ("i1", "c1")): 7,
        ("kafka_client_all_total", ("i1", "c1")): 7,
        ("kafka_client_rate", ("i1", "c1")): 2.0,
    }


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_counter_keeps_its_value_if_a_difference_is_impossible(bad: float) -> None:
    metrics = ExportedMetrics()
    take(metrics, 1, total("sent", 5))
    take(metrics, 1, total("sent", bad))
    assert shown(metrics) == {("kafka_client_sent_total", ("i1", "c1")): 5}
    assert metrics.dropped == 1


def test_missing_gauge_is_gone_and_a_counter_only_after_a_change_of_the_subscription() -> None:
    metrics = ExportedMetrics()
    take(metrics, 1, total("sent", 5), gauge("lag", 5, partition="0"), gauge("lag", 6, partition="1"))
    take(metrics, 1, gauge("lag", 7, partition="1"))
    assert shown(metrics) == {
        ("kafka_client_sent_total", ("i1", "c1")): 5,
        ("kafka_client_lag", ("i1", "c1", "1")): 7,
    }
    take(metrics, 1, gauge("lag", 7, partition="1"), subscription=2)
    assert shown(metrics) == {("kafka_client_lag", ("i1", "c1", "1")): 7}


def test_client_that_is_gone_expires() -> None:
    metrics = ExportedMetrics()
    take(metrics, 1, gauge("a", 1))
    take(metrics, 2, gauge("a", 2), now=30.0)
    metrics.expire(60.0)
    assert shown(metrics) == {("kafka_client_a", ("i2", "c2")): 2}
    metrics.expire(90.0)
    assert (shown(metrics), len(metrics), metrics.series, metrics.characters) == ({}, 0, 0, 0)


def test_series_of_one_client_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exported, "MOST_SERIES_OF_CLIENT", 3)
    metrics = ExportedMetrics()
    take(metrics, 1, *(gauge(f"m{number}", number) for number in range(5)))
    assert (metrics.series, metrics.dropped) == (3, 2)
    take(metrics, 1, *(gauge(f"m{number}", number) for number in (0, 1, 2)))
    assert (metrics.series, metrics.dropped) == (3, 2)


@pytest.mark.parametrize(("limit", "most"), [("MOST_SERIES", 5), ("MOST_CHARACTERS", 75), ("MOST_CLIENTS", 2)])
def test_client_with_the_oldest_push_makes_room(monkeypatch: pytest.MonkeyPatch, limit: str, most: int) -> None:
    monkeypatch.setattr(exported, limit, most)
    metrics = ExportedMetrics()
    for number in (1, 2, 1, 3):  # a name has 14 characters
        take(metrics, number, gauge("a", 1), gauge("b", 1))
    assert {values[0] for _, values in shown(metrics)} == {"i1", "i3"}


def test_client_alone_cannot_exceed_the_limit_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exported, "MOST_SERIES", 3)
    metrics = ExportedMetrics()
    take(metrics, 1, *(gauge(f"m{number}", number) for number in range(5)))
    assert (metrics.series, metrics.dropped, len(metrics)) == (3, 2, 1)


@pytest.mark.parametrize(
    ("name", "counter", "exported_as"),
    [
        ("org.apache.kafka.producer.record.send.total", True, "kafka_client_producer_record_send_total"),
        ("org.apache.kafka.sent", True, "kafka_client_sent_total"),
        ("org.apache.kafka.sent.total", False, "kafka_client_sent_total_gauge"),
        ("com.example-Size", False, "kafka_client_com_example_Size"),
        ("...", False, None),
    ],
)
def test_exported_names(name: str, counter: bool, exported_as: str | None) -> None:
    found = series_of(Point(name, counter, False, 1, ()))
    assert (found and found[0]) == exported_as


def test_labels_of_the_broker_cannot_be_replaced() -> None:
    pairs = (("client.id", "x"), ("client_instance_id", "x"), ("9", "x"), ("", "x"), ("a.b", "1"), ("a_b", "2"))
    found = series_of(Point("m", False, False, 1, pairs))
    assert found == ("kafka_client_m", (("a_b", "1"),))
