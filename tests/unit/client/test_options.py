"""Options: names, spellings, conflicts."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog.client.options import CONSUMER, PRODUCER, consumer_options, producer_options
from oncelog.errors import ConfigError
from oncelog.protocol.compression import Codec

B = {"bootstrap_servers": "localhost:9092"}


def test_dotted_names_and_texts() -> None:
    options = producer_options({"linger.ms": "20", "compression.type": "zstd", "acks": "-1"}, {**B, "batch_size": 5})
    assert (options["linger_ms"], options["compression_type"], options["batch_size"]) == (20, Codec.ZSTD, 5)
    assert options["enable_idempotence"] is True


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"enable_idempotence": True, "acks": 1}, ("enable_idempotence", "acks = 1")),
        ({"enable_idempotence": True, "acks": "0"}, ("enable_idempotence", "acks = 0")),
        ({"enable_idempotence": True, "retries": 0}, ("enable_idempotence", "retries = 0")),
        (
            {"enable_idempotence": "true", "max_in_flight_requests_per_connection": 6},
            ("enable_idempotence", "max_in_flight_requests_per_connection = 6"),
        ),
        ({"transactional_id": "x", "acks": 1}, ("transactional_id", "acks = 1")),
        ({"transactional_id": "x", "enable_idempotence": False}, ("transactional_id", "enable_idempotence")),
        ({"delivery_timeout_ms": 10, "linger_ms": 5}, ("delivery_timeout_ms", "linger_ms + request_timeout_ms")),
        ({"lingerms": 1}, ("lingerms", "linger_ms")),
        ({"acks": "some"}, ("acks", "all, 1 or 0")),
        ({"linger_ms": -1}, ("linger_ms", "-1")),
    ],
)
def test_conflicts_name_both_sides(given: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        producer_options(None, {**B, **given})
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("given", [{"acks": 1}, {"retries": 0}, {"max_in_flight_requests_per_connection": 10}])
def test_idempotence_gives_way_unless_demanded(given: dict[str, Any]) -> None:
    assert producer_options(None, {**B, **given})["enable_idempotence"] is False


def test_consumers() -> None:
    assert consumer_options(None, B)["enable_auto_commit"] is False, "nothing to commit without a group"
    for given, word in (
        ({"group_instance_id": "x"}, "group_id"),
        ({"group_id": "g", "session_timeout_ms": 3_000}, "heartbeat_interval_ms"),
        ({"isolation_level": "serializable"}, "read_committed"),
    ):
        with pytest.raises(ConfigError, match=word):
            consumer_options(None, {**B, **given})
    with pytest.raises(ConfigError, match="bootstrap_servers"):
        consumer_options(None, {})


def test_every_default_is_a_value_that_could_be_given() -> None:
    for table in (PRODUCER, CONSUMER):
        for name, option in table.items():
            spelled = option.default.name.lower() if isinstance(option.default, Codec) else option.default
            assert option.read(spelled) == option.default, name
