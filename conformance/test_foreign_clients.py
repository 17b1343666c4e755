"""Clients in Go, JavaScript and Rust. `counts.json` has the tests that they pass on Apache Kafka 4.3.1 and on oncelog.

`ONCELOG_PIN=1` writes that file from the results.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.servers import Server
from support.suite_counts import check_counts

SUITES = ("franz-go", "kafkajs", "rskafka")


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("suite", SUITES)
def test_foreign_client(start_server: Callable[..., Server], suite: str) -> None:
    check_counts(suite, start_server)
