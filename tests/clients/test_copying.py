"""Consume, process, produce, exactly once: group members killed with -9, rebalances, leftovers of zombies."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import copying
from support.servers import Server

SETTINGS = {"group.min.session.timeout.ms": "500"}
"""Dead members expire soon."""


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_nothing_is_lost_or_duplicated(module_server: Server, name: str, tmp_path: Path, strategy: str) -> None:
    options = {
        "partition_assignment_strategy": strategy,
        "session_timeout_ms": 1_500,
        "heartbeat_interval_ms": 200,
    }
    copying.run(module_server.bootstrap, name, tmp_path, records=300, deaths=4, options=options)
