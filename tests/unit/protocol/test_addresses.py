"""Texts HOST:PORT."""

from __future__ import annotations

import pytest

from oncelog import errors
from oncelog.client.connections.pool import parse_bootstrap
from oncelog.protocol.addresses import bracketed, parse_address


@pytest.mark.parametrize("address", [("kafka", 9092), ("::1", 0), ("", 65535)])
def test_address_is_read_as_it_is_written(address: tuple[str, int]) -> None:
    host, port = address
    assert parse_address(f"{bracketed(host)}:{port}") == address


@pytest.mark.parametrize("text", ["", "kafka", "kafka:", "kafka:65536", "kafka:-1", "kafka:9\n", "kafka:²", "kafka:٣"])
def test_other_texts_are_no_address(text: str) -> None:
    assert parse_address(text) is None


@pytest.mark.parametrize("text", [":9092", "kafka:0", "kafka:²", "a:1,"])
def test_clients_need_host_and_port(text: str) -> None:
    with pytest.raises(errors.ConfigError, match="is not HOST:PORT, such as localhost:9092"):
        parse_bootstrap(text)
